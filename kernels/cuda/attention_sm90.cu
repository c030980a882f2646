/* Attention of bf16 and f16 heads of 64, 128 and 256 for compute capability
 * 9.0, after FlashAttention-3 (Shah et al. 2024).
 *
 * 1. Rows, tiles and blocks of keys are those of attention_tiles.h, the softmax
 *    that of attention_rows.h. Two warpgroups have 64 rows of a tile each.
 * 2. A thread of the third warpgroup copies blocks of keys and values into
 *    rings of STAGES, whose barriers tell that a stage has arrived, and that
 *    all warps have read it.
 * 3. While a block's scores become weights, the previous block's values are
 *    weighed.
 * 4. A copy reads whole blocks. Elements beyond a span's last key may be any
 *    bits: such scores are masked, and such values become 0 before their
 *    product with weights of 0. */
#include <algorithm>

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/sm90.h"

enum { STAGES = 2, READERS = 2, GROUP_ROWS = 64, ROWS = READERS * GROUP_ROWS };
enum { THREADS = (READERS + 1) * WARPGROUP, GROUP_WARPS = WARPGROUP / WARP };
/* Registers of a thread once its warpgroup is known: 64 K of a multiprocessor
 * in all. */
enum { READER_REGISTERS = 232, COPIER_REGISTERS = 40 };

template <int D> struct panel_shape {
    static const int KEYS = D > 128 ? 64 : 128, PANELS = D / PANEL;
    static const int OUT = D > 128 ? 128 : D; /* columns of o a product makes */
    static const size_t Q_BYTES = (size_t)PANELS * ROWS * PANEL_ROW_BYTES;
    static const size_t STAGE_BYTES = (size_t)PANELS * KEYS * PANEL_ROW_BYTES;
    static const size_t BYTES = PANEL_ALIGNMENT + Q_BYTES + 2 * STAGES * STAGE_BYTES;
};

/* Block number i is in stage i % STAGES, in the phase of parity i / STAGES
 * % 2. */
struct ring {
    char *stages;
    barrier *full, *empty; /* [STAGES] */
};

/* Common to all threads of a block. */
template <typename E> struct job {
    const attention_args<E> &a;
    struct tile t;
    unsigned group;
    int num_blocks;
    char *q;
    struct ring k, v;
};

__device__ inline unsigned stage_of(int block)
{
    return (unsigned)block % STAGES;
}

__device__ inline unsigned parity_of(int block)
{
    return (unsigned)block / STAGES % 2;
}

/* ---- copies ---- */

/* Requests a block, once all have read its stage's old contents. */
template <int D>
__device__ inline void ask_for_block(const struct ring &ring, int block, const CUtensorMap *map,
                                     int column, int row)
{
    typedef panel_shape<D> shape;
    const unsigned stage = stage_of(block);
    char *const to = ring.stages + stage * shape::STAGE_BYTES;
    if (block >= STAGES) barrier_wait(ring.empty + stage, parity_of(block - STAGES));
    barrier_expect(ring.full + stage, (uint32_t)shape::STAGE_BYTES);
#pragma unroll
    for (int i = 0; i < shape::PANELS; i++)
        copy_tile(to + i * shape::KEYS * PANEL_ROW_BYTES, map, column + i * PANEL, row,
                  ring.full + stage);
}

/* For one thread. */
template <int D, typename E>
__device__ inline void copy_blocks(const struct job<E> &x, const CUtensorMap *map)
{
    const int KEYS = panel_shape<D>::KEYS, column = (int)(x.group * x.a.kv_stride);
    struct place p = seek_block<KEYS>(x.a, x.t, 0);
    for (int block = 0; block < x.num_blocks; block++) {
        if (block > 0) p = next_block<KEYS>(x.a, x.t, p);
        const int row = span_of(x.a, x.t, p).k_begin + p.at;
        ask_for_block<D>(x.k, block, map, column + (int)x.a.k_at, row);
        ask_for_block<D>(x.v, block, map, column + (int)x.a.v_at, row);
    }
}

/* ---- queries, and values beyond the last key ---- */

/* The 16 bytes at element d of a row. */
__device__ inline uint4 *panel_place(char *panels, int rows, int row, int d)
{
    const int panel = d / PANEL, run = d % PANEL / 8;
    return reinterpret_cast<uint4 *>(panels + ((size_t)panel * rows + row) * PANEL_ROW_BYTES +
                                     (run ^ row % 8) * 16);
}

/* Loads this warpgroup's rows, by its threads. */
template <int D, typename E>
__device__ inline void load_own_queries(const struct job<E> &x, int first_row)
{
    const int runs = D / 8, q_begin = x.a.spans[x.t.first_span].q_begin;
    const E *heads = x.a.q + x.group * x.a.q_stride;
    for (int i = (int)threadIdx.x % WARPGROUP; i < GROUP_ROWS * runs; i += WARPGROUP) {
        const int row = first_row + i / runs, d = i % runs * 8, of_range = x.t.first_row + row;
        const int query = query_at(x.a, of_range), head = of_range - query * (int)x.a.queries;
        uint4 values = {0, 0, 0, 0};
        if (row < x.t.num_rows)
            values = *reinterpret_cast<const uint4 *>(
                heads + (size_t)(q_begin + query) * x.a.q_columns + head * D + d);
        *panel_place(x.q, ROWS, row, d) = values;
    }
}

/* Both warpgroups write the same zeros. */
template <int D> __device__ inline void clear_values(char *v, int count, unsigned warpgroup)
{
    typedef panel_shape<D> shape;
    const uint4 zeros = {0, 0, 0, 0};
    const int rows = shape::KEYS - count, runs = D / 8;
    for (int i = (int)threadIdx.x % WARPGROUP; i < rows * runs; i += WARPGROUP)
        *panel_place(v, shape::KEYS, count + i / runs, i % runs * 8) = zeros;
    fence_copies(); /* products read in the copies' proxy */
    sync_warpgroup(1 + warpgroup);
}

/* ---- products ---- */

/* Starts scores = q k^T. q: the warpgroup's first row. */
template <int D, typename E>
__device__ inline void start_scores(float (&scores)[1][panel_shape<D>::KEYS / 8][4], const char *q,
                                    const char *k)
{
    const int KEYS = panel_shape<D>::KEYS;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        const int panel = d / PANEL, in_row = d % PANEL * MMA_ELEM_BYTES;
        multiply_rows<E, KEYS>(scores[0],
                               matrix_at(q + panel * ROWS * PANEL_ROW_BYTES + in_row, 16),
                               matrix_at(k + panel * KEYS * PANEL_ROW_BYTES + in_row, 16), d > 0);
    }
    products_commit();
}

/* A block's weights in E, in the products' layout. */
template <int KEYS> struct packed_weights {
    uint32_t of[KEYS / 16][4];
};

template <int KEYS, typename E>
__device__ inline void pack_weights(struct packed_weights<KEYS> &w,
                                    const float (&scores)[1][KEYS / 8][4])
{
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++)
#pragma unroll
        for (int n = 0; n < 4; n++)
            w.of[j][n] = pack_two<E>(scores[0][2 * j + n / 2][n % 2 * 2],
                                     scores[0][2 * j + n / 2][n % 2 * 2 + 1]);
}

/* Starts o += weights v. */
template <int D, typename E>
__device__ inline void start_values(struct rows_state<D, 1> &r,
                                    const struct packed_weights<panel_shape<D>::KEYS> &w,
                                    const char *v)
{
    typedef panel_shape<D> shape;
    const unsigned panel_bytes = shape::KEYS * PANEL_ROW_BYTES;
#pragma unroll
    for (int j = 0; j < shape::KEYS / 16; j++)
#pragma unroll
        for (int d = 0; d < D; d += shape::OUT)
            multiply_weights<E, shape::OUT>(
                reinterpret_cast<float(&)[shape::OUT / 8][4]>(r.o[0][d / 8]), w.of[j],
                matrix_at(v + d / PANEL * panel_bytes + j * 16 * PANEL_ROW_BYTES, panel_bytes));
    products_commit();
}

/* ---- a warpgroup's rows ---- */

__device__ inline char *stage_bytes(const struct ring &ring, int block, size_t bytes)
{
    return ring.stages + stage_of(block) * bytes;
}

/* All lanes call it after reading the block. */
__device__ inline void release_stage(const struct ring &ring, int block)
{
    if (lane_id() == 0) barrier_arrive(ring.empty + stage_of(block));
}

/* Waits for a block's values, and clears those beyond its keys. */
template <int D, typename E>
__device__ inline void await_values(const struct job<E> &x, const struct place &p, int block,
                                    unsigned warpgroup)
{
    typedef panel_shape<D> shape;
    barrier_wait(x.v.full + stage_of(block), parity_of(block));
    if (p.end - p.at < shape::KEYS)
        clear_values<D>(stage_bytes(x.v, block, shape::STAGE_BYTES), p.end - p.at, warpgroup);
}

/* Turns scores of a block of keys into weights. lane_row: the lane's first row,
 * in the range. */
template <int D, typename E>
__device__ inline void weigh_block(const struct job<E> &x, const struct place &p, int lane_row,
                                   float (&scores)[1][panel_shape<D>::KEYS / 8][4],
                                   struct rows_state<D, 1> &r, float (&before)[1][2])
{
    const int KEYS = panel_shape<D>::KEYS;
    const float log2_e = 1.44269504f, factor = x.a.softcap != 0 ? log2_e : x.a.scale * log2_e;
    if (x.a.softcap != 0) cap_scores<1, KEYS>(scores, x.a.scale, x.a.softcap);
    if (!needs_no_mask<KEYS>(x.a, x.t, p))
        mask_scores<1, KEYS>(scores, x.a, span_of(x.a, x.t, p), p.at, lane_row);
    weigh_scores<D, 1, KEYS>(scores, r, factor, before);
}

/* Requires a block of keys. */
template <int D, typename E>
__device__ inline void attend_blocks(const struct job<E> &x, struct rows_state<D, 1> &r,
                                     unsigned warpgroup)
{
    typedef panel_shape<D> shape;
    const int KEYS = shape::KEYS, first_row = (int)warpgroup * GROUP_ROWS;
    const int lane_row =
        x.t.first_row + first_row + (int)(warp_id() % GROUP_WARPS) * 16 + (int)lane_id() / 4;
    const char *const q = x.q + first_row * PANEL_ROW_BYTES;
    float scores[1][KEYS / 8][4] = {}, before[1][2];
    struct packed_weights<KEYS> weights;
    struct place p = seek_block<KEYS>(x.a, x.t, 0);
    barrier_wait(x.k.full, 0);
    products_begin();
    start_scores<D, E>(scores, q, x.k.stages);
    products_wait<0>();
    products_made(scores[0]);
    release_stage(x.k, 0);
    weigh_block<D>(x, p, lane_row, scores, r, before); /* before: there are no values yet */
    pack_weights<KEYS, E>(weights, scores);
    for (int block = 1; block < x.num_blocks; block++) {
        const struct place last = p;
        p = next_block<KEYS>(x.a, x.t, last);
        barrier_wait(x.k.full + stage_of(block), parity_of(block));
        await_values<D>(x, last, block - 1, warpgroup);
        products_begin();
        start_scores<D, E>(scores, q, stage_bytes(x.k, block, shape::STAGE_BYTES));
        start_values<D, E>(r, weights, stage_bytes(x.v, block - 1, shape::STAGE_BYTES));
        products_wait<1>();
        products_made(scores[0]);
        release_stage(x.k, block);
        weigh_block<D>(x, p, lane_row, scores, r, before);
        products_wait<0>();
        products_made(r.o[0]);
        release_stage(x.v, block - 1);
        rescale_rows<D, 1>(r, before);
        pack_weights<KEYS, E>(weights, scores);
    }
    await_values<D>(x, p, x.num_blocks - 1, warpgroup);
    products_begin();
    start_values<D, E>(r, weights, stage_bytes(x.v, x.num_blocks - 1, shape::STAGE_BYTES));
    products_wait<0>();
    products_made(r.o[0]);
}

template <int D, typename E>
__device__ inline void attend_own_rows(const struct job<E> &x, unsigned warpgroup)
{
    const int first_row = (int)warpgroup * GROUP_ROWS;
    const int warp_row = first_row + (int)(warp_id() % GROUP_WARPS) * 16;
    struct rows_state<D, 1> r;
    start_rows(r);
    load_own_queries<D>(x, first_row);
    fence_copies(); /* products read in the copies' proxy */
    sync_warpgroup(1 + warpgroup);
    if (x.num_blocks > 0) attend_blocks<D>(x, r, warpgroup);
    finish_rows<D, 1>(x.a, x.t, r, warp_row, x.group);
}

/* ---- the kernel ---- */

__device__ inline void init_barriers(barrier (&full)[2][STAGES], barrier (&empty)[2][STAGES])
{
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; i++)
            for (int of = 0; of < 2; of++) {
                barrier_init(&full[of][i], 1);
                barrier_init(&empty[of][i], READERS * GROUP_WARPS);
            }
    fence_copies();
    __syncthreads();
}

/* Blocks are tiles of all groups; those of one tile are neighbours. kv: all of
 * it, in boxes of one panel's columns and KEYS rows. */
template <int D, typename E>
__global__ void __launch_bounds__(THREADS, 1)
    attend_panels(const attention_args<E> a, const __grid_constant__ CUtensorMap kv)
{
    typedef panel_shape<D> shape;
    DYNAMIC_SHARED(shared);
    __shared__ barrier full[2][STAGES], empty[2][STAGES]; /* for keys and values */
    const unsigned group = blockIdx.x % a.groups, warpgroup = threadIdx.x / WARPGROUP;
    const struct tile t =
        find_tile<ROWS>(a, (int)(blockIdx.x / a.groups), (int)(gridDim.x / a.groups));
    if (t.num_spans == 0) {
        if (warp_id() < TILE_WARPS) clear_uncovered(a, t, group);
        return;
    }
    init_barriers(full, empty);
    char *const q = shared + (0u - shared_address(shared)) % PANEL_ALIGNMENT;
    char *const k = q + shape::Q_BYTES, *const v = k + STAGES * shape::STAGE_BYTES;
    const int num_blocks = count_blocks<shape::KEYS>(a, t);
    const struct ring keys = {k, full[0], empty[0]}, values = {v, full[1], empty[1]};
    const struct job<E> x = {
        a, t, group, num_blocks, q, keys, values
    };
    if (warpgroup == READERS) {
        give_registers<COPIER_REGISTERS>();
        if (threadIdx.x == READERS * WARPGROUP && x.num_blocks > 0) copy_blocks<D>(x, &kv);
    } else {
        take_registers<READER_REGISTERS>();
        attend_own_rows<D>(x, warpgroup);
    }
}

/* ---- the launch ---- */

/* The driver's function that makes tensor maps; NULL: missing. */
static decltype(&cuTensorMapEncodeTiled) map_encoder()
{
    static void *found;
    cudaDriverEntryPointQueryResult result;
    if (!found && cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                   cudaEnableDefault, &result) != cudaSuccess)
        (void)cudaGetLastError(), found = NULL;
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}

template <typename E>
static enum status make_map(CUtensorMap *map, const attention_args<E> &a, uint64_t num_keys,
                            unsigned keys, struct error *err)
{
    const cuuint64_t sizes[] = {a.kv_columns, num_keys}, row_bytes[] = {a.kv_columns * sizeof(E)};
    const cuuint32_t box[] = {PANEL, keys}, steps[] = {1, 1};
    const CUtensorMapDataType type =
        ELEM_OF<E> == ELEM_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const auto encode = map_encoder();
    if (!encode) return fail(err, ERR_DEVICE, "attention: the driver cannot make tensor maps");
    const CUresult code =
        encode(map, type, 2, const_cast<E *>(a.kv), sizes, row_bytes, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code == CUDA_SUCCESS) return OK;
    return fail(err, ERR_DEVICE,
                "attention: cannot make a tensor map of %llu x %zu elements (error %d)",
                (unsigned long long)num_keys, a.kv_columns, (int)code);
}

/* Launches as many blocks as attention_mma.cu. */
template <int D, typename E>
static enum status launch_panels(const attention_args<E> &a, uint64_t num_keys, struct error *err)
{
    typedef panel_shape<D> shape;
    static bool is_set; /* shared memory has been allowed */
    CUtensorMap kv;
    if (!is_set) TRY(allow_shared("attention", attend_panels<D, E>, shape::BYTES, err));
    is_set = true;
    TRY(make_map(&kv, a, num_keys, shape::KEYS, err));
    return launch("attention", err, attend_panels<D, E>, dim3(tiles_of<ROWS>(a) * a.groups),
                  THREADS, shape::BYTES, a, kv);
}

template <typename E>
static enum status attend(const union op_params *p, const struct operand *in,
                          const struct operand *out, struct error *err)
{
    const attention_args<E> a = attention_args_of<E>(p, in, out);
    const uint64_t num_keys = in[1].shape[0];
    if (a.num_queries == 0) return OK;
    if (a.head_dim == 64) return launch_panels<64>(a, num_keys, err);
    if (a.head_dim == 128) return launch_panels<128>(a, num_keys, err);
    return launch_panels<256>(a, num_keys, err);
}

static enum status attention_sm90(enum elem_type elem, const union op_params *p,
                                  const struct operand *in, const struct operand *out,
                                  struct error *err)
{
    return elem == ELEM_F16 ? attend<f16>(p, in, out, err) : attend<bf16>(p, in, out, err);
}

static const struct entry {
    entry()
    {
        sm90_kernels.attention = attention_sm90;
    }
} entry_of_this_file;
