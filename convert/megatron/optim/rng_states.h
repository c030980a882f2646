/* rng_states.h - the states of random number generators for a checkpoint of a program that has
 * none: those that it kept, or as Megatron-LM has them right after it was seeded.
 *
 * Of each pair of pipeline and tensor parallel ranks a list of one dict:
 *   random_rng_state    Python's random: (3, (624 words, position), None)
 *   np_rng_state        numpy's legacy generator: ("MT19937", [624 words], position, 0, 0.0)
 *   torch_rng_state     torch's CPU generator, 5056 bytes: at::CPUGeneratorImplState
 *   cuda_rng_state      the device's generator: seed and offset, 16 bytes; on a host as torch's
 *   rng_tracker_states  the same of data-, model- and expert-parallel-rng
 *
 * Sources: megatron/training/initialize.py:_set_random_seed, checkpointing.py:get_rng_state,
 * megatron/core/tensor_parallel/random.py:model_parallel_cuda_manual_seed; CPython
 * Modules/_randommodule.c; numpy/random/src/mt19937; aten/src/ATen/CPUGeneratorImpl.cpp,
 * aten/src/ATen/core/MT19937RNGEngine.h, aten/src/ATen/cuda/CUDAGeneratorImpl.cpp. */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_RNG_STATES_H
#define FERRY_CONVERT_MEGATRON_OPTIM_RNG_STATES_H

#include "ckpt/checkpoint.h"

/* The ranks that have the states. etp_rank: in the group that splits an expert. */
struct rng_place {
    uint64_t pp_rank, tp_rank, ep_rank, etp_rank;
};

/* Makes a tensor of U8 [count] with these bytes, which stay as long as the arena. */
typedef struct value *rng_tensor(void *context, const void *bytes, uint64_t count);

/* The list: what made has kept for the rank, or one dict; in arena a. */
struct value *rng_states_value(const struct rng_made *made, const struct rng_place *at,
                               rng_tensor *tensor, void *context, struct arena *a);

/* Whether the device's generators are those of the CPU (device_is_host), or of a GPU, in all states
 * that were kept of a rank: neither takes the other's. */
bool rng_states_fit(const struct rng_kept *kept, bool device_is_host);

#endif
