/* cast.h - casts between floating-point types.
 *
 * F16, BF16, F32 and F64 in all pairs, rounded to nearest, ties to even; F64 to
 * a 16-bit type goes through F32, as in PyTorch. NaN stays NaN (quiet, with its
 * sign); values out of range become infinite. */
#ifndef FERRY_KERNELS_CPU_CAST_H
#define FERRY_KERNELS_CPU_CAST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/dtype.h"

/* Whether cast_elements() can cast the pair; equal types can. */
bool cast_exists(enum dtype to, enum dtype from);

/* to[i] = from[i] for n elements. Returns how many changed value (NaN to NaN
 * does not count). */
uint64_t cast_elements(void *to, enum dtype to_dtype, const void *from, enum dtype from_dtype,
                       size_t n);

/* How many of n elements cast_elements() turned from finite to infinite. */
uint64_t cast_overflows(const void *to, enum dtype to_dtype, const void *from,
                        enum dtype from_dtype, size_t n);

#endif
