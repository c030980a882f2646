/* training_target.h - the training state that a Megatron checkpoint is written with. */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_TRAINING_TARGET_H
#define FERRY_CONVERT_MEGATRON_OPTIM_TRAINING_TARGET_H

#include "convert/megatron/optim/param_groups.h"
#include "convert/target.h"

/* Whether the optimizer is written as a distributed one: as its format says, else as the source's
 * args do. */
bool training_target_is_distributed(const struct target *t);

/* Completes t->training for Megatron, if states are written, and sets t->fates. Notes what stays
 * unknown. t->layout is known. */
void training_target_begin(struct target *t);

/* Whether an object of torch_dist is a state of random number generators. */
bool training_object_is_rng(const char *name);

/* Adds optimizer and opt_param_scheduler to the common state, and what content_metadata says of the
 * optimizer to content. The bytes of tensors are added to data. In the plan's arena. */
void training_target_common(struct target *t, struct value *common, struct value *content,
                            struct tensor_data *data);

#endif
