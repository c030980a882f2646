/* dist_states.h - optimizer states in torch_dist under their parameters' keys:
 *
 *   [chained_N.]optimizer.state.STATE.KEY
 *       of KEY's shape: fully_reshardable, and optimizers that are not
 *       distributed
 *   the same, flattened
 *       fully_sharded_model_space (Megatron-Core 0.8 to 0.15): of shape P + [n];
 *       leading coordinates select a fragment of KEY, of size KEY's shape / P,
 *       and the last axis has its n elements row-major
 *
 * STATE is exp_avg, exp_avg_sq and the like; the master weight is `param`, or
 * `fp32_param` in the flattened format and in formats of optimizers that are
 * not distributed. The latter have no master of an F32 weight, which is its
 * own.
 *
 * Sources: megatron/core/optimizer/distrib_optimizer.py, optimizer.py; at
 * core_v0.14.0 dist_checkpointing/strategies/resharding.py. */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_DIST_STATES_H
#define FERRY_CONVERT_MEGATRON_OPTIM_DIST_STATES_H

#include "ckpt/checkpoint.h"
#include "convert/megatron/hybrid.h"

/* Whether a key is the optimizer's, in any format. */
bool dist_key_is_optimizer(const char *key);
/* The number in the optimizer's key of its place in a chain; 0: none. */
unsigned dist_key_chain(const char *key);
/* Whether a key is of flat buffers (flat_states.h). */
bool dist_key_is_flat(const char *key);
/* Adds stored states of such keys as native tensors with a state, of their
 * parameter's key (GPTModel's; hybrid: NULL, or keys are HybridModel's) and
 * shape. ERR_CORRUPT, naming the key, if a flattened one
 * does not fit its parameter, or has more fragments than chunks: a writer makes
 * at least one each. */
MUST_CHECK enum status dist_states_add(struct checkpoint *c, const struct hybrid_stack *hybrid,
                                       struct error *err);
/* A state's key: "optimizer.state.exp_avg.KEY", in arena a. low_precision: a
 * master is `fp32_param`. chained: number of its optimizer in a chain, put
 * before the key; -1: none. */
const char *dist_state_key(struct arena *a, const char *state, const char *key, bool low_precision,
                           int chained);

#endif
