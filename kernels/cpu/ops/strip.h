/* strip.h - products of a strip of few rows with a packed matrix, in
 * vector registers. */
#ifndef FERRY_KERNELS_CPU_OPS_STRIP_H
#define FERRY_KERNELS_CPU_OPS_STRIP_H

#include "kernels/cpu/ops/real.h"

#ifdef __AVX512F__
#define VECTOR_BYTES 64
#elif defined __AVX2__
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
typedef real vector __attribute__((vector_size(VECTOR_BYTES)));

/* Six rows of two vectors take twelve of sixteen registers (AVX-512 has
 * more, but more rows are not faster). Matrices have columns for whole pairs
 * of vectors. */
enum { STRIP_ROWS = 6, LANES = VECTOR_BYTES / sizeof(real), STRIP_COLUMNS = 2 * LANES };

static inline vector load_vector(const real *from)
{
    vector v;
    memcpy(&v, from, sizeof v);
    return v;
}

static inline void store_vector(real *to, vector v)
{
    memcpy(to, &v, sizeof v);
}

/* c [rows, STRIP_COLUMNS] += a [rows, k] b [k, STRIP_COLUMNS]. Rows are ldb,
 * ldc apart; element (i, l) of a lies at i * a_row + l * a_step. Inlined with
 * constant `rows` and one constant stride of a. */
__attribute__((always_inline)) static inline void
multiply_columns(real *c, size_t ldc, const real *a, size_t a_row, size_t a_step, const real *b,
                 size_t ldb, size_t rows, size_t k)
{
    vector left[STRIP_ROWS], right[STRIP_ROWS];
#pragma GCC unroll 6
    for (size_t i = 0; i < rows; i++) {
        left[i] = load_vector(c + i * ldc);
        right[i] = load_vector(c + i * ldc + LANES);
    }
    for (size_t l = 0; l < k; l++) {
        const vector b_left = load_vector(b + l * ldb), b_right = load_vector(b + l * ldb + LANES);
#pragma GCC unroll 6
        for (size_t i = 0; i < rows; i++) {
            left[i] += a[i * a_row + l * a_step] * b_left;
            right[i] += a[i * a_row + l * a_step] * b_right;
        }
    }
#pragma GCC unroll 6
    for (size_t i = 0; i < rows; i++) {
        store_vector(c + i * ldc, left[i]);
        store_vector(c + i * ldc + LANES, right[i]);
    }
}

/* The same over `columns`, a multiple of STRIP_COLUMNS, for up to
 * STRIP_ROWS rows. */
static inline void multiply_strip(real *c, size_t ldc, const real *a, size_t lda, const real *b,
                                  size_t ldb, size_t rows, size_t columns, size_t k)
{
    if (rows == STRIP_ROWS)
        for (size_t j = 0; j < columns; j += STRIP_COLUMNS)
            multiply_columns(c + j, ldc, a, lda, 1, b + j, ldb, STRIP_ROWS, k);
    else
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < columns; j += STRIP_COLUMNS)
                multiply_columns(c + i * ldc + j, ldc, a + i * lda, lda, 1, b + j, ldb, 1, k);
}

/* The same for an a of [k, rows], rows lda apart. */
static inline void multiply_strip_across(real *c, size_t ldc, const real *a, size_t lda,
                                         const real *b, size_t ldb, size_t rows, size_t columns,
                                         size_t k)
{
    if (rows == STRIP_ROWS)
        for (size_t j = 0; j < columns; j += STRIP_COLUMNS)
            multiply_columns(c + j, ldc, a, 1, lda, b + j, ldb, STRIP_ROWS, k);
    else
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < columns; j += STRIP_COLUMNS)
                multiply_columns(c + i * ldc + j, ldc, a + i, 1, lda, b + j, ldb, 1, k);
}

#endif
