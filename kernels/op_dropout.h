/* op_dropout.h - which elements dropout keeps, as a function of numbers alone:
 * the same on every device and layout, in backward and in recomputed
 * activations.
 *
 * Hashes are splitmix64's output function (Steele, Lea, Flood 2014). */
#ifndef FERRY_KERNELS_OP_DROPOUT_H
#define FERRY_KERNELS_OP_DROPOUT_H

#include <stdint.h>

#include "kernels/op_list.h"

#ifdef __CUDACC__
#define DROPOUT_INLINE __host__ __device__ static inline
#else
#define DROPOUT_INLINE static inline
#endif

#define DROPOUT_GOLDEN 0x9E3779B97F4A7C15u

DROPOUT_INLINE uint64_t dropout_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Start of a token's numbers. words: the token's two words of
 * operand `tokens`. */
DROPOUT_INLINE uint64_t dropout_token(const struct dropout *d, const int32_t *words)
{
    const uint64_t token = (uint64_t)(uint32_t)words[1] << 32 | (uint32_t)words[0];
    const uint64_t place = dropout_mix(d->seed + (d->stream + 1) * DROPOUT_GOLDEN);
    return dropout_mix(place ^ dropout_mix(token + DROPOUT_GOLDEN));
}

/* Start of the numbers of one of its heads. */
DROPOUT_INLINE uint64_t dropout_head(uint64_t token, uint64_t head)
{
    return dropout_mix(token + (head + 1) * DROPOUT_GOLDEN);
}

/* Elements with a hash below this are dropped. */
DROPOUT_INLINE uint32_t dropout_limit(const struct dropout *d)
{
    return (uint32_t)(d->probability * 4294967296.0);
}

/* Whether element `index` (a column, or a key's position) of a token or head is
 * kept. Kept elements are multiplied by 1 / (1 - probability), others by 0. */
DROPOUT_INLINE int dropout_keeps(uint64_t begin, uint64_t index, uint32_t limit)
{
    return (uint32_t)(dropout_mix(begin + index * DROPOUT_GOLDEN) >> 32) >= limit;
}

#endif
