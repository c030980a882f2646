/* few_rows_mma.cu - products of up to 16 rows of bf16 and f16 by tensor cores
 * (few_rows_mma.h).
 *
 * Differences from few_rows.cu: up to 16 rows, at an equal number of
 * instructions; each lane keeps 128 bytes in flight from first to last tile,
 * where few_rows.cu requests the next only after using all; three blocks fit a
 * multiprocessor for any number of rows, so 4096 to 6144 columns are one wave.
 * An H200 measured few_rows.cu at 50 % of the copy rate for 6144 columns of k =
 * 4096, and 57 % for 4096 of k = 14336, when a multiprocessor had two of its
 * blocks; now it has three or four.
 *
 * No GPU has timed this kernel. So FERRY_CUDA_TUNE=1 times it among others;
 * without a search, few_rows.cu and cuBLASLt come first, and it runs only if
 * cuBLASLt has no algorithm, before tiles.cu. */
#include "kernels/cuda/few_rows_mma.h"

using namespace few_rows_mma;

template <typename E, typename C, int TILES>
__global__ void __launch_bounds__(WARPS *WARP, BLOCKS)
    multiply_few(const product_args<E, C> x, const rows<E> a)
{
    multiply_tiles_of_block<E, C, TILES>(x, [&] { return a; });
}

template <typename E, typename C>
static enum status launch_few(const struct product &x, struct error *err)
{
    const rows<E> a = {static_cast<const E *>(x.a), (unsigned)x.k};
    return launch_early("matmul", err,
                        x.m > TILE_ROWS ? multiply_few<E, C, 2> : multiply_few<E, C, 1>,
                        dim3(blocks_of(x.n)), WARPS * WARP, 0, args_of<E, C>(x), a);
}

bool few_rows_mma_takes(const struct product &x)
{
    const bool has_type = x.elem == ELEM_BF16 || x.elem == ELEM_F16;
    return has_type && x.m <= MAX_MMA_ROWS && x.transpose_b && !x.transpose_a && !x.accumulate &&
           x.n <= INT32_MAX && x.k <= UINT32_MAX / MAX_MMA_ROWS &&
           fits_width<bf16>(x.k, {x.a, x.b});
}

template <typename E> static enum status launch_type(const struct product &x, struct error *err)
{
    return x.c_is_real ? launch_few<E, float>(x, err) : launch_few<E, E>(x, err);
}

enum status multiply_few_rows_mma(const struct product &x, struct error *err)
{
    return x.elem == ELEM_F16 ? launch_type<f16>(x, err) : launch_type<bf16>(x, err);
}
