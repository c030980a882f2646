/* finite.h - how many of a tensor's elements are NaN or infinite. */
#ifndef FERRY_KERNELS_CPU_FINITE_H
#define FERRY_KERNELS_CPU_FINITE_H

#include <stddef.h>
#include <stdint.h>

#include "common/dtype.h"

/* How many of n elements are NaN or infinite; any alignment. 0 for types without such values, for
 * complex ones, and for those of less than 8 bits. Hardly slower than reading them. A cast (cast.h)
 * never makes such an element finite, so the count after a cast minus the count before it is the
 * number of elements that became infinite. */
uint64_t count_non_finite(enum dtype dtype, const void *elements, size_t n);

#endif
