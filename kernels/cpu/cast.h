/* cast.h - casts between floating-point types.
 *
 * F16, BF16, F32 and F64 in all pairs. Rounding is to nearest, ties to even; F64 to a 16-bit type
 * goes through F32, as PyTorch does it. NaN stays NaN (the quiet one with the sign kept), values
 * out of range become infinite. */
#ifndef FERRY_KERNELS_CPU_CAST_H
#define FERRY_KERNELS_CPU_CAST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/dtype.h"

/* Whether cast_elements() can cast the pair; equal types can. */
bool cast_exists(enum dtype to, enum dtype from);

/* to[i] = from[i] for n elements; returns how many changed their value (NaN to NaN is no change).
 */
uint64_t cast_elements(void *to, enum dtype to_dtype, const void *from, enum dtype from_dtype,
                       size_t n);

/* How many of n finite elements cast_elements() has made infinite. */
uint64_t cast_overflows(const void *to, enum dtype to_dtype, const void *from,
                        enum dtype from_dtype, size_t n);

#endif
