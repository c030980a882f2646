/* Attention of bf16 and f16 heads on tensor cores, after FlashAttention-2 (Dao 2023).
 *
 * 1. Rows, tiles and blocks of keys are those of attention_tiles.h. While a block's scores are made
 *    its values arrive; while they are weighed the next block's keys do.
 * 2. The four lanes of a row agree on its maximum at once, on its sum at the end.
 * 3. Where there are fewer tiles than the GPU has room for, the blocks of keys of a tile are split
 *    among several blocks, whose results another kernel merges.
 * 4. Blocks that are launched without a tile clear the rows that no span has.
 * 5. A weight exp(score - max) is at most 1. It is rounded to E for the product with values; all
 * sums are f32. In f16 a weight below 2^-25 is 0: over 2^14 keys that takes less than 2^-11 of the
 *    largest value, which is how far f16 rounds it. */
#include <algorithm>

#include "kernels/cuda/attention_tiles.h"

enum { MAX_SPLITS = 64, MERGE_WARPS = 4 };

template <int D, int M> struct tile_shape {
    static const int ROWS = 16 * M * TILE_WARPS, KEYS = D > 128 ? 32 : 64, STRIDE = D + 8;
    static const size_t BYTES = (ROWS + 2 * KEYS) * STRIDE * MMA_ELEM_BYTES;
};

/* ---- rows without keys ---- */

/* A row that no span has, or whose part of the keys is empty. */
template <typename E>
__device__ inline void clear_head(const attention_args<E> &a, size_t item, unsigned split)
{
    if (a.splits > 1) {
        if (lane_id() == 0)
            a.part_lse[split * (size_t)a.num_queries * a.groups * a.queries + item] = -INFINITY;
        return;
    }
    for (unsigned d = lane_id(); d < a.head_dim; d += WARP)
        a.o[item * a.head_dim + d] = from_real<E>(0);
    if (a.lse && lane_id() == 0) a.lse[item] = -INFINITY;
}

template <typename E>
__device__ inline void clear_uncovered(const attention_args<E> &a, const struct tile &t,
                                       unsigned group, unsigned split)
{
    const int first = t.first_row * TILE_WARPS + (int)warp_id(), step = t.num_rows * TILE_WARPS;
    if (t.all_covered) return;
    for (int row = first; row < (int)a.num_queries; row += step) {
        if (spans_of_query(a, row).count > 0) continue;
        for (unsigned j = 0; j < a.queries; j++)
            clear_head(a, ((size_t)row * a.groups + group) * a.queries + j, split);
    }
}

/* ---- one block of keys ---- */

/* A lane's part of the rows of its warp. */
template <int D, int M> struct rows_state {
    float o[M][D / 8][4];
    float max[M][2], sum[M][2]; /* sums of this lane's columns alone */
};

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

/* first_row: the lane's first, of the range. */
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

/* The largest of a row: of the lane's columns, then of the four lanes'. */
template <int N> __device__ inline float row_max(const float (&scores)[N][4], int half)
{
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < N; j++)
        top = fmaxf(top, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
    top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
    return fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
}

/* Scores become exp2(factor * (score - max)); o and sum what they are worth under the new max. */
template <int D, int M, int KEYS>
__device__ inline void soften(float (&scores)[M][KEYS / 8][4], struct rows_state<D, M> &r,
                              float factor)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float top = fmaxf(r.max[m][half], row_max(scores[m], half));
            const float shift = top == -INFINITY ? 0 : top * factor;
            const float before = fast_exp2(r.max[m][half] * factor - shift);
            float sum = r.sum[m][half] * before;
            r.max[m][half] = top;
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    scores[m][j][e] = fast_exp2(scores[m][j][e] * factor - shift);
                    sum += scores[m][j][e];
                }
            r.sum[m][half] = sum;
#pragma unroll
            for (int j = 0; j < D / 8; j++) {
                r.o[m][j][2 * half] *= before;
                r.o[m][j][2 * half + 1] *= before;
            }
        }
}

/* ---- the end ---- */

/* One row of the lane: row `row` of the range is `item` of o. */
template <int D, int M, typename E>
__device__ inline void finish_row(const attention_args<E> &a, const struct rows_state<D, M> &r,
                                  int m, int half, size_t item, unsigned head, unsigned split)
{
    const size_t heads = (size_t)a.num_queries * a.groups * a.queries;
    const int first = (int)lane_id() % 4 * 2;
    float sum = r.sum[m][half], max = r.max[m][half] * (a.softcap != 0 ? 1 : a.scale), scale = 1;
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    if (head >= a.groups * a.queries) return; /* behind the last row */
    const bool empty = sum == 0;
    if (a.sinks && !empty && a.splits == 1) scale = add_sink(to_real(a.sinks[head]), &max, &sum);
    scale = empty ? 0 : scale / sum;
    const float lse = empty ? -INFINITY : max + logf(sum);
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
        const int d = j * 8 + first;
        const float x = scale * r.o[m][j][2 * half], y = scale * r.o[m][j][2 * half + 1];
        if (d >= (int)a.head_dim) continue;
        if (a.splits > 1)
            store_reals<float, 2>(a.part_o + (split * heads + item) * a.head_dim + d, {x, y});
        else
            store_reals<E, 2>(a.o + item * a.head_dim + d, {x, y});
    }
    if (first != 0) return;
    if (a.splits > 1) a.part_lse[split * heads + item] = lse;
    if (a.splits == 1 && a.lse) a.lse[item] = lse;
}

template <int D, int M, typename E>
__device__ inline void finish_rows(const attention_args<E> &a, const struct tile &t,
                                   const struct rows_state<D, M> &r, int warp_row, unsigned group,
                                   unsigned split)
{
    const int q_begin = a.spans[t.first_span].q_begin;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = warp_row + m * 16 + half * 8 + (int)lane_id() / 4;
            const int query = query_at(a, t.first_row + row);
            unsigned head = group * a.queries + (t.first_row + row - query * (int)a.queries);
            const size_t item = (size_t)(q_begin + query) * a.groups * a.queries + head;
            if (row >= t.num_rows) head = a.groups * a.queries;
            finish_row(a, r, m, half, item, head, split);
        }
}

/* ---- the kernel ---- */

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

/* Blocks in x are tiles of all groups, those of one tile beside one another; in y, splits. */
template <int D, int M, typename E>
__global__ void __launch_bounds__(TILE_THREADS) attend_tiles(const attention_args<E> a)
{
    typedef tile_shape<D, M> shape;
    const int ROWS = shape::ROWS, KEYS = shape::KEYS;
    DYNAMIC_SHARED(shared);
    E *q = reinterpret_cast<E *>(shared);
    E *k = q + ROWS * shape::STRIDE, *v = k + KEYS * shape::STRIDE;
    const unsigned group = blockIdx.x % a.groups, split = blockIdx.y;
    const struct tile t =
        find_tile<ROWS>(a, (int)(blockIdx.x / a.groups), (int)(gridDim.x / a.groups));
    if (t.num_spans == 0) {
        clear_uncovered(a, t, group, split);
        return;
    }
    const int warp_row = (int)warp_id() * 16 * M, num_blocks = count_blocks<KEYS>(a, t);
    const int first = (int)((int64_t)num_blocks * split / a.splits);
    const int end = (int)((int64_t)num_blocks * (split + 1) / a.splits);
    const bool has_rows = warp_row < t.num_rows;
    const float log2_e = 1.44269504f, factor = a.softcap != 0 ? log2_e : a.scale * log2_e;
    struct rows_state<D, M> r;
    struct place p = {};
    start_rows(r);
    load_queries<D, ROWS>(q, a.q + group * a.q_stride, a.q_columns, a, t);
    if (first < end) {
        p = seek<KEYS>(a, t, first);
        load_heads<D, KEYS>(k, a, t, p, group, a.k_at);
    }
    copies_commit();
    for (int block = first; block < end; block++) {
        float scores[M][KEYS / 8][4];
        const struct place now = p;
        copies_wait<0>();
        __syncthreads(); /* keys are here, and all are done with the values before */
        load_heads<D, KEYS>(v, a, t, now, group, a.v_at);
        copies_commit();
        if (has_rows) make_scores<D, M, KEYS>(scores, q + warp_row * shape::STRIDE, k);
        copies_wait<0>();
        __syncthreads(); /* values are here, and all are done with the keys */
        if (block + 1 < end) {
            p = next_block<KEYS>(a, t, now);
            load_heads<D, KEYS>(k, a, t, p, group, a.k_at);
        }
        copies_commit();
        if (!has_rows) continue;
        if (a.softcap != 0) cap_scores<M, KEYS>(scores, a.scale, a.softcap);
        if (!needs_no_mask<KEYS>(a, t, now))
            mask_scores<M, KEYS>(scores, a, span_of(a, t, now), now.at,
                                 t.first_row + warp_row + (int)lane_id() / 4);
        soften<D, M, KEYS>(scores, r, factor);
        add_values<D, D, M, KEYS>(r.o, scores, v);
    }
    copies_wait<0>();
    if (has_rows) finish_rows<D, M>(a, t, r, warp_row, group, split);
}

/* ---- merging splits: a warp a query head of a token ---- */

template <typename E> __global__ void merge_splits(const attention_args<E> a)
{
    const size_t heads = (size_t)a.num_queries * a.groups * a.queries;
    const size_t item = (size_t)blockIdx.x * MERGE_WARPS + warp_id();
    if (item >= heads) return;
    float max = -INFINITY, sum = 0, before = 1;
    for (unsigned s = 0; s < a.splits; s++)
        max = fmaxf(max, a.part_lse[s * heads + item]);
    const bool empty = max == -INFINITY;
    const float shift = empty ? 0 : max;
    for (unsigned s = 0; s < a.splits; s++)
        sum += expf(a.part_lse[s * heads + item] - shift);
    if (a.sinks && !empty)
        before = add_sink(to_real(a.sinks[item % (a.groups * a.queries)]), &max, &sum);
    const float scale = empty ? 0 : before / sum;
    for (unsigned d = lane_id(); d < a.head_dim; d += WARP) {
        float x = 0;
        for (unsigned s = 0; s < a.splits; s++) {
            const float lse = a.part_lse[s * heads + item];
            if (lse == -INFINITY) continue; /* its part of o was never written */
            x += expf(lse - shift) * a.part_o[(s * heads + item) * a.head_dim + d];
        }
        a.o[item * a.head_dim + d] = from_real<E>(scale * x);
    }
    if (a.lse && lane_id() == 0) a.lse[item] = empty ? -INFINITY : max + logf(sum);
}

/* ---- the launch ---- */

bool attention_fits_mma(const union op_params *p, const struct operand *in)
{
    const struct head_shape s = p->attention.heads;
    const uint64_t runs = s.head_dim | in[0].shape[1] | in[1].shape[1] | p->attention.q_stride |
                          p->attention.kv_stride | p->attention.k_at | p->attention.v_at;
    return s.head_dim <= 256 && runs % 8 == 0 && p->attention.scale > 0 &&
           p->attention.dropout.probability == 0;
}

/* Tiles of 64 rows, rather than of 128, where ranges have few. */
static bool wants_low_tiles(uint64_t num_queries, uint64_t queries, uint64_t num_spans)
{
    return num_queries * queries < 128 * std::max<uint64_t>(1, std::min(num_spans, num_queries));
}

/* At least 256 keys each, as many as give every multiprocessor two blocks. */
unsigned attention_splits(const union op_params *p, const struct operand *in)
{
    const struct head_shape s = p->attention.heads;
    const uint64_t num_queries = in[0].shape[0], num_spans = in[2].shape[0];
    if (!wants_low_tiles(num_queries, s.queries, num_spans)) return 1;
    const uint64_t tiles = std::max<uint64_t>(blocks_for(num_queries * s.queries, 64),
                                              std::min(num_queries, num_spans));
    const uint64_t wanted =
        2 * (uint64_t)cuda_multiprocessors / std::max<uint64_t>(1, tiles * s.groups);
    const uint64_t most = std::min<uint64_t>(MAX_SPLITS, in[1].shape[0] / 256);
    return (unsigned)std::max<uint64_t>(1, std::min(wanted, most));
}

/* One block more than there can be tiles of each group, to clear what no span has. */
template <int D, int M, typename E>
static enum status launch_tiles(const attention_args<E> &a, struct error *err)
{
    typedef tile_shape<D, M> shape;
    static bool is_set; /* that it may have so much shared memory */
    if (!is_set) TRY(allow_shared("attention", attend_tiles<D, M, E>, shape::BYTES, err));
    is_set = true;
    const unsigned tiles = (unsigned)((uint64_t)a.num_queries * a.queries / shape::ROWS) +
                           std::min(a.num_spans, a.num_queries) + 1;
    return launch("attention", err, attend_tiles<D, M, E>, dim3(tiles * a.groups, a.splits),
                  TILE_THREADS, shape::BYTES, a);
}

template <typename E>
using launch_function = enum status(const attention_args<E> &a, struct error *err);

/* The variant with the smallest head that a's fits into. */
template <typename E> static launch_function<E> *variant_for(const attention_args<E> &a)
{
    static const struct {
        unsigned head_dim;
        launch_function<E> *few_rows, *many_rows;
    } variants[] = {{64, launch_tiles<64, 1>, launch_tiles<64, 2>},
                    {80, launch_tiles<128, 1>, launch_tiles<80, 2>},
                    {96, launch_tiles<128, 1>, launch_tiles<96, 2>},
                    {128, launch_tiles<128, 1>, launch_tiles<128, 2>},
                    {256, launch_tiles<256, 1>, launch_tiles<256, 1>}};
    unsigned i = 0;
    while (variants[i].head_dim < a.head_dim)
        i++;
    return wants_low_tiles(a.num_queries, a.queries, a.num_spans) ? variants[i].few_rows
                                                                  : variants[i].many_rows;
}

template <typename E> enum status attention_mma(const attention_args<E> &a, struct error *err)
{
    if (a.num_queries == 0) return OK;
    TRY(variant_for(a)(a, err));
    if (a.splits == 1) return OK;
    const size_t heads = (size_t)a.num_queries * a.groups * a.queries;
    return launch("attention", err, merge_splits<E>, dim3(blocks_for(heads, MERGE_WARPS)),
                  MERGE_WARPS * WARP, 0, a);
}

template enum status attention_mma(const attention_args<bf16> &a, struct error *err);
template enum status attention_mma(const attention_args<f16> &a, struct error *err);
