/* moments.h - smallest, largest, mean and spread of a tensor's elements.
 *
 * NaN and infinities are counted, and are in none of the other numbers. The mean and the sum of
 * squared distances from it are kept in f64 for blocks of a few thousand elements, and joined block
 * by block (Chan, Golub and LeVeque, 1979): neither loses digits by the number of elements, nor
 * where the mean is far from 0. 64-bit integers are taken as f64. */
#ifndef FERRY_KERNELS_CPU_MOMENTS_H
#define FERRY_KERNELS_CPU_MOMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/dtype.h"

struct moments {
    uint64_t nan, infinite, zeros; /* zeros: of either sign */
    uint64_t finite;               /* elements that the rest is of; 0: there are none */
    double min, max, mean;
    double squares; /* the sum of (x - mean)^2 */
};

/* Whether moments_add takes elements of a dtype: all but complex ones and those below 8 bits. */
bool moments_exist(enum dtype dtype);
/* Adds n elements, of any alignment. *m is zeroed before the first. Not much slower than reading
 * them. */
void moments_add(struct moments *m, enum dtype dtype, const void *elements, size_t n);
/* Adds those that others were made of. */
void moments_join(struct moments *m, const struct moments *other);
/* The standard deviation of the finite elements, sqrt(squares / finite), as numpy.std has it. */
double moments_std(const struct moments *m);

#endif
