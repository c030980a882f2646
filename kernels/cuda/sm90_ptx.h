/* sm90_ptx.h - instructions of compute capability 9.0 (PTX ISA: mbarrier,
 * cp.async.bulk, wgmma), for *_sm90.cu alone.
 *
 * A bulk copy moves bytes from global to shared memory. One thread requests it,
 * no thread carries the bytes, and they count at a barrier in shared memory. A
 * barrier's phase is over when its arrivals have happened and all expected
 * bytes have come; then the next phase begins. Phases have parity 0, 1, 0, ..
 *
 * A warpgroup is four warps, the first with a number divisible by four. Its
 * products (wgmma) read shared memory, and run on while its threads do
 * other work. */
#ifndef FERRY_KERNELS_CUDA_SM90_PTX_H
#define FERRY_KERNELS_CUDA_SM90_PTX_H

#include <cuda.h>
#include <stdint.h>

#include "kernels/cuda/mma.h"

typedef uint64_t barrier;

__device__ inline uint32_t shared_address(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

/* A phase takes `arrivals` arrivals. Before other threads use it:
 * fence_copies() and a barrier of threads. */
__device__ inline void barrier_init(barrier *b, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals)
                 : "memory");
}

__device__ inline void barrier_arrive(barrier *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}

/* Arrives at a phase and makes it expect `bytes` bytes. */
__device__ inline void barrier_expect(barrier *b, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                 "r"(bytes)
                 : "memory");
}

/* Whether the phase of this parity is over, even if the next one is under way.
 * Waits for a time that the GPU chooses. */
__device__ inline bool barrier_try(barrier *b, uint32_t parity)
{
    uint32_t is_over;
    asm volatile("{\n\t"
                 ".reg .pred over;\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n\t"
                 "selp.u32 %0, 1, 0, over;\n\t"
                 "}"
                 : "=r"(is_over)
                 : "r"(shared_address(b)), "r"(parity)
                 : "memory");
    return is_over;
}

__device__ inline uint64_t nanoseconds()
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

/* Orders earlier accesses of threads to shared memory before those of copies
 * requested later. */
__device__ inline void fence_copies()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Policy for copy_bulk: the L2 cache evicts these bytes first. */
__device__ inline uint64_t read_once()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* Requests a copy. Both places are aligned to 16 bytes; bytes is a multiple
 * of 16. */
__device__ inline void copy_bulk(void *shared, const void *global, uint32_t bytes, barrier *b,
                                 uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(b)),
                 "l"(policy)
                 : "memory");
}

/* Requests a tile of a matrix in global memory, by the tensor map that the host
 * made and the kernel has as a __grid_constant__ parameter. The tile begins at
 * this column and row; elements beyond the matrix are 0, and count as bytes. */
__device__ inline void copy_tile(void *shared, const CUtensorMap *map, int column, int row,
                                 barrier *b)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(shared)),
                 "l"(map), "r"(column), "r"(row), "r"(shared_address(b))
                 : "memory");
}

/* ---- warpgroups ---- */

enum { WARPGROUP = 128 }; /* threads */

/* A barrier of a warpgroup's threads; with several warpgroups, each has a
 * number from 1 to 15. If the compiler does not know the number, a block takes
 * all 16 barriers of a multiprocessor. */
__device__ inline void sync_warpgroup(unsigned number)
{
    asm volatile("bar.sync %0, 128;" ::"r"(number) : "memory");
}

/* Every warp of a warpgroup calls it: sets its threads' registers, a
 * multiple of 8. For more registers it waits until other warpgroups have
 * given up theirs. */
template <int registers> __device__ inline void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers> __device__ inline void give_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/* ---- products of warpgroups ---- */

/* Separates accesses of threads to registers from products that read or
 * write them. */
__device__ inline void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Ends a group of products. */
__device__ inline void products_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until all but the last `pending` groups of this warp are done. */
template <int pending> __device__ inline void products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/* Until here the compiler leaves a product's results in place: call it
 * after products_wait(). */
template <int N> __device__ inline void products_made(float (&c)[N][4])
{
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            asm volatile("" : "+f"(c[j][e])::"memory");
}

/* In a warpgroup, warp w has rows 16 w .. 16 w + 15 of a and c, as in mma.h:
 * c[j] columns 8 j .. 8 j + 7. N is 64 or 128. Descriptors are those of sm90.h.
 *
 *   multiply_rows     c = a b^T, or c += if adds; a [64, 16], b [N, 16]
 *   multiply_weights  c += a b; a [64, 16] in registers, b [16, N] in N / 64
 *                     panels */
template <typename E, int N>
__device__ void multiply_rows(float (&c)[N / 8][4], uint64_t a, uint64_t b, bool adds);
template <typename E, int N>
__device__ void multiply_weights(float (&c)[N / 8][4], const uint32_t (&a)[4], uint64_t b);

#define EIGHT_COLUMNS(j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define COLUMNS_64                                                                                 \
    EIGHT_COLUMNS(0), EIGHT_COLUMNS(1), EIGHT_COLUMNS(2), EIGHT_COLUMNS(3), EIGHT_COLUMNS(4),      \
        EIGHT_COLUMNS(5), EIGHT_COLUMNS(6), EIGHT_COLUMNS(7)
#define COLUMNS_128                                                                                \
    COLUMNS_64, EIGHT_COLUMNS(8), EIGHT_COLUMNS(9), EIGHT_COLUMNS(10), EIGHT_COLUMNS(11),          \
        EIGHT_COLUMNS(12), EIGHT_COLUMNS(13), EIGHT_COLUMNS(14), EIGHT_COLUMNS(15)
#define NAMES_32                                                                                   \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "   \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64                                                                                   \
    NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
             "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/* Operands after c: a, b and adds for multiply_rows; a's four, b
 * for multiply_weights. */
#define WARPGROUP_PRODUCT(E, type, N, columns, names, o0, o1, o2, o3, o4)                          \
    template <>                                                                                    \
    __device__ inline void multiply_rows<E, N>(float(&c)[N / 8][4], uint64_t a, uint64_t b,        \
                                               bool adds)                                          \
    {                                                                                              \
        asm volatile("{\n"                                                                         \
                     ".reg .pred adds;\n"                                                          \
                     "setp.ne.u32 adds, %" #o2 ", 0;\n"                                            \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" names    \
                     "}, %" #o0 ", %" #o1 ", adds, 1, 1, 0, 0;\n"                                  \
                     "}"                                                                           \
                     : columns                                                                     \
                     : "l"(a), "l"(b), "r"((unsigned)adds));                                       \
    }                                                                                              \
    template <>                                                                                    \
    __device__ inline void multiply_weights<E, N>(float(&c)[N / 8][4], const uint32_t(&a)[4],      \
                                                  uint64_t b)                                      \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" names    \
                     "}, {%" #o0 ", %" #o1 ", %" #o2 ", %" #o3 "}, %" #o4 ", 1, 1, 1, 1;"          \
                     : columns                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
    }
#define WARPGROUP_PRODUCTS(E, type)                                                                \
    WARPGROUP_PRODUCT(E, type, 64, COLUMNS_64, NAMES_32, 32, 33, 34, 35, 36)                       \
    WARPGROUP_PRODUCT(E, type, 128, COLUMNS_128, NAMES_64, 64, 65, 66, 67, 68)
WARPGROUP_PRODUCTS(bf16, "bf16")
WARPGROUP_PRODUCTS(f16, "f16")
#undef WARPGROUP_PRODUCTS
#undef WARPGROUP_PRODUCT
#undef NAMES_64
#undef NAMES_32
#undef COLUMNS_128
#undef COLUMNS_64
#undef EIGHT_COLUMNS

#endif
