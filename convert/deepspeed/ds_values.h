/* ds_values.h - reads values of DeepSpeed's pickles. */
#ifndef FERRY_CONVERT_DEEPSPEED_DS_VALUES_H
#define FERRY_CONVERT_DEEPSPEED_DS_VALUES_H

#include "ckpt/checkpoint.h"
#include "formats/torch.h"

enum { DS_MAX_DIMS = 64 };

/* Items of a LIST or TUPLE; returns their number, 0 for others. */
uint32_t ds_list(const struct value *v, struct value *const **items);
/* The value of a dict's int key; NULL: none. */
const struct value *ds_get_int(const struct value *dict, int64_t key);
/* Reads an int, an enum member of an int, or a ZeroStageEnum name. */
bool ds_as_stage(const struct value *v, int64_t *out);
/* Reads torch.Size, or a list or tuple of ints; copies it into arena a. */
bool ds_as_shape(struct arena *a, const struct value *v, unsigned *num_dims, uint64_t **shape);
bool ds_as_count(const struct value *v, uint64_t *out); /* a non-negative int */

/* A number, or a one-element tensor to be read later. */
struct ds_number {
    double value;  /* NaN: none */
    size_t stored; /* index of its stored tensor; SIZE_MAX: value is known */
};
/* name: of the stored tensor. */
MUST_CHECK enum status ds_number_of(struct torch_file *t, struct stored *s, const struct value *v,
                                    const char *name, struct ds_number *out, struct error *err);
/* Reads the numbers in tensors; ERR_CORRUPT unless a tensor has one real
 * element. */
MUST_CHECK enum status ds_numbers_read(const struct stored *s, struct ds_number *numbers,
                                       size_t count, struct error *err);

#endif
