/* few_rows.cu's products of bf16 and f16 for compute capability 9.0, with bulk
 * copies of w.
 *
 * 1. Each multiprocessor has one block, which stays. A warp makes COLUMNS
 *    columns of c at a time, and skips those of the grid's other warps.
 * 2. A warp's next reads of w are in flight in its own ring of STAGES buffers,
 *    from first to last column: memory is busy while sums are combined and
 *    stored. A stage is CHUNK elements of COLUMNS rows of w.
 * 3. Warps do not wait for one another. Lane 0 requests copies; a stage's
 *    barrier tells all lanes that it has arrived, and __syncwarp() tells lane 0
 *    that all have read it.
 * 4. Every requested copy is waited for: none is in flight when the block ends.
 * 5. A lane adds the same elements in the same order as in few_rows.cu. */
#include <algorithm>

#include "kernels/cuda/products.h"
#include "kernels/cuda/sm90.h"

/* 96 KB of a multiprocessor's shared memory: more bytes in flight than memory's
 * latency needs (4.3 TB/s times 0.8 us is 26 KB a multiprocessor); the rest
 * stays a cache for a. */
enum { COLUMNS = 2, CHUNK = 1024, STAGES = 3, WARPS = 8 };
enum { PACK = 8, PACKS = CHUNK / (WARP * PACK), STAGE = COLUMNS * CHUNK };
template <typename E> constexpr size_t SHARED_BYTES = WARPS *STAGES *STAGE * sizeof(E);

template <typename E, typename C> struct stream_args {
    const E *a, *w, *bias;
    C *c;
    size_t n, k;
    float alpha;
};

/* A warp's stages, in turn: stage `index` is read in the phase of `parity`,
 * then filled again from element `at` of row `column` of w. */
template <typename E> struct ring {
    E *stages;
    barrier *arrived; /* [STAGES] */
    unsigned index, parity;
    size_t column, at;
    uint64_t policy;
};

/* For lane 0. Rows beyond the last repeat the last. */
template <typename E, typename C>
__device__ inline void ask_for_stage(const stream_args<E, C> &x, const ring<E> &r)
{
    const uint32_t bytes = (uint32_t)(min(x.k - r.at, (size_t)CHUNK) * sizeof(E));
    barrier *const arrived = r.arrived + r.index;
    barrier_expect(arrived, COLUMNS * bytes);
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
        copy_bulk(r.stages + r.index * STAGE + j * CHUNK,
                  x.w + min(r.column + j, x.n - 1) * x.k + r.at, bytes, arrived, r.policy);
}

/* Refills the stage that all lanes have read, if more is to come,
 * and advances. */
template <typename E, typename C>
__device__ inline void advance_ring(const stream_args<E, C> &x, ring<E> *r, size_t next_columns)
{
    if (lane_id() == 0 && r->column < x.n) ask_for_stage(x, *r);
    r->index = r->index + 1 == STAGES ? 0 : r->index + 1;
    r->at += CHUNK;
    if (r->at < x.k) return;
    r->at = 0;
    r->column += next_columns;
}

/* A lane's elements [.., at + PACK) of each row of a. */
template <typename E, int M> struct row_packs {
    pack<E, PACK> of[PACKS][M];
};

template <typename E, typename C, int M>
__device__ inline void load_rows(struct row_packs<E, M> *to, const stream_args<E, C> &x, size_t at)
{
#pragma unroll
    for (int u = 0; u < PACKS; u++) {
        const size_t place = at + ((size_t)u * WARP + lane_id()) * PACK;
        if (place >= x.k) break;
#pragma unroll
        for (int i = 0; i < M; i++)
            to->of[u][i] = load_pack<E, PACK>(x.a + i * x.k + place);
    }
}

template <typename E, typename C, int M>
__device__ inline void add_products(float (&sums)[COLUMNS][M], const struct row_packs<E, M> &a,
                                    const E *stage, const stream_args<E, C> &x, size_t at)
{
#pragma unroll
    for (int u = 0; u < PACKS; u++) {
        const unsigned local = (u * WARP + lane_id()) * PACK;
        if (at + local >= x.k) break;
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            float w[PACK];
            load_reals<E, PACK>(w, stage + j * CHUNK + local);
#pragma unroll
            for (int i = 0; i < M; i++)
#pragma unroll
                for (int e = 0; e < PACK; e++)
                    sums[j][i] += to_real(a.of[u][i].at[e]) * w[e];
        }
    }
}

template <typename E, typename C, int M>
__device__ inline void store_sums(const stream_args<E, C> &x, const float (&sums)[COLUMNS][M],
                                  size_t first)
{
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
#pragma unroll
        for (int i = 0; i < M; i++) {
            const float sum = warp_reduce(sums[j][i], add_up());
            if (lane_id() > 0 || first + j >= x.n) continue;
            const float bias = x.bias ? to_real(x.bias[first + j]) : 0;
            x.c[i * x.n + first + j] = from_real<C>(x.alpha * sum + bias);
        }
}

template <typename E, typename C>
__device__ inline ring<E> start_ring(const stream_args<E, C> &x, E *stages, barrier *arrived,
                                     size_t first, size_t next_columns)
{
    ring<E> r = {stages, arrived, 0, 0, first, 0, read_once()};
    if (lane_id() == 0)
        for (int i = 0; i < STAGES; i++)
            barrier_init(&arrived[i], 1);
    fence_copies();
    __syncwarp();
    for (int i = 0; i < STAGES; i++)
        advance_ring(x, &r, next_columns);
    return r;
}

template <typename E, typename C, int M>
__global__ void __launch_bounds__(WARPS *WARP, 1) stream_columns(const stream_args<E, C> x)
{
    DYNAMIC_SHARED(shared);
    __shared__ barrier arrived[WARPS][STAGES];
    E *const stages = reinterpret_cast<E *>(shared) + warp_id() * STAGES * STAGE;
    const size_t first = ((size_t)blockIdx.x * WARPS + warp_id()) * COLUMNS;
    const size_t next_columns = (size_t)gridDim.x * WARPS * COLUMNS;
    ring<E> r = start_ring(x, stages, arrived[warp_id()], first, next_columns);
    for (size_t column = first; column < x.n; column += next_columns) {
        float sums[COLUMNS][M] = {};
        for (size_t at = 0; at < x.k; at += CHUNK) {
            struct row_packs<E, M> a;
            load_rows(&a, x, at); /* while w is in flight */
            barrier_wait(r.arrived + r.index, r.parity);
            add_products(sums, a, r.stages + r.index * STAGE, x, at);
            fence_copies();
            __syncwarp(); /* all lanes have read the stage */
            if (r.index + 1 == STAGES) r.parity ^= 1;
            advance_ring(x, &r, next_columns);
        }
        store_sums(x, sums, column);
    }
}

template <typename E, typename C, int M>
static enum status launch_rows(const stream_args<E, C> &args, struct error *err)
{
    static bool is_set; /* shared memory has been allowed */
    if (!is_set) TRY(allow_shared("matmul", stream_columns<E, C, M>, SHARED_BYTES<E>, err));
    is_set = true;
    const unsigned blocks =
        std::min((unsigned)cuda_multiprocessors, blocks_for(args.n, WARPS * COLUMNS));
    return launch("matmul", err, stream_columns<E, C, M>, dim3(blocks), WARPS * WARP,
                  SHARED_BYTES<E>, args);
}

template <typename E, typename C>
static enum status launch_stream(const struct product &x, struct error *err)
{
    static enum status (*const launches[MAX_FEW_ROWS])(
        const stream_args<E, C> &, struct error *) = {launch_rows<E, C, 1>, launch_rows<E, C, 2>,
                                                      launch_rows<E, C, 3>, launch_rows<E, C, 4>};
    const stream_args<E, C> args = {static_cast<const E *>(x.a),
                                    static_cast<const E *>(x.b),
                                    static_cast<const E *>(x.bias),
                                    static_cast<C *>(x.c),
                                    x.n,
                                    x.k,
                                    (float)x.alpha};
    return launches[x.m - 1](args, err);
}

template <typename E> static enum status launch_type(const struct product &x, struct error *err)
{
    return x.c_is_real ? launch_stream<E, float>(x, err) : launch_stream<E, E>(x, err);
}

static enum status multiply_few_rows_sm90(const struct product &x, struct error *err)
{
    return x.elem == ELEM_F16 ? launch_type<f16>(x, err) : launch_type<bf16>(x, err);
}

static const struct entry {
    entry()
    {
        sm90_kernels.few_rows = multiply_few_rows_sm90;
    }
} entry_of_this_file;
