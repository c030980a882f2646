/* remainders.h - masters that are stored as remainders.
 *
 * With --use-precision-aware-optimizer and weights of BF16, Transformer Engine
 * 2.1 and later keeps the lower 16 bits of a master alone
 * (kernels/cpu/remainders.h), and Megatron-Core 0.16 to 0.19 saves them as its
 * `param`:
 *
 *   dp_reshardable                         I16
 *   fully_reshardable, distrib_optim.pt    F32 with such numbers
 *
 * The latter are told by their values:
 *
 * - whole numbers in all parameters;
 * - no masters of their weights.
 *
 * Masters named fp32_param are whole (dist_states.h).
 *
 * Sources: megatron/core/optimizer/distrib_optimizer.py
 * (get_parameter_state_dp_zero), optimizer_config.py (store_param_remainders);
 * transformer_engine/pytorch/optimizers/fused_adam.py (get_unscaled_state). */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_REMAINDERS_H
#define FERRY_CONVERT_MEGATRON_OPTIM_REMAINDERS_H

#include "ckpt/checkpoint.h"

/* Whether a state of this name (NULL: a weight) and dtype is of remainders. */
bool remainders_are_stored(const char *state, enum dtype dtype);

/* Joins remainders with their weights (catalog.h), and notes it; call it when
 * states are logical tensors. States are unread if a weight is missing or not
 * of BF16. */
MUST_CHECK enum status remainders_join(struct checkpoint *c, struct error *err);

#endif
