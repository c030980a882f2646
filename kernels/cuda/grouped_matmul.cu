/* Products of the rows of each expert with its own matrix, in one launch.
 *
 * 1. How many rows an expert has is known on the device alone. Blocks, as many as the GPU has room
 *    for, first make a list of where each expert's tiles begin, then take tiles in turn; tiles of
 *    the same columns of an expert's matrix are neighbours.
 * 2. bf16 with k a multiple of 8: tiles on tensor cores, through STAGES buffers of shared memory
 *    that are filled ahead. A copy that is waited for was issued STAGES - 1 steps before. There are
 *    three, or two where a block cannot have as much (99 KB on compute capability 8.6, 8.9, 12.0).
 * 3. Everything else: a plain tile, 4 x 4 elements a thread. */
#include <algorithm>

#include "kernels/cuda/mma.h"
#include "kernels/device.h"

enum { GROUPED_THREADS = 256, MAX_GROUPED_EXPERTS = 512, PLAIN_TILE = 64, PLAIN_DEPTH = 16 };
enum { DEPTH = 64, STRIDE = DEPTH + 8, COLUMNS = 128 }; /* of tensor core tiles */

template <typename E> struct grouped_args {
    const E *x, *w; /* [R, k], [num_experts, n, k] */
    const int32_t *counts;
    E *y; /* [R, n] */
    unsigned num_experts;
    int n, k;
};

/* In shared memory: of each expert, and behind the last. */
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

template <typename E>
__device__ inline void make_schedule(struct schedule *s, const grouped_args<E> &a, int rows,
                                     int columns)
{
    int row = 0, tile = 0;
    for (unsigned base = 0; base < a.num_experts; base += blockDim.x) {
        const unsigned e = base + threadIdx.x;
        const int count = e < a.num_experts ? a.counts[e] : 0;
        int all_rows, all_tiles;
        const int own_row = row + block_sum_before(count, &all_rows);
        const int own_tile =
            tile + block_sum_before(tiles_of(count, rows) * tiles_of(a.n, columns), &all_tiles);
        if (e < a.num_experts) {
            s->first_row[e] = own_row;
            s->first_tile[e] = own_tile;
        }
        row += all_rows;
        tile += all_tiles;
    }
    if (threadIdx.x == 0) {
        s->first_row[a.num_experts] = row;
        s->first_tile[a.num_experts] = tile;
    }
    __syncthreads();
}

/* The last expert whose tiles begin at `number` or before: those without rows begin where the next
 * one does. */
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

/* ---- tensor cores ---- */

/* A tile is ROWS x COLUMNS; 8 warps, WARPS_DOWN of them one below the other. */
template <int ROWS> struct grouped_shape {
    static const int WARPS_DOWN = ROWS >= 128 ? 2 : 1, WARPS_ACROSS = 8 / WARPS_DOWN;
    static const int M = ROWS / WARPS_DOWN / 16, N = COLUMNS / WARPS_ACROSS / 8; /* of a warp */
    static const int STAGE = (ROWS + COLUMNS) * STRIDE;
    static const size_t STAGE_BYTES = STAGE * sizeof(bf16);
};

/* Columns [at, at + DEPTH) of `rows` rows, `there` of which there are; zeros for the others. */
template <int rows>
__device__ inline void load_rows(bf16 *to, const bf16 *from, int k, int at, int there)
{
    const int runs = DEPTH / 8;
#pragma unroll
    for (int i = (int)threadIdx.x; i < rows * runs; i += GROUPED_THREADS) {
        const int row = i / runs, column = at + i % runs * 8;
        const bool is_there = row < there && column < k;
        copy_16_bytes(to + row * STRIDE + i % runs * 8,
                      is_there ? from + (size_t)row * k + column : from, is_there);
    }
}

template <int ROWS>
__device__ inline void load_stage(bf16 *stage, const grouped_args<bf16> &a,
                                  const struct grouped_tile &t, int at)
{
    const bf16 *w = a.w + ((size_t)t.expert * a.n + t.column) * a.k;
    if (at < a.k) {
        load_rows<ROWS>(stage, a.x + (size_t)t.row * a.k, a.k, at, t.num_rows);
        load_rows<COLUMNS>(stage + ROWS * STRIDE, w, a.k, at, a.n - t.column);
    }
    copies_commit();
}

/* N is even: one load has the columns of two products. */
template <int M, int N>
__device__ inline void multiply_stage(float (&sum)[M][N][4], const bf16 *x, const bf16 *w)
{
    const int lane = (int)lane_id();
    const bf16 *x_row = x + lane % 16 * STRIDE + lane / 16 * 8;
    const bf16 *w_row = w + (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
    for (int d = 0; d < DEPTH; d += 16) {
        uint32_t left[M][4], right[4];
#pragma unroll
        for (int m = 0; m < M; m++)
            load_matrices(left[m], x_row + m * 16 * STRIDE + d);
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            load_matrices(right, w_row + j * 16 * STRIDE + d);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_bf16(sum[m][2 * j], left[m], right[0], right[1]);
                mma_bf16(sum[m][2 * j + 1], left[m], right[2], right[3]);
            }
        }
    }
}

__device__ inline void store_two(bf16 *y, int column, int n, float first, float second)
{
    if (n % 2 == 0 && column < n)
        store_reals<bf16, 2>(y + column, {first, second});
    else {
        if (column < n) y[column] = from_real<bf16>(first);
        if (column + 1 < n) y[column + 1] = from_real<bf16>(second);
    }
}

template <int M, int N>
__device__ inline void store_tile(const grouped_args<bf16> &a, const struct grouped_tile &t,
                                  const float (&sum)[M][N][4], int row, int column)
{
    const int lane = (int)lane_id();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = row + m * 16 + half * 8 + lane / 4;
            if (at >= t.num_rows) continue;
#pragma unroll
            for (int j = 0; j < N; j++)
                store_two(a.y + (size_t)(t.row + at) * a.n,
                          t.column + column + j * 8 + lane % 4 * 2, a.n, sum[m][j][2 * half],
                          sum[m][j][2 * half + 1]);
        }
}

template <int ROWS, int STAGES>
__device__ inline void multiply_tile(bf16 *stages, const grouped_args<bf16> &a,
                                     const struct grouped_tile &t)
{
    typedef grouped_shape<ROWS> shape;
    const int row = (int)warp_id() / shape::WARPS_ACROSS * 16 * shape::M;
    const int column = (int)warp_id() % shape::WARPS_ACROSS * 8 * shape::N;
    float sum[shape::M][shape::N][4] = {};
    for (int i = 0; i < STAGES - 1; i++)
        load_stage<ROWS>(stages + i * shape::STAGE, a, t, i * DEPTH);
    for (int i = 0; i * DEPTH < a.k; i++) {
        copies_wait<STAGES - 2>();
        __syncthreads(); /* stage i is here, and all are done with i - 1, which is filled next */
        load_stage<ROWS>(stages + (i + STAGES - 1) % STAGES * shape::STAGE, a, t,
                         (i + STAGES - 1) * DEPTH);
        const bf16 *stage = stages + i % STAGES * shape::STAGE;
        if (row < t.num_rows)
            multiply_stage(sum, stage + row * STRIDE, stage + (ROWS + column) * STRIDE);
    }
    copies_wait<0>();
    __syncthreads(); /* the next tile fills all stages */
    store_tile(a, t, sum, row, column);
}

template <int ROWS, int STAGES>
__global__ void __launch_bounds__(GROUPED_THREADS) multiply_groups(const grouped_args<bf16> a)
{
    DYNAMIC_SHARED(shared);
    __shared__ struct schedule s;
    make_schedule(&s, a, ROWS, COLUMNS);
    for (int i = (int)blockIdx.x; i < s.first_tile[a.num_experts]; i += (int)gridDim.x)
        multiply_tile<ROWS, STAGES>(reinterpret_cast<bf16 *>(shared), a,
                                    find_tile(&s, a.num_experts, i, ROWS, COLUMNS));
}

/* ---- any type ---- */

/* Columns [at, at + PLAIN_DEPTH) of PLAIN_TILE rows, transposed. */
template <typename E>
__device__ inline void load_plain(real_of<E> (*to)[PLAIN_TILE + 1], const E *from, int k, int at,
                                  int there)
{
    for (int i = (int)threadIdx.x; i < PLAIN_TILE * PLAIN_DEPTH; i += GROUPED_THREADS) {
        const int row = i / PLAIN_DEPTH, column = i % PLAIN_DEPTH;
        const bool is_there = row < there && at + column < k;
        to[column][row] = is_there ? to_real(from[(size_t)row * k + at + column]) : 0;
    }
}

template <typename E>
__device__ inline void multiply_plain_tile(const grouped_args<E> &a, const struct grouped_tile &t)
{
    __shared__ real_of<E> x[PLAIN_DEPTH][PLAIN_TILE + 1], w[PLAIN_DEPTH][PLAIN_TILE + 1];
    const E *from = a.x + (size_t)t.row * a.k;
    const E *matrix = a.w + ((size_t)t.expert * a.n + t.column) * a.k;
    const int row = (int)threadIdx.x / 16, column = (int)threadIdx.x % 16;
    real_of<E> sum[4][4] = {};
    for (int at = 0; at < a.k; at += PLAIN_DEPTH) {
        __syncthreads();
        load_plain(x, from, a.k, at, t.num_rows);
        load_plain(w, matrix, a.k, at, a.n - t.column);
        __syncthreads();
        for (int d = 0; d < PLAIN_DEPTH; d++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sum[i][j] += x[d][row + 16 * i] * w[d][column + 16 * j];
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            if (row + 16 * i < t.num_rows && t.column + column + 16 * j < a.n)
                a.y[(size_t)(t.row + row + 16 * i) * a.n + t.column + column + 16 * j] =
                    from_real<E>(sum[i][j]);
}

template <typename E>
__global__ void __launch_bounds__(GROUPED_THREADS) multiply_groups_plain(const grouped_args<E> a)
{
    __shared__ struct schedule s;
    make_schedule(&s, a, PLAIN_TILE, PLAIN_TILE);
    for (int i = (int)blockIdx.x; i < s.first_tile[a.num_experts]; i += (int)gridDim.x)
        multiply_plain_tile(a, find_tile(&s, a.num_experts, i, PLAIN_TILE, PLAIN_TILE));
}

/* ---- the op ---- */

/* Two blocks a multiprocessor, or as many as there can be tiles. */
static dim3 grid_for(size_t rows, size_t columns, size_t num_experts, size_t tile_rows,
                     size_t tile_columns)
{
    const size_t tiles =
        (rows / tile_rows + std::min(rows, num_experts)) * blocks_for(columns, tile_columns);
    return dim3((unsigned)std::min<size_t>(2 * (size_t)cuda_multiprocessors, tiles));
}

template <typename E>
static enum status launch_plain(const grouped_args<E> &a, size_t rows, struct error *err)
{
    return launch("grouped_matmul", err, multiply_groups_plain<E>,
                  grid_for(rows, (size_t)a.n, a.num_experts, PLAIN_TILE, PLAIN_TILE),
                  GROUPED_THREADS, 0, a);
}

template <int ROWS, int STAGES>
static enum status launch_stages(const grouped_args<bf16> &a, size_t rows, struct error *err)
{
    const size_t bytes = STAGES * grouped_shape<ROWS>::STAGE_BYTES;
    static bool is_set; /* that it may have so much shared memory */
    if (!is_set)
        TRY(cuda_status("grouped_matmul",
                        cudaFuncSetAttribute(multiply_groups<ROWS, STAGES>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)bytes),
                        err));
    is_set = true;
    return launch("grouped_matmul", err, multiply_groups<ROWS, STAGES>,
                  grid_for(rows, (size_t)a.n, a.num_experts, ROWS, COLUMNS), GROUPED_THREADS, bytes,
                  a);
}

/* Shared memory of a block beside its stages: the schedule, and sums to make it. */
enum { SCHEDULE_BYTES = 5 << 10 };
static_assert(sizeof(struct schedule) + 4 * WARP * sizeof(int) <= SCHEDULE_BYTES, "");

template <int ROWS> static bool has_room_for(int stages)
{
    return stages * grouped_shape<ROWS>::STAGE_BYTES + SCHEDULE_BYTES <= cuda_shared_bytes;
}

template <int ROWS>
static enum status launch_tiles(const grouped_args<bf16> &a, size_t rows, struct error *err)
{
    return has_room_for<ROWS>(3) ? launch_stages<ROWS, 3>(a, rows, err)
                                 : launch_stages<ROWS, 2>(a, rows, err);
}

template <typename E>
static enum status launch_best(const grouped_args<E> &a, size_t rows, struct error *err)
{
    return launch_plain(a, rows, err);
}

static bool fits_tiles(const grouped_args<bf16> &a)
{
    return (((uintptr_t)a.x | (uintptr_t)a.w) % 16 == 0) && a.k % 8 == 0 && (uintptr_t)a.y % 4 == 0;
}

/* Low tiles where experts have few rows each, so that what is read of matrices is not waited for.
 */
static enum status launch_best(const grouped_args<bf16> &a, size_t rows, struct error *err)
{
    if (!fits_tiles(a)) return launch_plain(a, rows, err);
    return rows <= 64 * (size_t)a.num_experts ? launch_tiles<32>(a, rows, err)
                                              : launch_tiles<128>(a, rows, err);
}

template <typename E>
static struct grouped_args<E> args_of(const struct operand *in, const struct operand *out) {
    struct grouped_args<E> a = {
    };
    a.x = data_of<E>(in[0]);
    a.w = data_of<E>(in[1]);
    a.counts = data_of<int32_t>(in[2]);
    a.y = data_of<E>(out[0]);
    a.num_experts = (unsigned)in[1].shape[0];
    a.n = (int)in[1].shape[1];
    a.k = (int)in[1].shape[2];
    return a;
}

template <typename E>
enum status op_grouped_matmul(OP_ARGUMENTS)
{
    (void)p, (void)workspace;
    const struct grouped_args<E> a = args_of<E>(in, out);
    if (a.num_experts > MAX_GROUPED_EXPERTS)
        return fail(err, ERR_UNSUPPORTED, "%u experts: a GPU multiplies for up to %d",
                    a.num_experts, MAX_GROUPED_EXPERTS);
    return launch_best(a, in[0].shape[0], err);
}

FOR_ALL_TYPES(op_grouped_matmul)

/* ---- by name ---- */

template <int ROWS, int STAGES> static bool takes_stages(WORKSPACE_ARGUMENTS)
{
    const struct grouped_args<bf16> a = args_of<bf16>(in, out);
    (void)p;
    return a.num_experts <= MAX_GROUPED_EXPERTS && fits_tiles(a) && has_room_for<ROWS>(STAGES);
}

template <int ROWS, int STAGES> static enum status multiply_by(OP_ARGUMENTS)
{
    (void)p, (void)workspace;
    return launch_stages<ROWS, STAGES>(args_of<bf16>(in, out), in[0].shape[0], err);
}

const struct device_kernel grouped_kernels[] = {
    {"low_2_stages", ELEM_BF16, takes_stages<32, 2>, {multiply_by<32, 2>, NULL}},
    {"low_3_stages", ELEM_BF16, takes_stages<32, 3>, {multiply_by<32, 3>, NULL}},
    {"high_2_stages", ELEM_BF16, takes_stages<128, 2>, {multiply_by<128, 2>, NULL}},
    {"high_3_stages", ELEM_BF16, takes_stages<128, 3>, {multiply_by<128, 3>, NULL}},
    {},
};
