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
 * of the model's state dict (convert/numbered.h). Or (FP16_Optimizer) each group
 * is one vector, and i counts groups:
 *
 *   {optimizer_state_dict: {state: {i: {step, exp_avg: vector, ...}}, ...},
 *    fp32_groups_flat: [vector, ...]}
 *
 * Its parameters follow one another in the model's order, without padding. No
 * file says which they are: masters, rounded, must be their weights. */
#ifndef FERRY_CONVERT_DEEPSPEED_PLAIN_OPTIMIZER_H
#define FERRY_CONVERT_DEEPSPEED_PLAIN_OPTIMIZER_H

#include "ckpt/checkpoint.h"
#include "convert/deepspeed/tp_params.h"
#include "formats/torch.h"

/* The optimizer of a model file. */
struct plain_optimizer {
    struct torch_file *t;
    const char *file; /* its name, for stored tensors */
    const struct value *module, *optimizer;
    const struct value *buffers; /* the list buffer_names */
    const struct tp_rank *split; /* whose parts they are; NULL: all of each parameter */
};

/* Adds states of native tensors in `module`, and (of rank 0) the groups. Calls
 * states_unread() for what cannot be read. */
MUST_CHECK enum status plain_optimizer_read(struct checkpoint *c, const struct plain_optimizer *p,
                                            struct error *err);

#endif
