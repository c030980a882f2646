/* products.h - c [m, n] = alpha op(a) op(b) + bias (+ c) by our own kernels,
 * where cuBLASLt is slow or has no algorithm. All sum in REAL and round
 * once. */
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

/* An a [m, k] of at most MAX_FEW_ROWS rows and a b stored as [n, k], as in a
 * decoding step: each element of b is read once, which takes all the time. b
 * is read early (launch_early): it is weights, which the kernel before does
 * not write. */
enum { MAX_FEW_ROWS = 4 };
bool few_rows_takes(const struct product &x);
template <typename E> enum status multiply_few_rows(const struct product &x, struct error *err);

/* The same for bf16 and f16 on tensor cores, up to MAX_MMA_ROWS rows. */
enum { MAX_MMA_ROWS = 16 };
bool few_rows_mma_takes(const struct product &x);
enum status multiply_few_rows_mma(const struct product &x, struct error *err);

/* few_rows_sm90.cu, for bf16 and f16: whether it is available for this
 * product; whether its result agreed with few_rows.cu on this GPU, tried once
 * for each kind. */
bool few_rows_sm90_takes(const struct product &x);
bool few_rows_sm90_is_trusted(const struct product &x);
void few_rows_close(void);
void fused_close(void);

/* Any product, in plain tiles. */
template <typename E> enum status multiply_tiles(const struct product &x, struct error *err);
/* The same with a coded weight [n, k] in place of b. */
template <typename E>
enum status multiply_coded(const struct product &x, const struct operand &w, struct error *err);

#endif
