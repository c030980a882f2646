/* rng_states.h - random number generator states for a checkpoint of a program
 * without any: kept ones, or as in Megatron-LM right after seeding.
 *
 * A list of one dict per pair of pipeline and tensor parallel ranks:
 *   random_rng_state    Python's random: (3, (624 words, position), None)
 *   np_rng_state        numpy's legacy generator:
 *                       ("MT19937", [624 words], position, 0, 0.0)
 *   torch_rng_state     torch's CPU generator, 5056 bytes:
 *                       at::CPUGeneratorImplState
 *   cuda_rng_state      the device's generator: seed and offset, 16 bytes; on a
 *                       host as torch's
 *   rng_tracker_states  the same for data-, model- and expert-parallel-rng
 *
 * Sources: megatron/training/initialize.py:_set_random_seed,
 * checkpointing.py:get_rng_state,
 * megatron/core/tensor_parallel/random.py:model_parallel_cuda_manual_seed;
 * CPython Modules/_randommodule.c; numpy/random/src/mt19937;
 * aten/src/ATen/CPUGeneratorImpl.cpp, aten/src/ATen/core/MT19937RNGEngine.h,
 * aten/src/ATen/cuda/CUDAGeneratorImpl.cpp. */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_RNG_STATES_H
#define FERRY_CONVERT_MEGATRON_OPTIM_RNG_STATES_H

#include "ckpt/checkpoint.h"

/* Ranks of the states. etp_rank: in the group that splits an expert. */
struct rng_place {
    uint64_t pp_rank, tp_rank, ep_rank, etp_rank;
};

/* Makes a tensor of U8 [count] of these bytes, which live as long as the
 * arena. */
typedef struct value *rng_tensor(void *context, const void *bytes, uint64_t count);

/* The list: the rank's states kept in made, or one new dict; in arena a. */
struct value *rng_states_value(const struct rng_made *made, const struct rng_place *at,
                               rng_tensor *tensor, void *context, struct arena *a);

/* Whether all kept states of a rank have device generators of the CPU
 * (device_is_host), or of a GPU: neither takes the other's. */
bool rng_states_fit(const struct rng_kept *kept, bool device_is_host);

#endif
