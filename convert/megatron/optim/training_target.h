/* training_target.h - the training state to write in a Megatron checkpoint. */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_TRAINING_TARGET_H
#define FERRY_CONVERT_MEGATRON_OPTIM_TRAINING_TARGET_H

#include "convert/megatron/optim/param_groups.h"
#include "convert/target.h"

/* Whether to write a distributed optimizer, after training_target_begin(). */
bool training_target_is_distributed(const struct target *t);

/* Whether a parameter, or the one of a state, is a hidden matrix in a run whose
 * optimizers are split. */
bool training_target_is_split_off(const struct target *t, const char *logical);

/* ERR_UNSUPPORTED, naming a parameter, if its states are not those of its
 * optimizer's other parameters, or the format keeps one optimizer only. Call it
 * when states are taken. */
MUST_CHECK enum status training_target_check(const struct target *t, struct error *err);

/* Sets options.optim_format, if it was not given, to the source's kind, else
 * distributed. Completes t->training for Megatron, if states are written, and
 * sets t->outcomes. Notes what stays unknown. Needs t->layout. */
void training_target_begin(struct target *t);

/* Whether an object of torch_dist is a random number generator state. */
bool training_object_is_rng(const char *name);

/* Adds optimizer and opt_param_scheduler to the common state, the optimizer's
 * content_metadata to content, and bytes of tensors to data. In the plan's
 * arena. */
void training_target_common(struct target *t, struct value *common, struct value *content,
                            struct tensor_data *data);

#endif
