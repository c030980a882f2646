/* few_rows.h - c [m, n] = alpha a w^T + bias for an a [m, k] of few rows, which is what a step of
 * decoding multiplies: every element of w [n, k] is read once, and that is all the time it takes.
 */
#ifndef FERRY_KERNELS_CUDA_FEW_ROWS_H
#define FERRY_KERNELS_CUDA_FEW_ROWS_H

#include "kernels/cuda/cuda.h"

enum { MOST_FEW_ROWS = 4 };

struct few_rows {
    const void *a, *w, *bias; /* bias [n] or NULL */
    void *c;                  /* of REAL, or of E */
    bool c_is_real;
    size_t m, n, k; /* m at most MOST_FEW_ROWS */
    double alpha;
};

template <typename E> enum status multiply_few_rows(const struct few_rows &x, struct error *err);

#endif
