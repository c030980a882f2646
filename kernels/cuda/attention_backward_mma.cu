/* attention_backward_mma.cu - the backward of attention for bf16 and f16 heads
 * up to 256 on tensor cores, after FlashAttention-2 (Dao 2023).
 *
 * 1. dq: a block has a tile of rows (attention_tiles.h) and goes over its
 *    blocks of keys: three products each.
 * 2. dk and dv: a block has KEYS rows of kv, a warp 16. It goes over all spans
 *    that share keys with them, the group's query heads, and tiles of queries:
 *    four products each. Scores have keys as rows, to be the left side of the
 *    products that follow. Scores are computed twice in all; in return no
 *    gradient is added to by several blocks, and bits do not depend on the
 *    order of blocks.
 * 3. The next data is loaded into the other of two stages during computation.
 * 4. Heads above 128: a block has OUT of the columns of dk and dv, for lack
 *    of registers.
 * 5. p and ds are rounded to E for the products that follow, whose sums are
 *    f32. In f16 both have fewer digits below 2^-14. A ds too large for f16
 *    makes dq and dk infinite or NaN, even if their own sums are not: then the
 *    step is skipped and the loss scale falls, as when a gradient itself
 *    overflows. */
#include <algorithm>

#include "kernels/cuda/attention_backward.h"
#include "kernels/cuda/attention_tiles.h"

#define LOG2_E 1.44269504f

template <typename E> using backward_args = attention_backward_args<E>;

/* ---- a query and a key ---- */

/* Scores become p, dov becomes ds. lse is times log2(e). Both are 0 for
 * masked pairs. */
template <typename E>
__device__ inline void weigh_pair(const attention_args<E> &a, float &score, float &dov, float lse,
                                  float delta, bool attends)
{
    float slope = 1, exponent = score * (a.scale * LOG2_E);
    if (a.softcap != 0) {
        const float share = tanhf(score * a.scale / a.softcap);
        slope = 1 - share * share;
        exponent = a.softcap * share * LOG2_E;
    }
    const float p = fast_exp2(exponent - lse);
    score = attends ? p : 0;
    dov = attends ? p * (dov - delta) * slope : 0;
}

template <int N> __device__ inline void clear(float (&x)[1][N][4])
{
#pragma unroll
    for (int j = 0; j < N; j++)
        x[0][j][0] = x[0][j][1] = x[0][j][2] = x[0][j][3] = 0;
}

/* Stores two elements of a head; d and head_dim are even. */
template <typename E>
__device__ inline void store_pair(E *head, int d, unsigned head_dim, float x, float y)
{
    if (d < (int)head_dim) store_reals<E, 2>(head + d, {x, y});
}

/* ---- dq ---- */

template <int D> struct dq_shape {
    static const int ROWS = 16 * TILE_WARPS, KEYS = D > 64 ? 32 : 64, STRIDE = D + 8;
    static const int STAGE = 2 * KEYS * STRIDE; /* keys, then values */
    static const size_t BYTES = (2 * ROWS * STRIDE + 2 * STAGE) * MMA_ELEM_BYTES;
};

/* Rows g and g + 8 of a lane. */
struct dq_rows {
    float lse[2], delta[2];
};

template <typename E>
__device__ inline struct dq_rows load_dq_rows(const backward_args<E> &b, const struct tile &t,
                                              int warp_row, unsigned group)
{
    const attention_args<E> &a = b.a;
    const int q_begin = a.spans[t.first_span].q_begin;
    struct dq_rows r;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = warp_row + half * 8 + (int)lane_id() / 4, of_range = t.first_row + row;
        const int query = query_at(a, of_range), head = of_range - query * (int)a.queries;
        const size_t item =
            ((size_t)(q_begin + query) * a.groups + group) * a.queries + (size_t)head;
        const bool there = row < t.num_rows;
        r.lse[half] = there ? b.lse[item] * LOG2_E : 0;
        r.delta[half] = there ? b.delta[item] : 0;
    }
    return r;
}

/* first_row: the lane's first row, in the range. */
template <int KEYS, typename E>
__device__ inline void weigh_keys(float (&scores)[1][KEYS / 8][4], float (&dov)[1][KEYS / 8][4],
                                  const attention_args<E> &a, const struct span &s, int at,
                                  int first_row, const struct dq_rows &r)
{
    const int column = at + (int)lane_id() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const struct interval keys = keys_of(a, s, query_at(a, first_row + half * 8));
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int key = column + j * 8 + e;
                weigh_pair(a, scores[0][j][2 * half + e], dov[0][j][2 * half + e], r.lse[half],
                           r.delta[half], key >= keys.begin && key < keys.end);
            }
    }
}

template <int D, typename E>
__device__ inline void store_dq(const backward_args<E> &b, const struct tile &t,
                                const float (&dq)[1][D / 8][4], int warp_row, unsigned group)
{
    const attention_args<E> &a = b.a;
    const int q_begin = a.spans[t.first_span].q_begin;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = warp_row + half * 8 + (int)lane_id() / 4, of_range = t.first_row + row;
        const int query = query_at(a, of_range), head = of_range - query * (int)a.queries;
        E *to =
            b.dq + (size_t)(q_begin + query) * a.q_columns + group * a.q_stride + head * a.head_dim;
        if (row >= t.num_rows) continue;
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            store_pair(to, j * 8 + (int)lane_id() % 4 * 2, a.head_dim, a.scale * dq[0][j][2 * half],
                       a.scale * dq[0][j][2 * half + 1]);
    }
}

template <int D, typename E>
__device__ inline void load_keys(E *stage, const attention_args<E> &a, const struct tile &t,
                                 const struct place &p, unsigned group)
{
    typedef dq_shape<D> shape;
    load_heads<D, shape::KEYS>(stage, a, t, p, group, a.k_at);
    load_heads<D, shape::KEYS>(stage + shape::KEYS * shape::STRIDE, a, t, p, group, a.v_at);
}

/* Blocks are tiles of all groups; those of one tile are neighbours. */
template <int D, typename E>
__global__ void __launch_bounds__(TILE_THREADS) dq_tiles(const backward_args<E> b)
{
    typedef dq_shape<D> shape;
    const int ROWS = shape::ROWS, KEYS = shape::KEYS;
    DYNAMIC_SHARED(shared);
    const attention_args<E> &a = b.a;
    E *q = reinterpret_cast<E *>(shared), *d_o = q + ROWS * shape::STRIDE;
    E *const stages = d_o + ROWS * shape::STRIDE;
    const unsigned group = blockIdx.x % a.groups;
    const struct tile t =
        find_tile<ROWS>(a, (int)(blockIdx.x / a.groups), (int)(gridDim.x / a.groups));
    if (t.num_spans == 0) return;
    const int warp_row = (int)warp_id() * 16, num_blocks = count_blocks<KEYS>(a, t);
    const unsigned heads_at = group * a.queries * a.head_dim;
    const struct dq_rows r = load_dq_rows(b, t, warp_row, group);
    float dq[1][D / 8][4];
    struct place p = {};
    clear(dq);
    load_queries<D, ROWS>(q, a.q + group * a.q_stride, a.q_columns, a, t);
    load_queries<D, ROWS>(d_o, b.d_o + heads_at, (size_t)a.groups * a.queries * a.head_dim, a, t);
    if (num_blocks > 0) {
        p = seek_block<KEYS>(a, t, 0);
        load_keys<D>(stages, a, t, p, group);
    }
    copies_commit();
    for (int block = 0; block < num_blocks; block++) {
        float scores[1][KEYS / 8][4], dov[1][KEYS / 8][4];
        const struct place now = p;
        const E *const k = stages + block % 2 * shape::STAGE, *v = k + KEYS * shape::STRIDE;
        copies_wait<0>();
        __syncthreads(); /* this block has arrived, the previous one is free */
        if (block + 1 < num_blocks) {
            p = next_block<KEYS>(a, t, now);
            load_keys<D>(stages + (block + 1) % 2 * shape::STAGE, a, t, p, group);
        }
        copies_commit();
        if (warp_row >= t.num_rows) continue;
        make_scores<D, 1, KEYS>(scores, q + warp_row * shape::STRIDE, k);
        make_scores<D, 1, KEYS>(dov, d_o + warp_row * shape::STRIDE, v);
        weigh_keys<KEYS>(scores, dov, a, span_of(a, t, now), now.at,
                         t.first_row + warp_row + (int)lane_id() / 4, r);
        add_values<D, D, 1, KEYS>(dq, dov, k);
    }
    copies_wait<0>();
    store_dq<D>(b, t, dq, warp_row, group);
}

/* ---- dk and dv ---- */

template <int D> struct dkv_shape {
    static const int KEYS = 16 * TILE_WARPS, ROWS = D > 64 ? 32 : 64, STRIDE = D + 8;
    static const int OUT = D > 128 ? 128 : D, PARTS = D / OUT;
    static const int STAGE = 2 * ROWS * STRIDE; /* queries, then do */
    static const size_t COPIED = (2 * KEYS * STRIDE + 2 * STAGE) * MMA_ELEM_BYTES;
    static const size_t BYTES = COPIED + 4 * ROWS * sizeof(float); /* lse and delta of stages */
};

/* Queries [at, min(at + ROWS, end)) of a span, for a head of the group. */
struct query_tile {
    unsigned number, head; /* number: of the span; num_spans: no more tiles */
    int begin, at, end;    /* begin: first query of the next head */
};

/* The first tile of spans from `span` on that share keys with rows [row, row +
 * KEYS) of kv. */
template <int KEYS, typename E>
__device__ inline struct query_tile first_tile(const attention_args<E> &a, unsigned span, int row)
{
    struct query_tile t = {a.num_spans, 0, 0, 0, 0};
    for (unsigned i = span; i < a.num_spans; i++) {
        const struct span s = a.spans[i];
        if (s.q_count <= 0) break;
        const int first = max(row - s.k_begin, 0),
                  last = min(row + KEYS - s.k_begin, s.k_count) - 1;
        if (first > last) continue;
        t.begin = t.at = queries_of(a, s, first).begin;
        t.end = queries_of(a, s, last).end;
        if (t.begin >= t.end) continue;
        t.number = i;
        break;
    }
    return t;
}

template <int KEYS, int ROWS, typename E>
__device__ inline struct query_tile next_tile(const attention_args<E> &a, struct query_tile t,
                                              int row)
{
    t.at += ROWS;
    if (t.at < t.end) return t;
    t.at = t.begin;
    if (++t.head < a.queries) return t;
    return first_tile<KEYS>(a, t.number + 1, row);
}

template <int D, typename E>
__device__ inline void load_tile(E *stage, const backward_args<E> &b, const struct query_tile &t,
                                 unsigned group)
{
    typedef dkv_shape<D> shape;
    const attention_args<E> &a = b.a;
    const size_t row = (size_t)(a.spans[t.number].q_begin + t.at);
    const size_t columns = (size_t)a.groups * a.queries * a.head_dim;
    const unsigned head = group * a.queries + t.head;
    load_block<D, shape::ROWS>(stage,
                               a.q + row * a.q_columns + group * a.q_stride + t.head * a.head_dim,
                               a.q_columns, a.head_dim, t.end - t.at);
    load_block<D, shape::ROWS>(stage + shape::ROWS * shape::STRIDE,
                               b.d_o + row * columns + (size_t)head * a.head_dim, columns,
                               a.head_dim, t.end - t.at);
}

/* lse and delta of one query of a tile. A missing query has p = 0. */
struct query_numbers {
    float lse, delta;
};

template <int ROWS, typename E>
__device__ inline struct query_numbers load_numbers(const backward_args<E> &b,
                                                    const struct query_tile &t, unsigned group)
{
    const attention_args<E> &a = b.a;
    struct query_numbers n = {INFINITY, 0};
    const int query = t.at + (int)threadIdx.x;
    if (threadIdx.x >= ROWS || query >= t.end) return n;
    const size_t row = (size_t)(a.spans[t.number].q_begin + query);
    const size_t item = (row * a.groups + group) * a.queries + t.head;
    n.lse = b.lse[item] * LOG2_E;
    n.delta = b.delta[item];
    return n;
}

template <int ROWS> __device__ inline void keep_numbers(float *to, const struct query_numbers &n)
{
    if (threadIdx.x >= ROWS) return;
    to[threadIdx.x] = n.lse;
    to[ROWS + threadIdx.x] = n.delta;
}

/* row: the lane's first row of kv. numbers: lse of the tile's queries,
 * then delta. */
template <int ROWS, typename E>
__device__ inline void weigh_queries(float (&scores)[1][ROWS / 8][4], float (&dov)[1][ROWS / 8][4],
                                     const attention_args<E> &a, const struct query_tile &t,
                                     int row, const float *numbers)
{
    const struct span s = a.spans[t.number];
    const int column = (int)lane_id() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int key = row + half * 8 - s.k_begin;
        struct interval queries = {0, 0};
        if (key >= 0 && key < s.k_count) queries = queries_of(a, s, key);
#pragma unroll
        for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int at = column + j * 8 + e, query = t.at + at;
                weigh_pair(a, scores[0][j][2 * half + e], dov[0][j][2 * half + e], numbers[at],
                           numbers[ROWS + at], query >= queries.begin && query < queries.end);
            }
    }
}

/* Stores OUT columns from out_at on of the lane's rows: of dk (factor: scale),
 * or of dv. */
template <int OUT, typename E>
__device__ inline void store_dkv(const backward_args<E> &b, const float (&sums)[1][OUT / 8][4],
                                 int row, unsigned group, unsigned head_at, int out_at,
                                 float factor)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int at = row + half * 8;
        if (at >= (int)b.num_keys) continue;
        E *to = b.dkv + (size_t)at * b.a.kv_columns + group * b.a.kv_stride + head_at;
#pragma unroll
        for (int j = 0; j < OUT / 8; j++)
            store_pair(to, out_at + j * 8 + (int)lane_id() % 4 * 2, b.a.head_dim,
                       factor * sums[0][j][2 * half], factor * sums[0][j][2 * half + 1]);
    }
}

/* Blocks in x are KEYS rows of kv of all groups, those of equal rows
 * neighbours; in y, parts of the columns. */
template <int D, typename E>
__global__ void __launch_bounds__(TILE_THREADS) dkv_tiles(const backward_args<E> b)
{
    typedef dkv_shape<D> shape;
    const int KEYS = shape::KEYS, ROWS = shape::ROWS, OUT = shape::OUT;
    DYNAMIC_SHARED(shared);
    const attention_args<E> &a = b.a;
    E *k = reinterpret_cast<E *>(shared), *v = k + KEYS * shape::STRIDE;
    E *const stages = v + KEYS * shape::STRIDE;
    float *const numbers = reinterpret_cast<float *>(shared + shape::COPIED);
    const unsigned group = blockIdx.x % a.groups;
    const int first = (int)(blockIdx.x / a.groups) * KEYS, warp_row = (int)warp_id() * 16;
    const int out_at = (int)blockIdx.y * OUT, lane_row = first + warp_row + (int)lane_id() / 4;
    const E *const kv = a.kv + (size_t)first * a.kv_columns + group * a.kv_stride;
    float dk[1][OUT / 8][4], dv[1][OUT / 8][4];
    struct query_tile t = first_tile<KEYS>(a, 0, first);
    clear(dk);
    clear(dv);
    load_block<D, KEYS>(k, kv + a.k_at, a.kv_columns, a.head_dim, (int)b.num_keys - first);
    load_block<D, KEYS>(v, kv + a.v_at, a.kv_columns, a.head_dim, (int)b.num_keys - first);
    if (t.number < a.num_spans) {
        load_tile<D>(stages, b, t, group);
        keep_numbers<ROWS>(numbers, load_numbers<ROWS>(b, t, group));
    }
    copies_commit();
    for (int stage = 0; t.number < a.num_spans; stage ^= 1) {
        float scores[1][ROWS / 8][4], dov[1][ROWS / 8][4];
        const E *const q = stages + stage * shape::STAGE, *d_o = q + ROWS * shape::STRIDE;
        const struct query_tile now = t;
        struct query_numbers next = {0, 0};
        copies_wait<0>();
        __syncthreads(); /* this tile has arrived, the previous one is free */
        t = next_tile<KEYS, ROWS>(a, now, first);
        if (t.number < a.num_spans) {
            load_tile<D>(stages + (stage ^ 1) * shape::STAGE, b, t, group);
            next = load_numbers<ROWS>(b, t, group);
        }
        copies_commit();
        make_scores<D, 1, ROWS>(scores, k + warp_row * shape::STRIDE, q);
        make_scores<D, 1, ROWS>(dov, v + warp_row * shape::STRIDE, d_o);
        weigh_queries<ROWS>(scores, dov, a, now, lane_row, numbers + stage * 2 * ROWS);
        add_values<D, OUT, 1, ROWS>(dv, scores, d_o + out_at);
        add_values<D, OUT, 1, ROWS>(dk, dov, q + out_at);
        keep_numbers<ROWS>(numbers + (stage ^ 1) * 2 * ROWS, next);
    }
    copies_wait<0>();
    store_dkv<OUT>(b, dk, lane_row, group, a.k_at, out_at, a.scale);
    store_dkv<OUT>(b, dv, lane_row, group, a.v_at, out_at, 1);
}

/* ---- the launches ---- */

template <int D> constexpr size_t MOST_BYTES = std::max(dq_shape<D>::BYTES, dkv_shape<D>::BYTES);

bool attention_backward_fits_mma(const union op_params *p, const struct operand *in)
{
    const unsigned head_dim = p->attention.heads.head_dim;
    return attention_fits_mma(p, in) &&
           (head_dim <= 128 ? MOST_BYTES<128> : MOST_BYTES<256>) <= cuda_shared_bytes;
}

/* Launches at least as many blocks as tiles. */
template <int D, typename E>
static enum status launch_backward(const backward_args<E> &b, struct error *err)
{
    typedef dq_shape<D> dq;
    typedef dkv_shape<D> dkv;
    const attention_args<E> &a = b.a;
    static bool is_set; /* shared memory has been allowed */
    if (!is_set) {
        TRY(allow_shared("attention_backward", dq_tiles<D, E>, dq::BYTES, err));
        TRY(allow_shared("attention_backward", dkv_tiles<D, E>, dkv::BYTES, err));
    }
    is_set = true;
    const unsigned tiles = (unsigned)((uint64_t)a.num_queries * a.queries / dq::ROWS) +
                           std::min(a.num_spans, a.num_queries);
    TRY(launch("attention_backward", err, dq_tiles<D, E>, dim3(tiles * a.groups), TILE_THREADS,
               dq::BYTES, b));
    return launch("attention_backward", err, dkv_tiles<D, E>,
                  dim3(blocks_for(b.num_keys, dkv::KEYS) * a.groups, dkv::PARTS), TILE_THREADS,
                  dkv::BYTES, b);
}

template <typename E>
enum status attention_backward_mma(const backward_args<E> &b, struct error *err)
{
    const unsigned head_dim = b.a.head_dim;
    return head_dim <= 64    ? launch_backward<64>(b, err)
           : head_dim <= 96  ? launch_backward<96>(b, err)
           : head_dim <= 128 ? launch_backward<128>(b, err)
                             : launch_backward<256>(b, err);
}

template enum status attention_backward_mma(const backward_args<bf16> &b, struct error *err);
template enum status attention_backward_mma(const backward_args<f16> &b, struct error *err);
