/* universal_states.h - reads zero/NAME/STATE.pt of a universal DeepSpeed
 * checkpoint (deepspeed/checkpoint/ds_to_universal.py), a file per state of
 * each parameter:
 *
 *   fp32.pt, exp_avg.pt, ...   {param: the whole tensor, cat_dim, vocab_tensor,
 *                              ...}; stage 3: a flat tensor alone, whose shape
 *                              is in param_shapes
 *   step.pt                    a number, or a one-element tensor
 *   optimizer_state.pt         beside these folders: param_groups, loss_scaler */
#ifndef FERRY_CONVERT_DEEPSPEED_UNIVERSAL_STATES_H
#define FERRY_CONVERT_DEEPSPEED_UNIVERSAL_STATES_H

#include "convert/deepspeed/model_states.h"

/* Adds all parameters' states and the groups. A parameter without a weight gets
 * its master, in the dtype of training. */
MUST_CHECK enum status universal_states_read(struct deepspeed *d, struct error *err);

#endif
