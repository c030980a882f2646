/* Attention of bf16 and f16 heads of few queries to many keys, on tensor cores:
 * a decoding step.
 *
 * 1. Rows, tiles and blocks of keys are those of attention_tiles.h,
 *    with 16 rows a tile, since a group has few heads. The softmax is
 *    that of attention_rows.h.
 * 2. A tile's blocks of keys are split among blocks, so that one sequence
 *    occupies all multiprocessors. Only the device knows the number of keys; a
 *    block without keys ends.
 * 3. A warp has 16 of the 64 keys of a block of keys. It copies them for
 *    itself, STAGES - 1 blocks ahead; so warps wait for one another only at
 *    start and end.
 * 4. The last block of a tile and group to end merges all parts, in the order
 *    of keys: the result does not depend on which block is last.
 * 5. Blocks count themselves in `arrived`, whose numbers are 0 whenever none
 *    of these kernels runs: they start so, and the last block resets its
 *    number. In a workspace, which other ops overwrite, each call would have
 *    to clear them. */
#include <algorithm>

#include "kernels/cuda/attention_rows.h"

enum {
    ROWS = 16,
    WARP_KEYS = 16,
    KEYS = WARP_KEYS * TILE_WARPS,
    MAX_SPLITS = 128,
    MAX_SPLIT_TILES = 8192, /* of all groups; beyond it nothing is split */
    BLOCKS_AT_ONCE = 2      /* of a multiprocessor: 3 fit an H200's, 1 fits 100 KB */
};

static __device__ unsigned arrived[MAX_SPLIT_TILES];

/* Maximum (as a power of 2) and sum of a row's weights. */
struct alignas(8) row_sums {
    float max, sum;
};

/* Results of several warps or blocks for a tile's rows. */
struct parts {
    float *o;              /* [parts, ROWS, columns]: sums of values times weights */
    struct row_sums *sums; /* [parts, ROWS] */
    unsigned columns;
};

template <typename E> struct decode_args {
    attention_args<E> a;
    unsigned tiles, splits; /* tiles at most; splits of each tile, in all groups */
    struct parts parts;     /* [tiles, groups, splits] */
};

/* At most 99 KB a block; at the end, parts of warps replace keys and values. */
template <int D> struct decode_shape {
    static const int STAGES = D > 128 ? 1 : D > 64 ? 2 : 4, STRIDE = D + 8;
    static const int WARP_ELEMS = WARP_KEYS * STRIDE; /* of a stage's keys, or values */
    static const size_t BYTES =
        (ROWS * STRIDE + 2 * STAGES * TILE_WARPS * WARP_ELEMS) * MMA_ELEM_BYTES;
    static const size_t MERGE_BYTES = TILE_WARPS * ROWS * (D * sizeof(float) + sizeof(row_sums)) +
                                      ROWS * MAX_SPLITS * sizeof(float);
    static_assert(MERGE_BYTES <= BYTES, "parts of warps are larger than keys and values");
};

/* ---- a warp's keys ---- */

/* The warp's 16 keys of the block at p, possibly none. */
__device__ inline struct place warp_place(struct place p)
{
    p.at += (int)warp_id() * WARP_KEYS;
    return p;
}

template <int D, typename E>
__device__ inline void copy_keys(E *to, const attention_args<E> &a, const struct tile &t,
                                 const struct place &block, unsigned group, unsigned head_at)
{
    const struct place p = warp_place(block);
    const int runs = D / 8, there = p.end - p.at;
    const size_t first = (size_t)(span_of(a, t, p).k_begin + p.at);
    const E *from = a.kv + first * a.kv_columns + group * a.kv_stride + head_at;
    if (there <= 0) return;
#pragma unroll
    for (int i = (int)lane_id(); i < WARP_KEYS * runs; i += WARP) {
        const int row = i / runs, d = i % runs * 8;
        const bool is_there = row < there && d < (int)a.head_dim;
        copy_16_bytes(to + row * (D + 8) + d, is_there ? from + row * a.kv_columns + d : from,
                      is_there);
    }
}

/* Turns scores of the warp's keys into weights, and adds values by them. */
template <int D, typename E>
__device__ inline void add_keys(struct rows_state<D, 1> &r, float (&scores)[1][WARP_KEYS / 8][4],
                                const attention_args<E> &a, const struct tile &t,
                                const struct place &p, const E *v)
{
    const float log2_e = 1.44269504f, factor = a.softcap != 0 ? log2_e : a.scale * log2_e;
    if (a.softcap != 0) cap_scores<1, WARP_KEYS>(scores, a.scale, a.softcap);
    if (!needs_no_mask<WARP_KEYS>(a, t, p))
        mask_scores<1, WARP_KEYS>(scores, a, span_of(a, t, p), p.at,
                                  t.first_row + (int)lane_id() / 4);
    update_softmax<D, 1, WARP_KEYS>(scores, r, factor);
    add_values<D, D, 1, WARP_KEYS>(r.o, scores, v);
}

/* Attends to blocks of keys [first, end). q: the tile's queries, in flight;
 * own: the warp's place for keys and values of each stage. */
template <int D, typename E>
__device__ inline void attend_blocks(struct rows_state<D, 1> &r, const attention_args<E> &a,
                                     const struct tile &t, unsigned group, int first, int end,
                                     const E *q, E *own)
{
    typedef decode_shape<D> shape;
    const int STAGES = shape::STAGES, STAGE_ELEMS = 2 * shape::WARP_ELEMS;
    struct place now = {}, ahead = {};
    copies_commit();
    for (int i = 0; i < STAGES; i++) {
        E *k = own + i * STAGE_ELEMS, *v = k + shape::WARP_ELEMS;
        const bool there = first + i < end;
        if (there) ahead = i == 0 ? seek_block<KEYS>(a, t, first) : next_block<KEYS>(a, t, ahead);
        if (i == 0) now = ahead;
        if (there) copy_keys<D>(k, a, t, ahead, group, a.k_at);
        copies_commit();
        if (there) copy_keys<D>(v, a, t, ahead, group, a.v_at);
        copies_commit();
    }
    copies_wait<2 * shape::STAGES>();
    __syncthreads(); /* q has arrived */
    for (int block = first; block < end; block++) {
        float scores[1][WARP_KEYS / 8][4];
        E *k = own + (block - first) % STAGES * STAGE_ELEMS, *v = k + shape::WARP_ELEMS;
        const struct place p = warp_place(now);
        const bool has_keys = p.at < p.end, has_next = block + STAGES < end;
        copies_wait<2 * shape::STAGES - 1>();
        __syncwarp(); /* keys have arrived */
        if (has_keys) make_scores<D, 1, WARP_KEYS>(scores, q, k);
        __syncwarp(); /* and have been read */
        if (has_next) {
            ahead = next_block<KEYS>(a, t, ahead);
            copy_keys<D>(k, a, t, ahead, group, a.k_at);
        }
        copies_commit();
        copies_wait<2 * shape::STAGES - 1>();
        __syncwarp(); /* values have arrived */
        if (has_keys) add_keys<D>(r, scores, a, t, p, v);
        __syncwarp(); /* and have been read */
        if (has_next) copy_keys<D>(v, a, t, ahead, group, a.v_at);
        copies_commit();
        if (block + 1 < end) now = next_block<KEYS>(a, t, now);
    }
    copies_wait<0>();
}

/* ---- merging ---- */

/* Stores the warp's part, for existing rows. */
template <int D, typename E>
__device__ inline void store_part(const struct parts &to, const attention_args<E> &a,
                                  const struct rows_state<D, 1> &r, int num_rows)
{
    const float factor = 1.44269504f * (a.softcap != 0 ? 1 : a.scale);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = half * 8 + (int)lane_id() / 4, first = (int)lane_id() % 4 * 2;
        const size_t at = warp_id() * ROWS + (unsigned)row;
        float sum = r.sum[0][half];
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        if (row >= num_rows) continue;
        if (first == 0) to.sums[at] = {r.max[0][half] * factor, sum};
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            store_reals<float, 2>(to.o + at * to.columns + j * 8 + first,
                                  {r.o[0][j][2 * half], r.o[0][j][2 * half + 1]});
    }
}

/* Sums of a row over all parts. weights: each part's factor. A warp a row. */
__device__ inline struct row_sums merge_sums(const struct parts &from, unsigned count, int row,
                                             float *weights)
{
    struct row_sums all = {-INFINITY, 0};
    for (unsigned i = lane_id(); i < count; i += WARP)
        all.max = fmaxf(all.max, from.sums[i * ROWS + (unsigned)row].max);
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        all.max = fmaxf(all.max, __shfl_xor_sync(ALL_LANES, all.max, distance));
    const float shift = all.max == -INFINITY ? 0 : all.max;
    for (unsigned i = lane_id(); i < count; i += WARP) {
        const struct row_sums part = from.sums[i * ROWS + (unsigned)row];
        weights[i] = fast_exp2(part.max - shift);
        all.sum += weights[i] * part.sum;
    }
    all.sum = warp_reduce(all.sum, add_up());
    return all;
}

/* Factor of weights at the end, when the sum over all keys is known. */
template <typename E>
__device__ inline float finish_sums(const attention_args<E> &a, struct row_sums all, size_t item)
{
    const bool empty = all.sum == 0;
    float scale = 1;
    all.max *= 0.693147181f;
    if (a.sinks && !empty)
        scale = add_sink(to_real(a.sinks[item % (a.groups * a.queries)]), &all.max, &all.sum);
    if (a.lse && lane_id() == 0) a.lse[item] = empty ? -INFINITY : all.max + logf(all.sum);
    return empty ? 0 : scale / all.sum;
}

/* Merges the parts of a tile's rows into `to`, or if it has no memory into the
 * op's outputs. */
template <int D, typename E>
__device__ inline void merge_parts(const struct parts &to, const struct parts &from, unsigned count,
                                   const attention_args<E> &a, const struct tile &t, unsigned group,
                                   float *weights)
{
    for (int row = (int)warp_id(); row < t.num_rows; row += TILE_WARPS) {
        float *of_row = weights + row * MAX_SPLITS, scale = 1;
        const struct row_sums all = merge_sums(from, count, row, of_row);
        if (!to.o) scale = finish_sums(a, all, head_row_of(a, t, row, group));
        if (to.o && lane_id() == 0) to.sums[row] = all;
        for (unsigned i = lane_id(); i < count && !to.o; i += WARP)
            of_row[i] *= scale;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < t.num_rows * (D / 4); i += TILE_THREADS) {
        const int row = i / (D / 4), d = i % (D / 4) * 4;
        float sum[4] = {}, x[4];
        if (d >= (int)a.head_dim) continue;
#pragma unroll 8
        for (unsigned n = 0; n < count; n++) {
            load_reals<float, 4>(x, from.o + (n * ROWS + (unsigned)row) * (size_t)from.columns + d);
#pragma unroll
            for (int j = 0; j < 4; j++)
                sum[j] += weights[row * MAX_SPLITS + (int)n] * x[j];
        }
        if (to.o)
            store_reals<float, 4>(to.o + row * (size_t)to.columns + d, sum);
        else
            store_reals<E, 4>(a.o + head_row_of(a, t, row, group) * a.head_dim + d, sum);
    }
}

/* Whether this block is the last of `count` to arrive at this number, which is
 * 0 before the first and after the last. The others' earlier writes are
 * visible then. */
__device__ inline bool is_last(unsigned *number, unsigned count)
{
    __shared__ bool last;
    __syncthreads(); /* all threads have written */
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicInc(number, count - 1) == count - 1;
        __threadfence();
    }
    __syncthreads();
    return last;
}

/* Stores the block's part, and if it is the last of `count`, the outputs.
 * `shared` is free. */
template <int D, typename E>
__device__ inline void finish_split(const decode_args<E> &args, const struct rows_state<D, 1> &r,
                                    const struct tile &t, unsigned number, unsigned group,
                                    unsigned split, unsigned count, char *shared)
{
    const struct parts none = {NULL, NULL, 0};
    struct parts warps = {reinterpret_cast<float *>(shared), NULL, D}, blocks = args.parts;
    warps.sums = reinterpret_cast<row_sums *>(warps.o + TILE_WARPS * ROWS * D);
    float *weights = reinterpret_cast<float *>(warps.sums + TILE_WARPS * ROWS);
    store_part<D>(warps, args.a, r, t.num_rows);
    __syncthreads();
    if (count == 1) {
        merge_parts<D>(none, warps, TILE_WARPS, args.a, t, group, weights);
        return;
    }
    const size_t tile = (size_t)number * args.a.groups + group, first = tile * args.splits * ROWS;
    blocks.o += first * blocks.columns;
    blocks.sums += first;
    const struct parts own = {blocks.o + (size_t)split * ROWS * blocks.columns,
                              blocks.sums + split * ROWS, blocks.columns};
    merge_parts<D>(own, warps, TILE_WARPS, args.a, t, group, weights);
    if (is_last(&arrived[tile], count))
        merge_parts<D>(none, blocks, count, args.a, t, group, weights);
}

/* ---- the kernel ---- */

/* A block for each split of each tile in all groups. One more for each group
 * has no tile and clears rows without spans. */
template <int D, typename E>
__global__ void __launch_bounds__(TILE_THREADS) attend_few(const decode_args<E> args)
{
    typedef decode_shape<D> shape;
    const attention_args<E> &a = args.a;
    DYNAMIC_SHARED(shared);
    E *q = reinterpret_cast<E *>(shared), *keys = q + ROWS * shape::STRIDE;
    const unsigned group = blockIdx.x % a.groups, unit = blockIdx.x / a.groups;
    const unsigned number = unit / args.splits, split = unit % args.splits;
    wait_for_kernel_before();
    let_kernel_behind_start();
    const struct tile t = find_tile<ROWS>(a, (int)number, (int)args.tiles + 1);
    if (t.num_spans == 0) {
        if (split == 0) clear_uncovered(a, t, group);
        return;
    }
    const unsigned num_blocks = (unsigned)count_blocks<KEYS>(a, t);
    const unsigned each = max(1u, (num_blocks + args.splits - 1) / args.splits);
    const unsigned count = max(1u, (num_blocks + each - 1) / each); /* splits with keys */
    if (split >= count) return;
    struct rows_state<D, 1> r;
    start_rows(r);
    load_queries<D, ROWS>(q, a.q + group * a.q_stride, a.q_columns, a, t);
    attend_blocks<D>(r, a, t, group, (int)(split * each), (int)min((split + 1) * each, num_blocks),
                     q, keys + warp_id() * 2 * shape::STAGES * shape::WARP_ELEMS);
    __syncthreads(); /* queries, keys and values have been read */
    finish_split<D>(args, r, t, number, group, split, count, shared);
}

/* ---- the launch ---- */

/* For ranges of fewer than 128 rows, assuming equal ranges. */
bool attention_decodes(const union op_params *p, const struct operand *in)
{
    const uint64_t num_queries = in[0].shape[0], num_spans = in[2].shape[0];
    return num_queries * p->attention.heads.queries <
           128 * std::max<uint64_t>(1, std::min(num_spans, num_queries));
}

static uint64_t most_tiles(uint64_t num_queries, uint64_t queries, uint64_t num_spans)
{
    return num_queries * queries / ROWS + std::min(num_spans, num_queries);
}

/* Average occupancy of multiprocessors with `room` for blocks, while
 * these run. */
static double fill_of(uint64_t blocks, uint64_t room)
{
    return (double)blocks / (double)((blocks + room - 1) / room * room);
}

/* Splits that all run at once, of at least 64 keys each; more if that leaves
 * much of the GPU idle. Tiles are counted as if all ranges had
 * equally many queries. */
static unsigned splits_for(uint64_t num_queries, uint64_t num_spans, uint64_t num_keys,
                           uint64_t groups, uint64_t queries)
{
    const uint64_t ranges = std::max<uint64_t>(1, std::min(num_spans, num_queries));
    const uint64_t rows = (num_queries + ranges - 1) / ranges * queries;
    const uint64_t tiles = ranges * std::max<uint64_t>(1, (rows + ROWS - 1) / ROWS) * groups;
    const uint64_t most = std::min<uint64_t>(MAX_SPLITS, num_keys / KEYS);
    const uint64_t room = (uint64_t)BLOCKS_AT_ONCE * (unsigned)cuda_multiprocessors;
    uint64_t best = std::max<uint64_t>(1, std::min(most, room / tiles));
    if (most_tiles(num_queries, queries, num_spans) * groups > MAX_SPLIT_TILES) return 1;
    for (uint64_t n = best + 1; n <= most && n * tiles <= 8 * room; n++)
        if (fill_of(n * tiles, room) > 1.05 * fill_of(best * tiles, room)) best = n;
    return (unsigned)best;
}

size_t attention_decode_workspace(const union op_params *p, const struct operand *in)
{
    const struct head_shape s = p->attention.heads;
    const uint64_t num_queries = in[0].shape[0], num_spans = in[2].shape[0];
    const unsigned splits = splits_for(num_queries, num_spans, in[1].shape[0], s.groups, s.queries);
    const uint64_t tiles = most_tiles(num_queries, s.queries, num_spans) * s.groups;
    if (splits == 1) return 0;
    return tiles * splits * ROWS * (s.head_dim * sizeof(float) + sizeof(row_sums));
}

template <int D, typename E>
static enum status launch_few(const decode_args<E> &args, struct error *err)
{
    typedef decode_shape<D> shape;
    static bool is_set; /* shared memory has been allowed */
    if (!is_set) TRY(allow_shared("attention", attend_few<D, E>, shape::BYTES, err));
    is_set = true;
    return launch_early("attention", err, attend_few<D, E>,
                        dim3((args.tiles * args.splits + 1) * args.a.groups), TILE_THREADS,
                        shape::BYTES, args);
}

template <typename E>
enum status attention_decode(const attention_args<E> &a, uint64_t num_keys, void *workspace,
                             struct error *err)
{
    struct decode_args<E> args = {
    };
    if (a.num_queries == 0) return OK;
    args.a = a;
    args.tiles = (unsigned)most_tiles(a.num_queries, a.queries, a.num_spans);
    args.splits = splits_for(a.num_queries, a.num_spans, num_keys, a.groups, a.queries);
    args.parts.o = static_cast<float *>(workspace);
    args.parts.columns = a.head_dim;
    args.parts.sums = reinterpret_cast<row_sums *>(
        args.parts.o + (size_t)args.tiles * a.groups * args.splits * ROWS * a.head_dim);
    return a.head_dim <= 64    ? launch_few<64>(args, err)
           : a.head_dim <= 128 ? launch_few<128>(args, err)
                               : launch_few<256>(args, err);
}

template enum status attention_decode(const attention_args<bf16> &a, uint64_t num_keys,
                                      void *workspace, struct error *err);
template enum status attention_decode(const attention_args<f16> &a, uint64_t num_keys,
                                      void *workspace, struct error *err);
