/* attention_tiles.h - tiles of queries and blocks of keys on tensor cores, for
 * attention_mma.cu, attention_sm90.cu and attention_backward_mma.cu.
 *
 * 1. Rows are the queries of a range of spans in a group, row = query * queries
 *    + head: a group's heads share keys and values. A block has a tile of rows,
 *    of which a warp has 16 M; tiles with the most keys come first.
 * 2. Keys come in blocks, one after the other through all spans of the range.
 * 3. A lane has rows g and g + 8 of each 16 (mma.h), a quarter of their
 *    columns.
 * 4. Only the device knows the number of tiles, so blocks are launched in
 *    excess.
 *
 * D is head_dim, padded by zeros. Rows in shared memory are 16 bytes longer, so
 * that the eight that ldmatrix reads at once lie in different banks. */
#ifndef FERRY_KERNELS_CUDA_ATTENTION_TILES_H
#define FERRY_KERNELS_CUDA_ATTENTION_TILES_H

#include "kernels/cuda/attention.h"
#include "kernels/cuda/mma.h"

enum { TILE_WARPS = 4, TILE_THREADS = TILE_WARPS * WARP };

struct tile {
    unsigned first_span, num_spans; /* 0: no tile; the block is number first_row of num_rows */
    int first_row, num_rows;        /* in the range */
    bool all_covered;               /* every row of q is in a span */
};

/* ---- which tile ---- */

/* Every warp of the block finds the same tile. */
template <int ROWS, typename E>
__device__ inline struct tile find_tile(const attention_args<E> &a, int number, int num_blocks)
{
    int tiles_before = 0, covered = 0;
    struct tile t = {0, 0, 0, 0, false};
    for (unsigned base = 0; base < a.num_spans; base += WARP) {
        const unsigned i = base + lane_id();
        const struct span s = i < a.num_spans ? a.spans[i] : no_span();
        const unsigned live = live_lanes(s);
        const bool starts =
            (live >> lane_id() & 1) && (i == 0 || a.spans[i - 1].q_begin != s.q_begin);
        const int own = starts ? (int)((s.q_count * (int64_t)a.queries + ROWS - 1) / ROWS) : 0;
        int upto = own;
        for (unsigned distance = 1; distance < WARP; distance *= 2) {
            const int left = __shfl_up_sync(ALL_LANES, upto, distance);
            if (lane_id() >= distance) upto += left;
        }
        const unsigned after = __ballot_sync(ALL_LANES, number < tiles_before + upto);
        if (after) {
            const int lane = __ffs((int)after) - 1;
            const int last = tiles_before + __shfl_sync(ALL_LANES, upto, lane) - 1;
            t.first_span = base + (unsigned)lane;
            t.num_spans = 1;
            t.first_row = (last - number) * ROWS;
            break;
        }
        tiles_before += __shfl_sync(ALL_LANES, upto, WARP - 1);
        covered += warp_reduce(starts ? s.q_count : 0, add_up());
        if (live != ALL_LANES) break;
    }
    if (t.num_spans == 0) {
        t.first_row = number - tiles_before;
        t.num_rows = num_blocks - tiles_before;
        t.all_covered = covered == (int)a.num_queries;
        return t;
    }
    const struct span s = a.spans[t.first_span];
    const int left = (int)(s.q_count * (int64_t)a.queries) - t.first_row;
    t.num_rows = left < ROWS ? left : ROWS;
    for (unsigned i = t.first_span + 1; i < a.num_spans; i++, t.num_spans++)
        if (a.spans[i].q_count <= 0 || a.spans[i].q_begin != s.q_begin) break;
    return t;
}

/* Blocks of a group: one more than its tiles at most, to clear rows
 * without spans. */
template <int ROWS, typename E> static inline unsigned tiles_of(const attention_args<E> &a)
{
    const unsigned ends = a.num_spans < a.num_queries ? a.num_spans : a.num_queries;
    return (unsigned)((uint64_t)a.num_queries * a.queries / ROWS) + ends + 1;
}

/* ---- which keys ---- */

/* A block of keys: [at, min(at + KEYS, end)) of a span, where `end` limits the
 * keys that some row of the tile may attend to. The span is read again when
 * needed: registers are scarce. */
struct place {
    unsigned number; /* of the span, counted from the tile's first */
    int at, end;
};

template <typename E> __device__ inline int query_at(const attention_args<E> &a, int row)
{
    return row / (int)a.queries;
}

template <typename E>
__device__ inline struct span span_of(const attention_args<E> &a, const struct tile &t,
                                      const struct place &p)
{
    return a.spans[t.first_span + p.number];
}

/* The first block of keys of a span. */
template <typename E>
__device__ inline struct place span_start(const attention_args<E> &a, const struct tile &t,
                                          unsigned number)
{
    struct place p;
    p.number = number;
    const struct span s = span_of(a, t, p);
    p.at = keys_of(a, s, query_at(a, t.first_row)).begin;
    p.end = keys_of(a, s, query_at(a, t.first_row + t.num_rows - 1)).end;
    return p;
}

/* Blocks from p to the end of its span. */
template <int KEYS> __device__ inline int blocks_of(const struct place &p)
{
    return p.at < p.end ? (p.end - p.at + KEYS - 1) / KEYS : 0;
}

template <int KEYS, typename E>
__device__ inline int count_blocks(const attention_args<E> &a, const struct tile &t)
{
    int n = 0;
    for (unsigned i = 0; i < t.num_spans; i++)
        n += blocks_of<KEYS>(span_start(a, t, i));
    return n;
}

/* Block number `block`, which must exist. */
template <int KEYS, typename E>
__device__ inline struct place seek_block(const attention_args<E> &a, const struct tile &t,
                                          int block)
{
    struct place p = span_start(a, t, 0);
    for (int n; block >= (n = blocks_of<KEYS>(p)); block -= n)
        p = span_start(a, t, p.number + 1);
    p.at += block * KEYS;
    return p;
}

/* The block after p, which must exist. */
template <int KEYS, typename E>
__device__ inline struct place next_block(const attention_args<E> &a, const struct tile &t,
                                          struct place p)
{
    p.at += KEYS;
    while (p.at >= p.end)
        p = span_start(a, t, p.number + 1);
    return p;
}

/* ---- into shared memory ---- */

/* Loads `rows` rows, of which `there` exist: D / 8 runs of 16 bytes each, zeros
 * beyond head_dim. */
template <int D, int KEYS, typename E>
__device__ inline void load_block(E *to, const E *from, size_t columns, unsigned head_dim,
                                  int there)
{
    const int runs = D / 8;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < KEYS * runs; i += TILE_THREADS) {
        const int row = i / runs, d = i % runs * 8;
        const bool is_there = row < there && d < (int)head_dim;
        copy_16_bytes(to + row * (D + 8) + d, is_there ? from + row * columns + d : from, is_there);
    }
}

template <int D, int KEYS, typename E>
__device__ inline void load_heads(E *to, const attention_args<E> &a, const struct tile &t,
                                  const struct place &p, unsigned group, unsigned head_at)
{
    const size_t row = (size_t)(span_of(a, t, p).k_begin + p.at);
    load_block<D, KEYS>(to, a.kv + row * a.kv_columns + group * a.kv_stride + head_at, a.kv_columns,
                        a.head_dim, p.end - p.at);
}

/* Loads rows of an array like q, `columns` elements wide, from the group's
 * first head on. */
template <int D, int ROWS, typename E>
__device__ inline void load_queries(E *to, const E *heads, size_t columns,
                                    const attention_args<E> &a, const struct tile &t)
{
    const int runs = D / 8, q_begin = a.spans[t.first_span].q_begin;
    for (int i = (int)threadIdx.x; i < ROWS * runs; i += TILE_THREADS) {
        const int row = i / runs, d = i % runs * 8, of_range = t.first_row + row;
        const bool there = row < t.num_rows && d < (int)a.head_dim;
        const int query = query_at(a, of_range), head = of_range - query * (int)a.queries;
        const E *from = heads;
        if (there) from += (size_t)(q_begin + query) * columns + head * a.head_dim + d;
        copy_16_bytes(to + row * (D + 8) + d, from, there);
    }
}

/* ---- products ---- */

/* scores = q k^T */
template <int D, int M, int KEYS, typename E>
__device__ inline void make_scores(float (&scores)[M][KEYS / 8][4], const E *q, const E *k)
{
    const int lane = (int)lane_id(), stride = D + 8;
    const E *q_row = q + lane % 16 * stride + lane / 16 * 8;
    const E *k_row = k + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
            scores[m][j][0] = scores[m][j][1] = scores[m][j][2] = scores[m][j][3] = 0;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t left[M][4], right[4];
#pragma unroll
        for (int m = 0; m < M; m++)
            load_matrices(left[m], q_row + m * 16 * stride + d);
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) {
            load_matrices(right, k_row + j * 16 * stride + d);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<E>(scores[m][2 * j], left[m], right[0], right[1]);
                mma<E>(scores[m][2 * j + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* o += weights v, OUT columns of rows of D. Two neighbours of C lie as one
 * of A. */
template <int D, int OUT, int M, int KEYS, typename E>
__device__ inline void add_values(float (&o)[M][OUT / 8][4], const float (&weights)[M][KEYS / 8][4],
                                  const E *v)
{
    const int lane = (int)lane_id(), stride = D + 8;
    const E *v_row = v + lane % 16 * stride + lane / 16 * 8;
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) {
        uint32_t left[M][4], right[4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < 4; n++)
                left[m][n] = pack_two<E>(weights[m][2 * j + n / 2][n % 2 * 2],
                                         weights[m][2 * j + n / 2][n % 2 * 2 + 1]);
#pragma unroll
        for (int d = 0; d < OUT / 16; d++) {
            load_matrices_transposed(right, v_row + j * 16 * stride + d * 16);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<E>(o[m][2 * d], left[m], right[0], right[1]);
                mma<E>(o[m][2 * d + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* Whether every row of the tile may attend to every key of the block. */
template <int KEYS, typename E>
__device__ inline bool needs_no_mask(const attention_args<E> &a, const struct tile &t,
                                     const struct place &p)
{
    const struct span s = span_of(a, t, p);
    return p.at + KEYS <= keys_of(a, s, query_at(a, t.first_row)).end &&
           p.at >= keys_of(a, s, query_at(a, t.first_row + t.num_rows - 1)).begin;
}

#endif
