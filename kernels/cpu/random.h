/* random.h - random numbers as a function of stream and index only, so that any
 * thread can make any part of a synthetic tensor. */
#ifndef FERRY_KERNELS_CPU_RANDOM_H
#define FERRY_KERNELS_CPU_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#include "common/dtype.h"

/* The stream of one tensor of a model. */
uint32_t random_stream(uint64_t seed, const char *name);

/* Elements [first, first + count) of a stream as F16, BF16, F32 or F64:
 * uniform about `mean`, standard deviation 0.02, as models are initialised
 * (norms about 1). */
void random_elements(void *to, enum dtype dtype, uint32_t stream, float mean, uint64_t first,
                     size_t count);
/* The squares of these elements about 0. */
void random_squares(void *to, enum dtype dtype, uint32_t stream, uint64_t first, size_t count);

/* Number `index` of a seed, uniform in [0, 1): a multiple of 2^-53. */
double random_uniform(uint64_t seed, uint64_t index);

/* The seed of one tensor's numbers. */
uint64_t random_seed_of(uint64_t seed, const char *name);
/* Number `index` of a seed, standard normal (Box and Muller 1958), from uniform
 * numbers 2 index and 2 index + 1. */
double random_normal(uint64_t seed, uint64_t index);

#endif
