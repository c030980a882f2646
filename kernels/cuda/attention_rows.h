/* attention_rows.h - a tile's rows (attention_tiles.h) on their way
 * through blocks of keys, for attention_mma.cu, attention_sm90.cu
 * and attention_decode.cu.
 *
 * 1. The four lanes of a row share its maximum at once, its sum at the end.
 * 2. A weight exp(score - max) is at most 1. It is rounded to E for the
 *    product with values; all sums are f32. In f16 a weight below 2^-25 is 0:
 *    over 2^14 keys that loses less than 2^-11 of the largest value, which is
 *    f16's own rounding. */
#ifndef FERRY_KERNELS_CUDA_ATTENTION_ROWS_H
#define FERRY_KERNELS_CUDA_ATTENTION_ROWS_H

#include "kernels/cuda/attention_tiles.h"

/* Index of row `row` of a group's tile in [num_queries, heads]. */
template <typename E>
__device__ inline size_t head_row_of(const attention_args<E> &a, const struct tile &t, int row,
                                     unsigned group)
{
    const int of_range = t.first_row + row, query = query_at(a, of_range);
    const size_t token = (size_t)(a.spans[t.first_span].q_begin + query);
    return (token * a.groups + group) * a.queries + (unsigned)(of_range - query * (int)a.queries);
}

/* ---- rows without keys ---- */

/* Clears rows without a span; a group's blocks without a tile share them. */
template <typename E>
__device__ inline void clear_uncovered(const attention_args<E> &a, const struct tile &t,
                                       unsigned group)
{
    const int first = t.first_row * TILE_WARPS + (int)warp_id(), step = t.num_rows * TILE_WARPS;
    if (t.all_covered) return;
    for (int row = first; row < (int)a.num_queries; row += step) {
        if (spans_of_query(a, row).count > 0) continue;
        const size_t item = ((size_t)row * a.groups + group) * a.queries;
        for (unsigned i = lane_id(); i < a.queries * a.head_dim; i += WARP)
            a.o[item * a.head_dim + i] = from_real<E>(0);
        for (unsigned i = lane_id(); a.lse && i < a.queries; i += WARP)
            a.lse[item + i] = -INFINITY;
    }
}

/* ---- one block of keys ---- */

/* A lane's part of its warp's rows. */
template <int D, int M> struct rows_state {
    float o[M][D / 8][4];
    float max[M][2], sum[M][2]; /* sums over this lane's columns only */
};

template <int D, int M> __device__ inline void start_rows(struct rows_state<D, M> &r)
{
#pragma unroll
    for (int m = 0; m < M; m++) {
        r.max[m][0] = r.max[m][1] = -INFINITY;
        r.sum[m][0] = r.sum[m][1] = 0;
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            r.o[m][j][0] = r.o[m][j][1] = r.o[m][j][2] = r.o[m][j][3] = 0;
    }
}

template <int M, int KEYS>
__device__ inline void cap_scores(float (&scores)[M][KEYS / 8][4], float scale, float softcap)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                scores[m][j][e] = softcap * tanhf(scores[m][j][e] * scale / softcap);
}

/* first_row: the lane's first row, in the range. */
template <int M, int KEYS, typename E>
__device__ inline void mask_scores(float (&scores)[M][KEYS / 8][4], const attention_args<E> &a,
                                   const struct span &s, int at, int first_row)
{
    const int column = at + (int)lane_id() % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const struct interval keys = keys_of(a, s, query_at(a, first_row + m * 16 + half * 8));
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int key = column + j * 8 + e;
                    if (key < keys.begin || key >= keys.end) scores[m][j][2 * half + e] = -INFINITY;
                }
        }
}

/* The largest of a row: over the lane's columns, then over the four lanes. */
template <int N> __device__ inline float row_max(const float (&scores)[N][4], int half)
{
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < N; j++)
        top = fmaxf(top, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
    top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
    return fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
}

/* Scores become exp2(factor * (score - max)) under the rows' new max; r.max and
 * r.sum are updated. before: o's factor under the new max. */
template <int D, int M, int KEYS>
__device__ inline void weigh_scores(float (&scores)[M][KEYS / 8][4], struct rows_state<D, M> &r,
                                    float factor, float (&before)[M][2])
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float top = fmaxf(r.max[m][half], row_max(scores[m], half));
            const float shift = top == -INFINITY ? 0 : top * factor;
            before[m][half] = fast_exp2(r.max[m][half] * factor - shift);
            float sum = r.sum[m][half] * before[m][half];
            r.max[m][half] = top;
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    scores[m][j][e] = fast_exp2(scores[m][j][e] * factor - shift);
                    sum += scores[m][j][e];
                }
            r.sum[m][half] = sum;
        }
}

template <int D, int M>
__device__ inline void rescale_rows(struct rows_state<D, M> &r, const float (&before)[M][2])
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                r.o[m][j][e] *= before[m][e / 2];
}

/* Updates the softmax and rescales o. */
template <int D, int M, int KEYS>
__device__ inline void update_softmax(float (&scores)[M][KEYS / 8][4], struct rows_state<D, M> &r,
                                      float factor)
{
    float before[M][2];
    weigh_scores<D, M, KEYS>(scores, r, factor, before);
    rescale_rows<D, M>(r, before);
}

/* ---- the end ---- */

/* One row of the lane: `item` of o. */
template <int D, int M, typename E>
__device__ inline void finish_tile_row(const attention_args<E> &a, const struct rows_state<D, M> &r,
                                       int m, int half, size_t item, unsigned head)
{
    const int first = (int)lane_id() % 4 * 2;
    float sum = r.sum[m][half], max = r.max[m][half] * (a.softcap != 0 ? 1 : a.scale), scale = 1;
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    if (head >= a.groups * a.queries) return; /* beyond the last row */
    const bool empty = sum == 0;
    if (a.sinks && !empty) scale = add_sink(to_real(a.sinks[head]), &max, &sum);
    scale = empty ? 0 : scale / sum;
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
        const int d = j * 8 + first;
        const float x = scale * r.o[m][j][2 * half], y = scale * r.o[m][j][2 * half + 1];
        if (d < (int)a.head_dim) store_reals<E, 2>(a.o + item * a.head_dim + d, {x, y});
    }
    if (first == 0 && a.lse) a.lse[item] = empty ? -INFINITY : max + logf(sum);
}

/* warp_row: the warp's first row, in the tile. */
template <int D, int M, typename E>
__device__ inline void finish_rows(const attention_args<E> &a, const struct tile &t,
                                   const struct rows_state<D, M> &r, int warp_row, unsigned group)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = warp_row + m * 16 + half * 8 + (int)lane_id() / 4;
            const size_t item = head_row_of(a, t, row, group);
            const unsigned heads = a.groups * a.queries;
            finish_tile_row(a, r, m, half, item,
                            row < t.num_rows ? (unsigned)(item % heads) : heads);
        }
}

#endif
