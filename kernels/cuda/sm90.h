/* sm90.h - shared by kernels for compute capability 9.0 (*_sm90.cu): waits, and
 * matrices in shared memory that products of warpgroups read. sm90_ptx.h has
 * the instructions. */
#ifndef FERRY_KERNELS_CUDA_SM90_H
#define FERRY_KERNELS_CUDA_SM90_H

#include "kernels/cuda/sm90_ptx.h"

/* A longer wait is a bug of ours: the kernel fails instead of hanging. */
#define LONGEST_WAIT 2000000000u /* nanoseconds */

/* Waits until that phase is over. Reads the clock every 256 tries: few waits
 * take as many. */
__device__ inline void barrier_wait(barrier *b, uint32_t parity)
{
    uint64_t begin = 0;
    for (uint32_t tries = 1; !barrier_try(b, parity); tries++) {
        if (tries % 256 != 0) continue;
        if (begin == 0)
            begin = nanoseconds();
        else if (nanoseconds() - begin > LONGEST_WAIT)
            __trap();
    }
}

/* Matrices lie in shared memory as panels of 64 elements of bf16 or f16: rows
 * of 128 bytes. In row r the 16 bytes at i * 16 lie at (i ^ r % 8) * 16
 * (128-byte swizzling, as tensor maps do it). A panel begins at a multiple of
 * 1024 bytes and has a multiple of 8 rows. */
enum { PANEL = 64, PANEL_ROW_BYTES = 128, PANEL_ALIGNMENT = 1024 };

/* A matrix descriptor: each eight rows of a panel follow the previous eight.
 * next_panel: bytes from panel to panel, if the product reads several (the
 * leading dimension byte offset). */
__device__ inline uint64_t matrix_at(const void *shared, unsigned next_panel)
{
    const uint64_t swizzles_128_bytes = 1, eight_rows = 8 * PANEL_ROW_BYTES;
    return (shared_address(shared) & 0x3ffff) >> 4 | (uint64_t)(next_panel >> 4) << 16 |
           eight_rows >> 4 << 32 | swizzles_128_bytes << 62;
}

#endif
