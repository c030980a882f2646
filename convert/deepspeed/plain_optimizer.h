/* plain_optimizer.h - the state dict of an optimizer of torch.optim, as the model's file has it
 * without ZeRO:
 *
 *   {state: {i: {step, exp_avg, exp_avg_sq}}, param_groups: [{lr, ..., params: [i, ...]}, ...]}
 *
 * i counts the parameters of all groups. No file names them: their order is that of the model's
 * state dict, in each group; states of other shapes than the parameters refuse that. */
#ifndef FERRY_CONVERT_DEEPSPEED_PLAIN_OPTIMIZER_H
#define FERRY_CONVERT_DEEPSPEED_PLAIN_OPTIMIZER_H

#include "ckpt/checkpoint.h"
#include "formats/torch.h"

/* Adds the states of own tensors that `module` names, and the groups. file: its name, for stored
 * tensors; buffers: the list buffer_names. What cannot be read is states_unread(). */
MUST_CHECK enum status plain_optimizer_read(struct checkpoint *c, struct torch_file *t,
                                            const char *file, const struct value *module,
                                            const struct value *buffers,
                                            const struct value *optimizer, struct error *err);

#endif
