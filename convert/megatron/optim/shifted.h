/* shifted.h - states that Megatron-Core saved under other parameters.
 *
 * Up to 0.19, fully_reshardable
 *
 * - joins the buckets of a buffer without the padding at their ends;
 * - cuts a parameter's part out where it lies with padding (buckets.h: start
 *   instead of start_unpadded).
 *
 * So states behind the first padding belong to other elements, or are zeros.
 * Buffers have several buckets
 *
 * - with overlap_grad_reduce;
 * - where embeddings are tied over several pipeline stages.
 *
 * Sources: megatron/core/optimizer/distrib_optimizer.py
 * (get_parameter_state_dp_zero, sharded_param_state_fully_reshardable) of
 * core_v0.16.1 to core_v0.19.2, and of d98e8a64. */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_SHIFTED_H
#define FERRY_CONVERT_MEGATRON_OPTIM_SHIFTED_H

#include "ckpt/checkpoint.h"

/* Sets c->training.optimizer.shifted and notes it, if states are in
 * fully_reshardable, args give buckets with padding between them, and a sample
 * of weights are not their rounded masters, or masters are remainders, which
 * tell nothing. Call it when states are complete. */
MUST_CHECK enum status shifted_find(struct checkpoint *c, struct error *err);

#endif
