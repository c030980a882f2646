/* median.h - median of some numbers, robust to outliers among times. */
#ifndef FERRY_COMMON_MEDIAN_H
#define FERRY_COMMON_MEDIAN_H

#include <stdlib.h>

static inline int median_compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the numbers. count: at least 1. */
static inline double median(double *numbers, size_t count)
{
    qsort(numbers, count, sizeof *numbers, median_compare);
    return count % 2 ? numbers[count / 2] : (numbers[count / 2 - 1] + numbers[count / 2]) / 2;
}

#endif
