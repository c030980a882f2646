/* tp_params.h - parameters that tensor parallel ranks split by themselves, as
 * AutoTP does: each rank's model file has its parts, and says by tp_rules.h how
 * they join. Without a pipeline; pipeline.h has its own. */
#ifndef FERRY_CONVERT_DEEPSPEED_TP_PARAMS_H
#define FERRY_CONVERT_DEEPSPEED_TP_PARAMS_H

#include "ckpt/catalog.h"
#include "convert/deepspeed/tp_rules.h"
#include "convert/deepspeed/zero_read.h"

struct tp_part {
    unsigned num_dims; /* of the rank's part */
    const uint64_t *shape;
    size_t stored; /* index of the part's stored tensor plus 1; 0: the rank has none */
    struct tp_rule rule;
};

struct tp_param {
    const char *name;
    unsigned num_dims; /* of the whole, after tp_params_join() */
    const uint64_t *whole;
    uint64_t padding;      /* rows of the parts past the vocabulary, left out */
    struct tp_part *parts; /* [num_ranks] */
};

struct tp_params {
    struct catalog *all;
    uint64_t num_ranks;
    struct tp_param *items;
    size_t count, capacity;
    struct map names; /* -> items */
};

/* A rank's part, for tp_add_run(). */
struct tp_rank {
    const struct tp_params *params;
    uint64_t rank;
};

/* Adds the rank's part of a parameter, the last stored tensor. ERR_CORRUPT. */
MUST_CHECK enum status tp_params_add(struct tp_params *p, const struct tp_rules *rules,
                                     uint64_t rank, const char *name, struct error *err);
/* Finds places of all parts in whole parameters, and adds the weights' native
 * tensors. ERR_CORRUPT names the parameter whose parts do not fit. */
MUST_CHECK enum status tp_params_join(struct tp_params *p, struct error *err);
/* Adds a stored tensor of a part's shape to a state of the whole parameter. */
MUST_CHECK enum status tp_add_stored(const struct tp_rank *r, const char *name, const char *state,
                                     size_t stored, struct error *err);
/* Index of the stored tensor of the rank's part; the parameter exists. */
size_t tp_stored_part(const struct tp_rank *r, const char *name);
/* A zero_add_run: places a run of the rank's part in the whole. context: a
 * struct tp_rank. */
MUST_CHECK enum status tp_add_run(void *context, const struct ds_param *p, const char *state,
                                  enum dtype dtype, size_t stored, const struct pair *run,
                                  struct error *err);
void tp_params_release(struct tp_params *p);

#endif
