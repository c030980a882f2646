/* plain_optimizer.h - reads a torch.optim state dict in the model's file, as
 * without ZeRO:
 *
 *   {state: {i: {step, exp_avg, exp_avg_sq}},
 *    param_groups: [{lr, ..., params: [i, ...]}, ...]}
 *
 * or, in bf16 and fp16 (FP16_UnfusedOptimizer), with masters:
 *
 *   {optimizer_state_dict: the same, fp32_groups: [[tensor, ...], ...]}
 *
 * i counts the parameters of all groups. No file names them; their order is that
 * of the model's state dict (convert/numbered.h). */
#ifndef FERRY_CONVERT_DEEPSPEED_PLAIN_OPTIMIZER_H
#define FERRY_CONVERT_DEEPSPEED_PLAIN_OPTIMIZER_H

#include "ckpt/checkpoint.h"
#include "formats/torch.h"

/* Adds states of native tensors in `module`, and the groups. file: its name,
 * for stored tensors; buffers: the list buffer_names. Calls states_unread() for
 * what cannot be read. */
MUST_CHECK enum status plain_optimizer_read(struct checkpoint *c, struct torch_file *t,
                                            const char *file, const struct value *module,
                                            const struct value *buffers,
                                            const struct value *optimizer, struct error *err);

#endif
