/* finite.h - how many of a tensor's elements are NaN or infinite. */
#ifndef FERRY_KERNELS_CPU_FINITE_H
#define FERRY_KERNELS_CPU_FINITE_H

#include <stddef.h>
#include <stdint.h>

#include "common/dtype.h"

/* Of n elements that are NaN or infinite, of any alignment; 0 of types that have neither, of
 * complex ones, and of those below 8 bits. Little slower than reading them. A cast makes nothing
 * finite that was not (cast.h), so that the difference between after and before it is what became
 * infinite. */
uint64_t count_non_finite(enum dtype dtype, const void *elements, size_t n);

#endif
