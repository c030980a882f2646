/* mma.h - the instructions of tensor cores (PTX ISA, mma.m16n8k16) and of
 * copies into shared memory, sm_80 and newer. E is bf16 or f16; products add up
 * in f32.
 *
 * In a warp let g = lane / 4 and t = lane % 4. Each lane holds
 *   of A [16, 16]: a[0] (g, 2t..2t+1), a[1] (g + 8, ..), a[2] (g, 2t + 8..), a[3] (g + 8, 2t + 8..)
 *   of B [16, 8]:  b[0] (2t..2t+1, g), b[1] (2t + 8.., g)
 *   of C [16, 8]:  c[0], c[1] (g, 2t..2t+1), c[2], c[3] (g + 8, 2t..2t+1)
 * as (row, column), two E in a register, the lower one first. ldmatrix loads
 * four matrices of 8 x 8 elements: lane i gives the address of row i % 8 of
 * matrix i / 8, and of each matrix gets (g, 2t..2t+1); with .trans
 * (2t..2t+1, g). */
#ifndef FERRY_KERNELS_CUDA_MMA_H
#define FERRY_KERNELS_CUDA_MMA_H

#include "kernels/cuda/cuda.h"

enum { MMA_ELEM_BYTES = 2 }; /* of E */

/* c += a b */
template <typename E>
__device__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

/* Two E in a register, `low` in its lower half. */
template <typename E> __device__ uint32_t pack_two(float low, float high);

#define MMA_TYPE(E, name)                                                                          \
    template <>                                                                                    \
    __device__ inline void mma<E>(float(&c)[4], const uint32_t(&a)[4], uint32_t b0, uint32_t b1)   \
    {                                                                                              \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 "                \
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"             \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));              \
    }                                                                                              \
    template <> __device__ inline uint32_t pack_two<E>(float low, float high)                      \
    {                                                                                              \
        uint32_t packed;                                                                           \
        asm("cvt.rn." name "x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));             \
        return packed;                                                                             \
    }
MMA_TYPE(bf16, "bf16")
MMA_TYPE(f16, "f16")
#undef MMA_TYPE

__device__ inline void load_matrices(uint32_t (&r)[4], const void *row)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ inline void load_matrices_transposed(uint32_t (&r)[4], const void *row)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Copies 16 bytes into shared memory asynchronously, until copies_wait; zeros,
 * without a read, unless `there`. */
__device__ inline void copy_16_bytes(void *shared, const void *global, bool there)
{
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    const int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
                 : "memory");
}

/* Ends a group of copies. */
__device__ inline void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until all but the last `pending` groups of this thread have arrived. */
template <int pending> __device__ inline void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/* 2^x; 0 if subnormal, for which exp2f() spends three more instructions. */
__device__ inline float fast_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
