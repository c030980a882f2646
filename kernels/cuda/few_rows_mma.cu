/* few_rows_mma.cu - products of up to 16 rows of bf16 and f16 by tensor cores (few_rows_mma.h).
 *
 * Beside few_rows.cu: three blocks fit a multiprocessor, not two, so that a product of 4096 to 6144
 * columns is one wave (few_rows.cu has 1.45 waves of 6144, and was measured at 50 % of the copy
 * rate there); more rows cost no more instructions; and each lane keeps 128 bytes on the way at all
 * times. No GPU has timed it yet. So it is one of the ways that FERRY_CUDA_TUNE=1 times, and
 * without a search few_rows.cu and cuBLASLt come first: only where cuBLASLt has no algorithm is it
 * taken untimed, before tiles.cu. */
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
           x.k <= UINT32_MAX / MAX_MMA_ROWS && fits_width<bf16>(x.k, {x.a, x.b});
}

template <typename E> static enum status launch_type(const struct product &x, struct error *err)
{
    return x.c_is_real ? launch_few<E, float>(x, err) : launch_few<E, E>(x, err);
}

enum status multiply_few_rows_mma(const struct product &x, struct error *err)
{
    return x.elem == ELEM_F16 ? launch_type<f16>(x, err) : launch_type<bf16>(x, err);
}
