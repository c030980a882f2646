/* amx.h - products of bf16 by AMX: TDPBF16PS adds the product of two tiles to a
 * third. A tile is 16 rows of 64 bytes: 16 rows of 16 pairs of the left
 * operand, 16 pairs of 16 columns of the right one, 16 rows of 16 floats of c.
 * Layouts, order of sums and handling of subnormal numbers are those of
 * pairs.h. */
#ifndef FERRY_KERNELS_CPU_OPS_AMX_H
#define FERRY_KERNELS_CPU_OPS_AMX_H

#include "kernels/cpu/ops/pairs.h"

enum { TILE_BYTES = 64, SQUARES_ROWS = 2 * SQUARE };

/* Operand of LDTILECFG: Intel's Software Developer's Manual, volume 1, 18.2. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* A thread's tiles exist from begin_tiles to end_tiles. */
static inline void begin_tiles(void)
{
    _Alignas(64) struct tile_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = TILE_BYTES;
        config.rows[i] = SQUARE;
    }
    __asm__ volatile("" ::: "memory"); /* GCC's intrinsics do not declare their memory accesses */
    _tile_loadconfig(&config);
}

static inline void end_tiles(void)
{
    _tile_release();
}

/* c [SQUARES_ROWS, PAIR_COLUMNS] += a b over `pairs` pairs, a multiple of
 * SQUARE. Strides count elements. */
static inline void multiply_squares(float *c, size_t ldc, const uint32_t *a, size_t lda,
                                    const uint32_t *b, size_t ldb, size_t pairs)
{
    const size_t c_bytes = ldc * sizeof *c, a_bytes = lda * sizeof *a;
    float *lower = c + SQUARE * ldc;
    __asm__ volatile("" ::: "memory");
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + SQUARE, c_bytes);
    _tile_loadd(2, lower, c_bytes);
    _tile_loadd(3, lower + SQUARE, c_bytes);
    for (size_t l = 0; l < pairs; l += SQUARE) {
        _tile_loadd(4, a + l, a_bytes);
        _tile_loadd(5, a + SQUARE * lda + l, a_bytes);
        _tile_loadd(6, b + l * SQUARE, TILE_BYTES);
        _tile_loadd(7, b + ldb + l * SQUARE, TILE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_bytes);
    _tile_stored(1, c + SQUARE, c_bytes);
    _tile_stored(2, lower, c_bytes);
    _tile_stored(3, lower + SQUARE, c_bytes);
    __asm__ volatile("" ::: "memory");
}

#endif
