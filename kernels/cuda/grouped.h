/* grouped.h - products of each expert's rows, for grouped_matmul.cu and
 * grouped_backward.cu.
 *
 * 1. Only the device knows the number of an expert's rows. Blocks list where
 *    each expert's tiles begin, then take tiles in turn; tiles of the same
 *    columns of an expert's matrix are neighbours.
 * 2. On tensor cores a product c = a b goes through STAGES buffers of shared
 *    memory, filled ahead: each copy is issued STAGES - 1 steps before its
 *    wait.
 * 3. A side of a product lies in memory with its depth (the summed index) along
 *    a row, or down the rows: then ldmatrix transposes it. */
#ifndef FERRY_KERNELS_CUDA_GROUPED_H
#define FERRY_KERNELS_CUDA_GROUPED_H

#include <algorithm>

#include "kernels/cuda/mma.h"

enum { GROUPED_THREADS = 256, MAX_GROUPED_EXPERTS = 512, PLAIN_TILE = 64, PLAIN_DEPTH = 16 };
enum { DEPTH = 64, COLUMNS = 128 }; /* of tiles on tensor cores */

/* ---- tiles ---- */

/* In shared memory: for each expert, and the end. */
struct schedule {
    int first_row[MAX_GROUPED_EXPERTS + 1], first_tile[MAX_GROUPED_EXPERTS + 1];
};

struct grouped_tile {
    unsigned expert;
    int row, num_rows, column; /* row of x and y */
};

__device__ inline int tiles_of(int size, int tile)
{
    return (size + tile - 1) / tile;
}

/* width: the result's columns; tiles are rows x columns. */
__device__ inline void make_schedule(struct schedule *s, const int32_t *counts,
                                     unsigned num_experts, int width, int rows, int columns)
{
    int row = 0, tile = 0;
    for (unsigned base = 0; base < num_experts; base += blockDim.x) {
        const unsigned e = base + threadIdx.x;
        const int count = e < num_experts ? counts[e] : 0;
        int all_rows, all_tiles;
        const int own_row = row + block_sum_before(count, &all_rows);
        const int own_tile =
            tile + block_sum_before(tiles_of(count, rows) * tiles_of(width, columns), &all_tiles);
        if (e < num_experts) {
            s->first_row[e] = own_row;
            s->first_tile[e] = own_tile;
        }
        row += all_rows;
        tile += all_tiles;
    }
    if (threadIdx.x == 0) {
        s->first_row[num_experts] = row;
        s->first_tile[num_experts] = tile;
    }
    __syncthreads();
}

/* Finds the last expert whose tiles begin at `number` or before: experts
 * without rows begin where the next one does. */
__device__ inline struct grouped_tile find_tile(const struct schedule *s, unsigned num_experts,
                                                int number, int rows, int columns)
{
    unsigned low = 0, high = num_experts; /* first_tile[low] <= number < first_tile[high] */
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        if (s->first_tile[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    const int count = s->first_row[low + 1] - s->first_row[low];
    const int local = number - s->first_tile[low], down = tiles_of(count, rows);
    struct grouped_tile t;
    t.expert = low;
    t.column = local / down * columns;
    t.row = s->first_row[low] + local % down * rows;
    t.num_rows = min(rows, s->first_row[low + 1] - t.row);
    return t;
}

/* Two blocks a multiprocessor, or as many as tiles at most. */
static inline dim3 grouped_grid(size_t rows, size_t columns, size_t num_experts, size_t tile_rows,
                                size_t tile_columns)
{
    const size_t tiles =
        (rows / tile_rows + std::min(rows, num_experts)) * blocks_for(columns, tile_columns);
    return dim3((unsigned)std::min<size_t>(2 * (size_t)cuda_multiprocessors, tiles));
}

/* ---- tensor cores ---- */

/* A side in shared memory: SIZE rows of a, or columns of b, DEPTH deep. Its
 * rows are 16 bytes longer, so that the eight that ldmatrix reads at once lie
 * in different banks. */
template <int SIZE, bool ALONG> struct side {
    static const int STRIDE = (ALONG ? DEPTH : SIZE) + 8;
    static const int ELEMENTS = (ALONG ? SIZE : DEPTH) * STRIDE;
};

/* Loads from depth `at` on, of `depth`; zeros beyond it and beyond `size`. */
template <int SIZE, bool ALONG, typename E>
__device__ inline void load_side(E *to, const E *from, size_t stride, int at, int depth, int size)
{
    const int runs = (ALONG ? DEPTH : SIZE) / 8;
#pragma unroll
    for (int i = (int)threadIdx.x; i < SIZE * DEPTH / 8; i += GROUPED_THREADS) {
        const int row = i / runs, run = i % runs * 8;
        const bool there = ALONG ? row < size && at + run < depth : at + row < depth && run < size;
        const E *source = ALONG ? from + row * stride + at + run : from + (at + row) * stride + run;
        copy_16_bytes(to + row * side<SIZE, ALONG>::STRIDE + run, there ? source : from, there);
    }
}

/* A tile is ROWS x COLUMNS; of its 8 warps, WARPS_DOWN lie below
 * one another. */
template <int ROWS, bool A_ALONG, bool B_ALONG> struct grouped_shape {
    static const int WARPS_DOWN = ROWS >= 128 ? 2 : 1, WARPS_ACROSS = 8 / WARPS_DOWN;
    static const int M = ROWS / WARPS_DOWN / 16, N = COLUMNS / WARPS_ACROSS / 8; /* of a warp */
    static const int B_AT = side<ROWS, A_ALONG>::ELEMENTS;
    static const int STAGE = B_AT + side<COLUMNS, B_ALONG>::ELEMENTS;
    static const size_t STAGE_BYTES = STAGE * MMA_ELEM_BYTES;
};

/* Loads 16 rows of a from `row` on, 16 deep from d on. */
template <int ROWS, bool ALONG, typename E>
__device__ inline void load_left(uint32_t (&left)[4], const E *a, int row, int d)
{
    const int lane = (int)lane_id(), stride = side<ROWS, ALONG>::STRIDE;
    if constexpr (ALONG)
        load_matrices(left, a + (row + lane % 16) * stride + d + lane / 16 * 8);
    else
        load_matrices_transposed(left, a + (d + lane / 16 * 8 + lane % 8) * stride + row +
                                           lane / 8 % 2 * 8);
}

/* Loads 16 columns of b from `column` on, 16 deep from d on: for two products
 * of 8. */
template <bool ALONG, typename E>
__device__ inline void load_right(uint32_t (&right)[4], const E *b, int column, int d)
{
    const int lane = (int)lane_id(), stride = side<COLUMNS, ALONG>::STRIDE;
    if constexpr (ALONG)
        load_matrices(right,
                      b + (column + lane / 16 * 8 + lane % 8) * stride + d + lane / 8 % 2 * 8);
    else
        load_matrices_transposed(right, b + (d + lane % 16) * stride + column + lane / 16 * 8);
}

/* The warp's part of a stage, from (row, column) on. */
template <int ROWS, bool A_ALONG, bool B_ALONG, int M, int N, typename E>
__device__ inline void multiply_stage(float (&sum)[M][N][4], const E *stage, int row, int column)
{
    const E *const b = stage + grouped_shape<ROWS, A_ALONG, B_ALONG>::B_AT;
#pragma unroll
    for (int d = 0; d < DEPTH; d += 16) {
        uint32_t left[M][4], right[4];
#pragma unroll
        for (int m = 0; m < M; m++)
            load_left<ROWS, A_ALONG>(left[m], stage, row + m * 16, d);
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            load_right<B_ALONG>(right, b, column + j * 16, d);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<E>(sum[m][2 * j], left[m], right[0], right[1]);
                mma<E>(sum[m][2 * j + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* A product of one expert: `rows` rows of a, `columns` columns of b, where
 * they begin. */
template <typename E> struct grouped_product {
    const E *a, *b;
    size_t a_stride, b_stride;
    int rows, columns, depth;
};

template <int ROWS, bool A_ALONG, bool B_ALONG, typename E>
__device__ inline void load_stage(E *stage, const grouped_product<E> &p, int at)
{
    if (at < p.depth) {
        load_side<ROWS, A_ALONG>(stage, p.a, p.a_stride, at, p.depth, p.rows);
        load_side<COLUMNS, B_ALONG>(stage + grouped_shape<ROWS, A_ALONG, B_ALONG>::B_AT, p.b,
                                    p.b_stride, at, p.depth, p.columns);
    }
    copies_commit();
}

/* First row and column of the warp's part of a tile. */
template <typename SHAPE> __device__ inline int warp_row()
{
    return (int)warp_id() / SHAPE::WARPS_ACROSS * 16 * SHAPE::M;
}

template <typename SHAPE> __device__ inline int warp_column()
{
    return (int)warp_id() % SHAPE::WARPS_ACROSS * 8 * SHAPE::N;
}

/* sum: the warp's part of the tile. */
template <int ROWS, int STAGES, bool A_ALONG, bool B_ALONG, int M, int N, typename E>
__device__ inline void multiply_tile(float (&sum)[M][N][4], E *stages, const grouped_product<E> &p)
{
    typedef grouped_shape<ROWS, A_ALONG, B_ALONG> shape;
    const int row = warp_row<shape>(), column = warp_column<shape>();
    for (int i = 0; i < STAGES - 1; i++)
        load_stage<ROWS, A_ALONG, B_ALONG>(stages + i * shape::STAGE, p, i * DEPTH);
    for (int i = 0; i * DEPTH < p.depth; i++) {
        copies_wait<STAGES - 2>();
        __syncthreads(); /* stage i has arrived; stage i - 1, filled next, is free */
        load_stage<ROWS, A_ALONG, B_ALONG>(stages + (i + STAGES - 1) % STAGES * shape::STAGE, p,
                                           (i + STAGES - 1) * DEPTH);
        if (row < p.rows)
            multiply_stage<ROWS, A_ALONG, B_ALONG>(sum, stages + i % STAGES * shape::STAGE, row,
                                                   column);
    }
    copies_wait<0>();
    __syncthreads(); /* the next tile fills all stages */
}

/* Calls f(row of the tile, column, first, second) for each two neighbours of
 * the warp's part. */
template <typename SHAPE, int M, int N, typename F>
__device__ inline void each_pair(const float (&sum)[M][N][4], F f)
{
    const int row = warp_row<SHAPE>() + (int)lane_id() / 4;
    const int column = warp_column<SHAPE>() + (int)lane_id() % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < N; j++)
                f(row + m * 16 + half * 8, column + j * 8, sum[m][j][2 * half],
                  sum[m][j][2 * half + 1]);
}

/* Stores two neighbours of a row of n elements. */
template <typename E>
__device__ inline void store_two(E *y, int column, int n, float first, float second)
{
    if (n % 2 == 0 && column < n)
        store_reals<E, 2>(y + column, {first, second});
    else {
        if (column < n) y[column] = from_real<E>(first);
        if (column + 1 < n) y[column + 1] = from_real<E>(second);
    }
}

/* Shared memory of a block besides stages: the schedule, and sums to
 * make it. */
enum { SCHEDULE_BYTES = 5 << 10 };
static_assert(sizeof(struct schedule) + 4 * WARP * sizeof(int) <= SCHEDULE_BYTES, "");

template <typename SHAPE> bool has_room_for(int stages)
{
    return stages * SHAPE::STAGE_BYTES + SCHEDULE_BYTES <= cuda_shared_bytes;
}

/* ---- any type ---- */

/* A side of a plain product: element (i, depth d) lies at i * stride + d
 * * step. */
template <typename E> struct plain_side {
    const E *at;
    size_t stride, step;
    int size;

    __device__ inline bool depth_is_last() const
    {
        return step == 1;
    }

    __device__ inline real_of<E> element(size_t row, size_t d) const
    {
        return to_real(at[row * stride + d * step]);
    }
};

/* Loads depth [at, at + PLAIN_DEPTH) of PLAIN_TILE rows. Threads run along the
 * stride of 1. */
template <typename R, typename S>
__device__ inline void load_plain(R (*to)[PLAIN_TILE + 1], const S &s, int at, int depth)
{
    for (int i = (int)threadIdx.x; i < PLAIN_TILE * PLAIN_DEPTH; i += GROUPED_THREADS) {
        const int row = s.depth_is_last() ? i / PLAIN_DEPTH : i % PLAIN_TILE;
        const int d = s.depth_is_last() ? i % PLAIN_DEPTH : i / PLAIN_TILE;
        const bool there = row < (int)s.size && at + d < depth;
        to[d][row] = there ? s.element((size_t)row, (size_t)(at + d)) : 0;
    }
}

/* Calls f(row of the tile, column, sum) for each element; 4 x 4 a thread. B:
 * another plain_side<E>, or coded_rows<E>. */
template <typename E, typename B, typename F>
__device__ inline void multiply_plain(const plain_side<E> &a, const B &b, int depth, F f)
{
    __shared__ real_of<E> left[PLAIN_DEPTH][PLAIN_TILE + 1], right[PLAIN_DEPTH][PLAIN_TILE + 1];
    const int row = (int)threadIdx.x / 16, column = (int)threadIdx.x % 16;
    real_of<E> sum[4][4] = {};
    for (int at = 0; at < depth; at += PLAIN_DEPTH) {
        __syncthreads();
        load_plain(left, a, at, depth);
        load_plain(right, b, at, depth);
        __syncthreads();
        for (int d = 0; d < PLAIN_DEPTH; d++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sum[i][j] += left[d][row + 16 * i] * right[d][column + 16 * j];
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            if (row + 16 * i < a.size && column + 16 * j < (int)b.size)
                f(row + 16 * i, column + 16 * j, sum[i][j]);
}

#endif
