/* products.h - c [m, n] = alpha op(a) op(b) + bias (+ c) by our own kernels, for what cuBLASLt is
 * slow at, or does not take. All add up in REAL and round once. */
#ifndef FERRY_KERNELS_CUDA_PRODUCTS_H
#define FERRY_KERNELS_CUDA_PRODUCTS_H

#include "kernels/cuda/cuda.h"

struct product {
    enum elem_type elem;      /* E */
    const void *a, *b, *bias; /* of E; bias [n] or NULL */
    void *c;                  /* of REAL, or of E */
    bool c_is_real, transpose_a, transpose_b, accumulate;
    size_t m, n, k;
    double alpha;
};

/* An a [m, k] of at most MAX_FEW_ROWS rows and a b that lies as [n, k], which is what a step of
 * decoding multiplies: every element of b is read once, and that is all the time it takes. b is
 * read early (launch_early): it is weights, which the kernel in front does not write. */
enum { MAX_FEW_ROWS = 4 };
bool few_rows_takes(const struct product &x);
template <typename E> enum status multiply_few_rows(const struct product &x, struct error *err);

/* The same of bf16 and f16 by tensor cores, of up to MAX_MMA_ROWS rows. */
enum { MAX_MMA_ROWS = 16 };
bool few_rows_mma_takes(const struct product &x);
enum status multiply_few_rows_mma(const struct product &x, struct error *err);

/* That of few_rows.cu of bf16 and f16 by few_rows_sm90.cu: whether it is there and can do this;
 * whether one like it came out as that of few_rows.cu on this GPU, which is tried once. */
bool few_rows_sm90_takes(const struct product &x);
bool few_rows_sm90_is_trusted(const struct product &x);
void few_rows_close(void);
void fused_close(void);

/* Any product, in plain tiles. */
template <typename E> enum status multiply_tiles(const struct product &x, struct error *err);

#endif
