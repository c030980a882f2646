/* mma.h - kernels/cuda/mma.h for the host, after the fragment layouts of the
 * PTX ISA. */
#ifndef FERRY_KERNELS_CUDA_MMA_H
#define FERRY_KERNELS_CUDA_MMA_H

#include "kernels/cuda/cuda.h"

enum { MMA_ELEM_BYTES = 2 }; /* of E */

struct emulated_fragments {
    uint32_t a[4], b[2];
};

template <typename E> static inline float emulated_half(uint32_t two, unsigned high)
{
    return to_real(E{(uint16_t)(high ? two >> 16 : two)});
}

template <typename E>
static inline float emulated_a(const char (*all)[LANE_BYTES], unsigned row, unsigned k)
{
    const auto f = emulated_lane<emulated_fragments>(all, row % 8 * 4 + k % 8 / 2);
    return emulated_half<E>(f.a[row / 8 + k / 8 * 2], k % 2);
}

template <typename E>
static inline float emulated_b(const char (*all)[LANE_BYTES], unsigned k, unsigned column)
{
    const auto f = emulated_lane<emulated_fragments>(all, column * 4 + k % 8 / 2);
    return emulated_half<E>(f.b[k / 8], k % 2);
}

template <typename E>
static inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const emulated_fragments own = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const char(*all)[LANE_BYTES] = emulated_exchange(&own, sizeof own);
    const unsigned lane = threadIdx.x % 32;
    float rows[2][16], columns[2][16];
    for (unsigned i = 0; i < 2; i++)
        for (unsigned k = 0; k < 16; k++) {
            rows[i][k] = emulated_a<E>(all, lane / 4 + i * 8, k);
            columns[i][k] = emulated_b<E>(all, k, lane % 4 * 2 + i);
        }
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 16; k++)
            c[i] += rows[i / 2][k] * columns[i % 2][k];
}

void emulated_require(bool holds, const char *what);

/* Matrices have elements of 16 bits, of either type. */
static inline const uint16_t *emulated_row(const char (*all)[LANE_BYTES], unsigned matrix,
                                           unsigned row)
{
    const uint16_t *at = emulated_lane<const uint16_t *>(all, matrix * 8 + row);
    emulated_require((uintptr_t)at % 16 == 0, "ldmatrix: a row is not aligned");
    return at;
}

static inline uint32_t emulated_pair(uint16_t low, uint16_t high)
{
    return low | (uint32_t)high << 16;
}

static inline void load_matrices(uint32_t (&r)[4], const void *row)
{
    const char(*all)[LANE_BYTES] = emulated_exchange(&row, sizeof row);
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (unsigned i = 0; i < 4; i++) {
        const uint16_t *at = emulated_row(all, i, g);
        r[i] = emulated_pair(at[2 * t], at[2 * t + 1]);
    }
}

static inline void load_matrices_transposed(uint32_t (&r)[4], const void *row)
{
    const char(*all)[LANE_BYTES] = emulated_exchange(&row, sizeof row);
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (unsigned i = 0; i < 4; i++)
        r[i] = emulated_pair(emulated_row(all, i, 2 * t)[g], emulated_row(all, i, 2 * t + 1)[g]);
}

void copy_16_bytes(void *shared, const void *global, bool there);
void copies_commit();
void emulated_copies_wait(size_t pending);

template <int pending> static inline void copies_wait()
{
    emulated_copies_wait(pending);
}

template <typename E> static inline uint32_t pack_two(float low, float high)
{
    return emulated_pair(from_real<E>(low).bits, from_real<E>(high).bits);
}

static inline float fast_exp2(float x)
{
    return exp2f(x);
}

#endif
