/* universal_states.h - reads zero/NAME/STATE.pt of a universal checkpoint of DeepSpeed
 * (deepspeed/checkpoint/ds_to_universal.py), a file for each state of each parameter:
 *
 *   fp32.pt, exp_avg.pt, ...   {param: the whole tensor, cat_dim, vocab_tensor, ...}, or, of stage
 *                              3, a flat tensor alone, whose shape param_shapes has
 *   step.pt                    a number, or a tensor of one
 *   optimizer_state.pt         beside these folders: param_groups, loss_scaler */
#ifndef FERRY_CONVERT_DEEPSPEED_UNIVERSAL_STATES_H
#define FERRY_CONVERT_DEEPSPEED_UNIVERSAL_STATES_H

#include "convert/deepspeed/model_states.h"

/* Adds the states of all parameters; a parameter without a weight gets its master as that, in the
 * dtype of training. Adds the groups. */
MUST_CHECK enum status universal_states_read(struct deepspeed *d, struct error *err);

#endif
