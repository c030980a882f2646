/* checked.h - arithmetic on sizes from files. Functions that return bool return
 * false on overflow. */
#ifndef FERRY_COMMON_CHECKED_H
#define FERRY_COMMON_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool add_u64(uint64_t a, uint64_t b, uint64_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}

static inline bool mul_u64(uint64_t a, uint64_t b, uint64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}

/* The product of shape[0..num_dims), 1 for no dimension. Multiplies left to
 * right and does not stop at 0, as the safetensors reference: [2^63, 4, 0]
 * overflows, [0, 2^63, 4] does not. */
static inline bool shape_numel(const uint64_t *shape, unsigned num_dims, uint64_t *numel)
{
    *numel = 1;
    for (unsigned d = 0; d < num_dims; d++)
        if (!mul_u64(*numel, shape[d], numel)) return false;
    return true;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The greatest common divisor; gcd_u64(a, 0) is a. */
static inline uint64_t gcd_u64(uint64_t a, uint64_t b)
{
    while (b) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t ceil_div_u64(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

#endif
