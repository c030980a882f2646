/* finite.h - counts NaN and infinite elements of a tensor. */
#ifndef FERRY_KERNELS_CPU_FINITE_H
#define FERRY_KERNELS_CPU_FINITE_H

#include <stddef.h>
#include <stdint.h>

#include "common/dtype.h"

/* Number of NaN and infinite elements among n; any alignment. 0 for types
 * without such values, complex types and types below 8 bits. Hardly slower than
 * reading. A cast (cast.h) never makes such an element finite, so the count
 * after a cast minus the count before is the number of elements that became
 * infinite. */
uint64_t count_non_finite(enum dtype dtype, const void *elements, size_t n);

#endif
