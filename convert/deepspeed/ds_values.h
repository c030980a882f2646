/* ds_values.h - values in DeepSpeed's pickles. */
#ifndef FERRY_CONVERT_DEEPSPEED_DS_VALUES_H
#define FERRY_CONVERT_DEEPSPEED_DS_VALUES_H

#include "ckpt/checkpoint.h"
#include "formats/torch.h"

enum { DS_MAX_DIMS = 64 };

/* The items of a LIST or TUPLE; 0 for others. */
uint32_t ds_list(const struct value *v, struct value *const **items);
/* The value of an int key of a dict; NULL: there is none. */
const struct value *ds_get_int(const struct value *dict, int64_t key);
/* An int, an enum member of one, or the name of a member of ZeroStageEnum. */
bool ds_as_stage(const struct value *v, int64_t *out);
/* torch.Size, or a list or tuple of ints; copied into arena a. */
bool ds_as_shape(struct arena *a, const struct value *v, unsigned *num_dims, uint64_t **shape);
bool ds_as_count(const struct value *v, uint64_t *out); /* an int that is not negative */

/* A number, or a tensor of one, whose value is read later. */
struct ds_number {
    double value;  /* NaN: there is none */
    size_t stored; /* index of the stored tensor that has it; SIZE_MAX: value is it */
};
/* name: of the stored tensor. */
MUST_CHECK enum status ds_number_of(struct torch_file *t, struct stored *s, const struct value *v,
                                    const char *name, struct ds_number *out, struct error *err);
/* Reads the numbers in tensors; ERR_CORRUPT where a tensor has not one real element. */
MUST_CHECK enum status ds_numbers_read(const struct stored *s, struct ds_number *numbers,
                                       size_t count, struct error *err);

#endif
