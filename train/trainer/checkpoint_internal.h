/* checkpoint_internal.h - places and names of states, for loading and saving. */
#ifndef FERRY_TRAIN_TRAINER_CHECKPOINT_INTERNAL_H
#define FERRY_TRAIN_TRAINER_CHECKPOINT_INTERNAL_H

#include "train/trainer/checkpoint.h"

/* One logical tensor of a parameter. */
struct held_tensor {
    const struct parameter *of;
    const char *name;       /* logical */
    uint64_t first;         /* its first element in the region, of its own dtype */
    uint64_t own_numel;     /* elements that this rank holds */
    uint64_t numel;         /* of the whole tensor, without padding */
    uint64_t padding_numel; /* of the padding rows behind it, on all ranks together */
};

typedef enum status held_visit(void *context, const struct held_tensor *t, struct error *err);

/* Calls visit for each tensor of each parameter. States of the program have
 * none. */
MUST_CHECK enum status held_each(const struct train_state *s, held_visit *visit, void *context,
                                 struct error *err);

/* Elements that are contiguous both in a rank's tensor and in its region. */
struct held_run {
    uint64_t first, count; /* within the rank's elements of the tensor */
    uint64_t at;           /* element of the region */
};
typedef enum status held_run_visit(void *context, const struct held_run *r, struct error *err);

/* Calls visit for each run in the region: one, unless it is sharded. */
MUST_CHECK enum status held_each_run(const struct train_state *s, const struct held_tensor *t,
                                     enum held_kind kind, held_run_visit *visit, void *context,
                                     struct error *err);

/* Pairs elements of the padded tensor with a region's, from element `at` on. */
struct held_part {
    struct pair pair;
    uint64_t at;
};
typedef enum status held_part_visit(void *context, const struct held_part *p, struct error *err);

/* Calls visit for the region's share of elements [first, first + count) of the
 * padded tensor, counted from first. */
MUST_CHECK enum status held_each_part(const struct train_state *s, const struct held_tensor *t,
                                      enum held_kind kind, uint64_t first, uint64_t count,
                                      held_part_visit *visit, void *context, struct error *err);

/* The dtype of a tensor in a region. Buffers lie among weights, but are REAL. */
enum dtype held_dtype(const struct train_state *s, const struct held_tensor *t,
                      enum held_kind kind);
/* The address of element `at` of a region, in elements of this dtype. */
void *held_at(const struct train_state *s, enum held_kind kind, enum dtype dtype, uint64_t at);

/* Whether the optimizer has states of the tensor: false for buffers. */
bool held_is_trained(const struct held_tensor *t);

/* The state's name, "param", "exp_avg" .. (convert/states.h); NULL for the
 * weight. sgd: the first moment is SGD's momentum. */
const char *held_state(enum held_kind kind, bool sgd);
/* Whether a training state is SGD's. */
bool held_is_sgd(const struct training *t);

/* NAME or optimizer.STATE.NAME; with `padding` the name of the padding rows. In
 * arena a. */
const char *held_name(const struct held_tensor *t, const char *state, bool padding,
                      struct arena *a);

#endif
