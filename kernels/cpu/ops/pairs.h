/* pairs.h - products of bf16 by VDPBF16PS (AVX-512 BF16), which multiplies two
 * pairs of bf16 and adds both products to an f32.
 *
 * 1. A pair is two elements adjacent along k. The last of an odd k is paired
 *    with 0.
 * 2. The left operand is packed as rows of pairs, the right one as squares of
 *    SQUARE columns: [columns / SQUARE][pairs][SQUARE]. Missing columns are 0.
 * 3. Each sum runs over k in ascending order, independent of its surroundings.
 * 4. The instruction takes subnormal numbers (below 2^-126) as 0, and returns 0
 *    for them. That is below the rounding of sums to f32, unless the whole sum
 *    is about as small or the other factors are huge. PyTorch's bf16 products
 *    do the same. */
#ifndef FERRY_KERNELS_CPU_OPS_PAIRS_H
#define FERRY_KERNELS_CPU_OPS_PAIRS_H

#include <immintrin.h>

#include "kernels/cpu/ops/ops_internal.h"

enum { SQUARE = 16, PAIR_COLUMNS = 2 * SQUARE };

#define ALWAYS_INLINE __attribute__((always_inline)) static inline

/* Swaps x[i] lane j and x[j] lane i, where i and j differ in this bit only. */
ALWAYS_INLINE void transpose_bit(__m512i x[SQUARE], int bit)
{
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i other = _mm512_xor_si512(lanes, _mm512_set1_epi32(bit));
    const __mmask16 odd = _mm512_test_epi32_mask(lanes, _mm512_set1_epi32(bit));
    const __m512i second = _mm512_set1_epi32(SQUARE); /* lanes of the second operand */
    const __m512i low = _mm512_mask_add_epi32(lanes, odd, other, second);
    const __m512i high = _mm512_mask_add_epi32(other, odd, lanes, second);
#pragma GCC unroll 16
    for (int i = 0; i < SQUARE; i++) {
        if (i & bit) continue;
        const __m512i a = x[i], b = x[i + bit];
        x[i] = _mm512_permutex2var_epi32(a, low, b);
        x[i + bit] = _mm512_permutex2var_epi32(a, high, b);
    }
}

ALWAYS_INLINE void transpose(__m512i x[SQUARE])
{
    transpose_bit(x, 1);
    transpose_bit(x, 2);
    transpose_bit(x, 4);
    transpose_bit(x, 8);
}

/* The first n of 2 * SQUARE elements, at most all; n is not 0. */
ALWAYS_INLINE __mmask32 mask_of(size_t n)
{
    return UINT32_MAX >> (2 * SQUARE - min_size(n, 2 * SQUARE));
}

/* x[i] becomes the pairs of row i, along which k runs. */
ALWAYS_INLINE void load_along(__m512i x[SQUARE], const elem *from, size_t stride, size_t rows,
                              size_t k)
{
    const __mmask32 present = mask_of(k);
#pragma GCC unroll 16
    for (size_t i = 0; i < SQUARE; i++)
        x[i] = _mm512_maskz_loadu_epi16(i < rows ? present : 0, from + i * stride);
}

/* x[i] becomes pair i of each column, down which k runs. */
ALWAYS_INLINE void load_across(__m512i x[SQUARE], const elem *from, size_t stride, size_t columns,
                               size_t k)
{
    const __mmask16 present = (__mmask16)(UINT16_MAX >> (SQUARE - min_size(columns, SQUARE)));
#pragma GCC unroll 16
    for (size_t i = 0; i < SQUARE; i++) {
        const __mmask16 first = 2 * i < k ? present : 0, second = 2 * i + 1 < k ? present : 0;
        const __m256i low = _mm256_maskz_loadu_epi16(first, from + 2 * i * stride);
        const __m256i high = _mm256_maskz_loadu_epi16(second, from + (2 * i + 1) * stride);
        x[i] = _mm512_or_si512(_mm512_cvtepu16_epi32(low),
                               _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
    }
}

ALWAYS_INLINE void store_square(uint32_t *to, size_t stride, const __m512i x[SQUARE])
{
#pragma GCC unroll 16
    for (size_t i = 0; i < SQUARE; i++)
        _mm512_storeu_si512(to + i * stride, x[i]);
}

/* A row of the left operand, along which k runs. Writes whole squares. */
static inline void copy_pairs(uint32_t *to, const elem *from, size_t k)
{
    for (size_t l = 0; l < k; l += 2 * SQUARE)
        _mm512_storeu_si512(to + l / 2, _mm512_maskz_loadu_epi16(mask_of(k - l), from + l));
}

/* Rows of the left operand, from columns down which k runs. Writes
 * whole squares. */
static inline void pack_left(uint32_t *to, size_t to_stride, const elem *from, size_t stride,
                             size_t rows, size_t k)
{
    __m512i x[SQUARE];
    for (size_t i = 0; i < rows; i += SQUARE)
        for (size_t l = 0; l < k; l += 2 * SQUARE) {
            load_across(x, from + l * stride + i, stride, rows - i, k - l);
            transpose(x);
            store_square(to + i * to_stride + l / 2, to_stride, x);
        }
}

/* The right operand. k runs down its columns, or along them if transposed.
 * Writes whole squares, to_stride apart. */
static inline void pack_right(uint32_t *to, size_t to_stride, const elem *from, size_t stride,
                              bool transposed, size_t columns, size_t k)
{
    __m512i x[SQUARE];
    for (size_t j = 0; j < columns; j += SQUARE)
        for (size_t l = 0; l < k; l += 2 * SQUARE) {
            if (transposed) {
                load_along(x, from + j * stride + l, stride, columns - j, k - l);
                transpose(x);
            } else {
                load_across(x, from + l * stride + j, stride, columns - j, k - l);
            }
            store_square(to + j / SQUARE * to_stride + l / 2 * SQUARE, SQUARE, x);
        }
}

ALWAYS_INLINE __m512bh load_pairs(const uint32_t *from)
{
    return (__m512bh)_mm512_loadu_si512(from);
}

enum { MAX_PAIR_ROWS = 14 }; /* two vectors each: 28 of the 32 registers */

/* c [rows, PAIR_COLUMNS] += a b over `pairs` pairs. Inlined with constant
 * `rows`: otherwise sums would leave the registers. */
ALWAYS_INLINE void multiply_pairs(float *c, size_t ldc, const uint32_t *a, size_t lda,
                                  const uint32_t *b, size_t ldb, size_t rows, size_t pairs)
{
    __m512 left[MAX_PAIR_ROWS], right[MAX_PAIR_ROWS];
#pragma GCC unroll 14
    for (size_t i = 0; i < rows; i++) {
        left[i] = _mm512_loadu_ps(c + i * ldc);
        right[i] = _mm512_loadu_ps(c + i * ldc + SQUARE);
    }
    for (size_t l = 0; l < pairs; l++) {
        const __m512bh b_left = load_pairs(b + l * SQUARE),
                       b_right = load_pairs(b + ldb + l * SQUARE);
#pragma GCC unroll 14
        for (size_t i = 0; i < rows; i++) {
            const __m512bh a_i = (__m512bh)_mm512_set1_epi32((int)a[i * lda + l]);
            left[i] = _mm512_dpbf16_ps(left[i], a_i, b_left);
            right[i] = _mm512_dpbf16_ps(right[i], a_i, b_right);
        }
    }
#pragma GCC unroll 14
    for (size_t i = 0; i < rows; i++) {
        _mm512_storeu_ps(c + i * ldc, left[i]);
        _mm512_storeu_ps(c + i * ldc + SQUARE, right[i]);
    }
}

#endif
