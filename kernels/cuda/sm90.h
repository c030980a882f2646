/* sm90.h - instructions of compute capability 9.0 (PTX ISA: mbarrier, cp.async.bulk), for *_sm90.cu
 * alone: the emulator knows none of them.
 *
 * A bulk copy brings bytes from global into shared memory. One thread asks for it, none carries the
 * bytes, and they count at a barrier in shared memory. A phase of a barrier is over when its one
 * arrival has happened and all bytes that it expects have come; then the next phase begins. Phases
 * have parity 0, 1, 0, .. */
#ifndef FERRY_KERNELS_CUDA_SM90_H
#define FERRY_KERNELS_CUDA_SM90_H

#include <stdint.h>

typedef uint64_t barrier;

__device__ inline uint32_t shared_address(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

/* fence_copies() and a barrier of threads before others use it. */
__device__ inline void barrier_init(barrier *b)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(b)) : "memory");
}

/* The arrival of a phase, which expects so many bytes. */
__device__ inline void barrier_expect(barrier *b, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                 "r"(bytes)
                 : "memory");
}

/* Whether the phase of this parity is over, also where the phase behind it is under way. Waits for
 * a time that the GPU chooses. */
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

/* A wait that is longer is a mistake of ours: the kernel ends with an error, and does not hang. */
#define LONGEST_WAIT 2000000000u /* nanoseconds */

/* Until that phase is over. The clock is read every 256 tries: few waits take as many. */
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

/* What threads did with shared memory before it comes before what copies do with it that are asked
 * for after it. */
__device__ inline void fence_copies()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* For copy_bulk: the second-level cache gives up these bytes first. */
__device__ inline uint64_t read_once()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* Asks for a copy. Both places are aligned to 16 bytes, and bytes is a multiple of 16. */
__device__ inline void copy_bulk(void *shared, const void *global, uint32_t bytes, barrier *b,
                                 uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(b)),
                 "l"(policy)
                 : "memory");
}

#endif
