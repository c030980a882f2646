/* checkpoint_internal.h - what loading and saving share: the place and the names of states. */
#ifndef FERRY_TRAIN_TRAINER_CHECKPOINT_INTERNAL_H
#define FERRY_TRAIN_TRAINER_CHECKPOINT_INTERNAL_H

#include "train/trainer/checkpoint.h"

/* One logical tensor of a parameter. */
struct held_tensor {
    const struct parameter *of;
    const char *name;       /* logical */
    uint64_t first;         /* element of the region where it begins */
    uint64_t own_numel;     /* elements that this rank holds */
    uint64_t numel;         /* of the whole tensor, without padding */
    uint64_t padding_numel; /* of the rows of padding behind it, on all ranks together */
};

typedef enum status held_visit(void *context, const struct held_tensor *t, struct error *err);

/* Calls visit for each tensor of each parameter; states of the program have none. */
MUST_CHECK enum status held_each(const struct train_state *s, held_visit *visit, void *context,
                                 struct error *err);

/* The address of element `at` of a region. */
void *held_at(const struct train_state *s, enum held_kind kind, uint64_t at);

/* Whether an optimizer has states of the tensor: not of buffers. */
bool held_is_trained(const struct held_tensor *t);

/* "param", "exp_avg" ..: the state's name (convert/states.h); NULL: of the weight. sgd: an
 * optimizer whose first moment is its momentum. */
const char *held_state(enum held_kind kind, bool sgd);
/* Whether a training state is of SGD. */
bool held_is_sgd(const struct training *t);

/* NAME, optimizer.STATE.NAME, and with `padding` that of the rows behind it. In arena a. */
const char *held_name(const struct held_tensor *t, const char *state, bool padding,
                      struct arena *a);

#endif
