/* dist_states.h - optimizer states in torch_dist that are stored under their parameters' keys:
 *
 *   [chained_N.]optimizer.state.STATE.KEY   of the shape of KEY: fully_reshardable, and optimizers
 *                                           that are not distributed
 *   the same, flattened                     fully_sharded_model_space (Megatron-Core 0.8 to 0.15):
 * of shape P + [n]; the leading coordinates select a fragment of KEY, of size KEY's shape / P, and
 * the last axis has its n elements row-major
 *
 * STATE is exp_avg, exp_avg_sq and the like; the master weight is `param`, or `fp32_param` in the
 * formats of optimizers that are not distributed and of the flattened one. The former have none of
 * a weight in F32, which is its own.
 *
 * Sources: megatron/core/optimizer/distrib_optimizer.py, optimizer.py; at core_v0.14.0
 * dist_checkpointing/strategies/resharding.py. */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_DIST_STATES_H
#define FERRY_CONVERT_MEGATRON_OPTIM_DIST_STATES_H

#include "ckpt/checkpoint.h"

/* Whether a key is of the optimizer, in any of its formats. */
bool dist_key_is_optimizer(const char *key);
/* Whether it is of flat buffers (flat_states.h). */
bool dist_key_is_flat(const char *key);
/* Adds the stored states of such keys as own tensors with a state, of their parameter's key and
 * shape. ERR_CORRUPT, naming the key, if a flattened one does not fit its parameter, or has more
 * fragments than a file that is written so could have: one chunk for each at least. */
MUST_CHECK enum status dist_states_add(struct checkpoint *c, struct error *err);
/* The key of a state: "optimizer.state.exp_avg.KEY". low_precision: a master is `fp32_param`.
 * chained: the number of its optimizer in a chain, which is in front of the key; -1: it is not. In
 * arena a. */
const char *dist_state_key(struct arena *a, const char *state, const char *key, bool low_precision,
                           int chained);

#endif
