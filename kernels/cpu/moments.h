/* moments.h - smallest, largest, mean and spread of a tensor's elements.
 *
 * NaN and infinities are counted, and left out of all other numbers. The mean and the sum of
 * squared distances from it are computed in f64 for blocks of a few thousand elements and joined
 * block by block (Chan, Golub and LeVeque, 1979), which keeps their digits for many elements and
 * for a mean far from 0. 64-bit integers are rounded to f64. */
#ifndef FERRY_KERNELS_CPU_MOMENTS_H
#define FERRY_KERNELS_CPU_MOMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/dtype.h"

struct moments {
    uint64_t nan, infinite, zeros; /* zeros: of either sign */
    uint64_t finite;               /* elements that the following numbers are of; may be 0 */
    double min, max, mean;
    double squares; /* the sum of (x - mean)^2 */
};

/* Whether moments_add() takes a dtype: not complex ones and those of less than 8 bits. */
bool moments_exist(enum dtype dtype);
/* Adds n elements, of any alignment. *m starts as zeros. Not much slower than reading them. */
void moments_add(struct moments *m, enum dtype dtype, const void *elements, size_t n);
/* Adds the elements of another one. */
void moments_join(struct moments *m, const struct moments *other);
/* The standard deviation of the finite elements, sqrt(squares / finite), as numpy.std computes it.
 */
double moments_std(const struct moments *m);

#endif
