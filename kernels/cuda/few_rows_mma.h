/* few_rows_mma.h - products c = alpha a w^T + bias of up to MAX_MMA_ROWS rows
 * of bf16 and f16, by tensor cores: shared by kernels with different sources of
 * a.
 *
 * 1. A block makes COLUMNS columns of c at a time: a tile. Its WARPS split k
 *    into chunks; their sums are added through shared memory, in the order of
 *    warps.
 * 2. Rows of w are A of mma.m16n8k16 (mma.h), rows of a are B. The order of k
 *    is free as long as A and B agree: so a lane loads 16 bytes of rows g and g
 *    + 8 of w, and of row g of a, 8 t elements into a step. Elements 0-3 are
 *    the fragments of one mma, 4-7 those of the next. Nothing moves between
 *    lanes or through shared memory.
 * 3. A lane keeps AHEAD steps of w in flight, two loads each. The loads at the
 *    end of a tile are the next tile's, so memory is busy while sums are added
 *    and stored.
 * 4. A block makes every gridDim.x-th tile. BLOCKS blocks fit a multiprocessor:
 *    with 132 of these, one wave is 6336 columns. */
#ifndef FERRY_KERNELS_CUDA_FEW_ROWS_MMA_H
#define FERRY_KERNELS_CUDA_FEW_ROWS_MMA_H

#include <algorithm>

#include "kernels/cuda/mma.h"
#include "kernels/cuda/products.h"

namespace few_rows_mma
{

enum { COLUMNS = 16, WARPS = 8, BLOCKS = 3, AHEAD = 4 };
enum { PACK = 8, STEP = 4 * PACK, CHUNK = AHEAD * STEP }; /* elements of k */
enum { TILE_ROWS = 8 };                                   /* rows of a in one mma */
enum { PART_STRIDE = COLUMNS + 4 }; /* lanes that store a part at once use different banks */

template <typename E, typename C> struct product_args {
    const E *w, *bias;
    C *c;
    unsigned m, n, k; /* m k < 2^32, n < 2^31 */
    float alpha;
};

/* Rows of a, `stride` elements apart. */
template <typename E> struct rows {
    const E *first;
    unsigned stride;
};

/* Steps of w in flight: 8 elements of rows g and g + 8. */
struct ahead {
    uint4 low[AHEAD], high[AHEAD];
};

__device__ inline unsigned lane_row()
{
    return lane_id() / 4;
}

/* Index of this lane's first element in a step. */
__device__ inline unsigned lane_place()
{
    return lane_id() % 4 * PACK;
}

/* This lane's next reads, in rows g and g + 8 of a tile. Rows beyond the last
 * repeat the last. */
template <typename E> struct lane_weights {
    const E *low, *high;

    template <typename C> __device__ lane_weights(const product_args<E, C> &x, unsigned first)
    {
        const unsigned place = warp_id() * CHUNK + lane_place();
        low = x.w + (size_t)min(first + lane_row(), x.n - 1) * x.k + place;
        high = x.w + (size_t)min(first + lane_row() + 8, x.n - 1) * x.k + place;
    }

    __device__ void advance()
    {
        low += WARPS * CHUNK;
        high += WARPS * CHUNK;
    }
};

/* Step u of the chunk at `at`; zeros beyond the end. */
template <typename E>
__device__ inline void load_step(ahead *to, int u, const lane_weights<E> &w, unsigned at,
                                 unsigned k)
{
    const bool there = at + u * STEP + lane_place() < k;
    to->low[u] = load_16_bytes_once(w.low + u * STEP, there);
    to->high[u] = load_16_bytes_once(w.high + u * STEP, there);
}

/* The first chunk of a warp. */
template <typename E, typename C>
__device__ inline void load_chunk(ahead *to, const product_args<E, C> &x, unsigned first)
{
    const lane_weights<E> w(x, first);
#pragma unroll
    for (int u = 0; u < AHEAD; u++)
        load_step(to, u, w, warp_id() * CHUNK, x.k);
}

/* This lane's place in row g of the first tile of rows, and the step to the
 * next tile. */
template <typename E> struct lane_rows {
    const E *at;
    unsigned next_tile;

    __device__ lane_rows(const rows<E> &a)
        : at(a.first + lane_row() * a.stride + warp_id() * CHUNK + lane_place()),
          next_tile(TILE_ROWS * a.stride)
    {
    }
};

/* Step u of the chunk at `at`; zeros without a row, or beyond its end. */
template <typename E, int TILES>
__device__ inline void load_rows(uint4 (&to)[TILES], int u, const lane_rows<E> &a, unsigned at,
                                 unsigned m, unsigned k)
{
    const bool there = at + u * STEP + lane_place() < k;
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        to[i] = {0, 0, 0, 0};
        if (there && i * TILE_ROWS + lane_row() < m)
            to[i] = *reinterpret_cast<const uint4 *>(a.at + i * a.next_tile + u * STEP);
    }
}

template <typename E, int TILES>
__device__ inline void multiply_step(float (&sums)[TILES][4], const uint4 &low, const uint4 &high,
                                     const uint4 (&a)[TILES])
{
    const uint32_t front[4] = {low.x, high.x, low.y, high.y};
    const uint32_t back[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        mma<E>(sums[i], front, a[i].x, a[i].y);
        mma<E>(sums[i], back, a[i].z, a[i].w);
    }
}

/* A warp's sums over its chunks, of which the first is in flight. */
template <typename E, typename C, int TILES>
__device__ inline void add_chunks(float (&sums)[TILES][4], ahead *on_way,
                                  const product_args<E, C> &x, const rows<E> &a, unsigned first)
{
    lane_weights<E> w(x, first);
    lane_rows<E> of_a(a);
    for (unsigned at = warp_id() * CHUNK; at < x.k; at += WARPS * CHUNK) {
        w.advance();
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            uint4 step[TILES];
            load_rows(step, u, of_a, at, x.m, x.k);
            multiply_step<E>(sums, on_way->low[u], on_way->high[u], step);
            load_step(on_way, u, w, at + WARPS * CHUNK, x.k);
        }
        of_a.at += WARPS * CHUNK;
    }
}

/* Sums of each warp: for a row of a, those of all columns of a tile. */
template <int TILES> using parts = float[WARPS][TILES * TILE_ROWS][PART_STRIDE];

/* In the layout of mma's C: c[0] and c[1] are column g of rows 2t and 2t + 1,
 * c[2] and c[3] column g + 8. */
template <int TILES>
__device__ inline void store_part(parts<TILES> &to, const float (&sums)[TILES][4])
{
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            to[warp_id()][i * TILE_ROWS + lane_id() % 4 * 2 + j % 2][lane_row() + j / 2 * 8] =
                sums[i][j];
}

template <typename E, typename C, int TILES>
__device__ inline void store_tile(const product_args<E, C> &x, const parts<TILES> &from,
                                  unsigned first)
{
    const unsigned row = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS;
    float sum = 0;
    if (row >= x.m || first + column >= x.n) return;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        sum += from[w][row][column];
    const float bias = x.bias ? to_real(x.bias[first + column]) : 0;
    x.c[(size_t)row * x.n + first + column] = from_real<C>(x.alpha * sum + bias);
}

/* All tiles of a block. make_rows() returns the rows of a: all threads call it
 * once, when the kernel before has ended and the first weights are in
 * flight. */
template <typename E, typename C, int TILES, typename F>
__device__ inline void multiply_tiles_of_block(const product_args<E, C> &x, F make_rows)
{
    __shared__ parts<TILES> sums_of_warps;
    ahead on_way;
    load_chunk(&on_way, x, blockIdx.x * COLUMNS);
    wait_for_kernel_before();
    let_kernel_behind_start();
    const rows<E> a = make_rows();
    for (unsigned first = blockIdx.x * COLUMNS; first < x.n;) {
        float sums[TILES][4] = {};
        add_chunks(sums, &on_way, x, a, first);
        const unsigned next = first + gridDim.x * COLUMNS;
        if (next < x.n) load_chunk(&on_way, x, next);
        __syncthreads(); /* all sums of the previous tile have been read */
        store_part<TILES>(sums_of_warps, sums);
        __syncthreads();
        store_tile<E, C, TILES>(x, sums_of_warps, first);
        first = next;
    }
}

static inline unsigned blocks_of(size_t n)
{
    return std::min(blocks_for(n, COLUMNS), BLOCKS * (unsigned)cuda_multiprocessors);
}

template <typename E, typename C> product_args<E, C> args_of(const struct product &x)
{
    return {static_cast<const E *>(x.b),
            static_cast<const E *>(x.bias),
            static_cast<C *>(x.c),
            (unsigned)x.m,
            (unsigned)x.n,
            (unsigned)x.k,
            (float)x.alpha};
}

} // namespace few_rows_mma

#endif
