/* moments.h - minimum, maximum, mean and deviation of a tensor's elements.
 *
 * NaN and infinities are counted, and excluded from all other numbers. Mean and
 * sum of squared distances are computed in f64 for blocks of a few thousand
 * elements and joined block by block (Chan, Golub and LeVeque, 1979): this
 * keeps their digits for many elements and for a mean far from 0. 64-bit
 * integers are rounded to f64. */
#ifndef FERRY_KERNELS_CPU_MOMENTS_H
#define FERRY_KERNELS_CPU_MOMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/dtype.h"

struct moments {
    uint64_t nan, infinite, zeros; /* zeros of either sign */
    uint64_t finite;               /* elements counted in the numbers below; may be 0 */
    double min, max, mean;
    double squares; /* the sum of (x - mean)^2 */
};

/* Whether moments_add() supports a dtype: not complex, not below 8 bits. */
bool moments_exist(enum dtype dtype);
/* Adds n elements, of any alignment. *m starts zeroed. Little slower
 * than reading. */
void moments_add(struct moments *m, enum dtype dtype, const void *elements, size_t n);
/* Adds another part's elements. */
void moments_join(struct moments *m, const struct moments *other);
/* Standard deviation of the finite elements, sqrt(squares / finite),
 * as numpy.std. */
double moments_std(const struct moments *m);

#endif
