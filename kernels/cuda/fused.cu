/* fused.cu - OP_NORM_MATMUL and OP_ACTIVATION_MATMUL: products of a decoding
 * step, without a launch for the norm or activation before them.
 *
 * 1. For bf16 and f16, each block makes all rows of a in shared memory while
 *    its first weights are in flight, and multiplies its columns as
 *    few_rows_mma.cu does. Block 0 stores sum.
 * 2. Otherwise the two ops run one after the other, through the workspace, and
 *    the product has matmul's plan.
 * 3. FERRY_CUDA_TUNE=1 times both, and the file of matmul.cu keeps the faster.
 *    Without it a rule decides (is_worth): all blocks together may read at most
 *    a third of w to make a. For Llama-3.1-8B that allows up to 2 rows of qkv,
 *    7 of gate and up, 2 of down. The rule comes from counting bytes and
 *    launches; no GPU has timed it. FERRY_CUDA_FUSED=0 turns fusion off. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/cold.h"
#include "kernels/cuda/few_rows_mma.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/norm.h"
#include "kernels/device.h"

using namespace few_rows_mma;

/* Three blocks of a multiprocessor have room for this, besides sums
 * of warps. */
enum { MOST_ROW_BYTES = 64 << 10 };
/* Rows lie in shared memory at a distance that spreads them over banks. */
enum { ROW_PADDING = STEP };

/* ---- rows of a ---- */

template <typename E> struct normed {
    const E *stream, *branch, *branch_bias; /* branch NULL: norm of stream itself */
    const E *weight, *bias;                 /* [h]; bias may be NULL */
    E *sum;
    float epsilon, shift;
    bool layer_norm;
};

template <typename E> __device__ inline void add_pack(float (&x)[PACK], const E *from)
{
    float other[PACK];
    load_reals<E, PACK>(other, from);
#pragma unroll
    for (int j = 0; j < PACK; j++)
        x[j] += other[j];
}

/* Makes elements [i, i + PACK) of the norm's input, rounded, in `to`. x: the
 * same, rounded. */
template <typename E>
__device__ inline void sum_pack(float (&x)[PACK], E *to, const normed<E> &a, unsigned row,
                                unsigned i)
{
    load_reals<E, PACK>(x, a.stream + row + i);
    if (a.branch) {
        add_pack(x, a.branch + row + i);
        if (a.branch_bias) add_pack(x, a.branch_bias + i);
    }
    store_reals<E, PACK>(to + i, x);
    if (a.branch && blockIdx.x == 0) store_reals<E, PACK>(a.sum + row + i, x);
    load_reals<E, PACK>(x, to + i);
}

/* As norm_rows() of norm.cu. A thread reads only its own writes. */
template <typename E>
__device__ inline void make_row(E *to, const normed<E> &a, unsigned number, unsigned h)
{
    const unsigned row = number * h;
    float total = 0, mean = 0, v[PACK];
    for (unsigned i = threadIdx.x * PACK; i < h; i += blockDim.x * PACK) {
        sum_pack(v, to, a, row, i);
#pragma unroll
        for (int j = 0; j < PACK; j++)
            total += a.layer_norm ? v[j] : v[j] * v[j];
    }
    total = block_sum(total);
    if (a.layer_norm) {
        mean = total / (float)h;
        total = block_sum(square_deviations<E, PACK>(to, h, mean));
    }
    scale_row<E, PACK>(to, to, a.weight, a.bias, a.shift, h, mean,
                       1 / sqrt(total / (float)h + a.epsilon));
}

/* Prefetches weights, which no kernel writes, before
 * wait_for_kernel_before(). */
template <typename E> __device__ inline void fetch_weights(const normed<E> &a, unsigned h)
{
    const unsigned line = 128 / sizeof(E);
    for (unsigned i = threadIdx.x * line; i < h; i += blockDim.x * line) {
        prefetch(a.weight + i);
        if (a.bias) prefetch(a.bias + i);
        if (a.branch_bias) prefetch(a.branch_bias + i);
    }
}

template <typename E> struct activated {
    const E *x;
    enum activation kind;
    bool gated;
};

/* As activate_rows() of activation.cu. */
template <typename E>
__device__ inline void make_row(E *to, const activated<E> &a, unsigned number, unsigned n)
{
    const E *const from = a.x + (size_t)number * n * (a.gated ? 2 : 1);
    float v[PACK], up[PACK];
    for (unsigned i = threadIdx.x * PACK; i < n; i += blockDim.x * PACK) {
        load_reals<E, PACK>(v, from + i);
        activate<E>(v, a.kind);
        if (a.gated) {
            load_reals<E, PACK>(up, from + n + i);
#pragma unroll
            for (int j = 0; j < PACK; j++)
                v[j] *= up[j];
        }
        store_reals<E, PACK>(to + i, v);
    }
}

template <typename E> __device__ inline void fetch_weights(const activated<E> &, unsigned)
{
}

/* ---- the product ---- */

template <typename E, typename A>
__global__ void __launch_bounds__(WARPS *WARP, BLOCKS)
    multiply_made(const product_args<E, E> x, const A a)
{
    DYNAMIC_SHARED(shared);
    fetch_weights(a, x.k);
    multiply_tiles_of_block<E, E, 1>(x, [&] {
        const rows<E> made = {reinterpret_cast<E *>(shared), x.k + ROW_PADDING};
        for (unsigned row = 0; row < x.m; row++)
            make_row(reinterpret_cast<E *>(shared) + row * made.stride, a, row, x.k);
        __syncthreads();
        return made;
    });
}

static size_t padded_row_bytes(const struct product &x)
{
    return x.m * (x.k + ROW_PADDING) * MMA_ELEM_BYTES;
}

template <typename E, typename A>
static enum status launch_made(const char *op, const struct product &x, const A &a,
                               struct error *err)
{
    static bool is_set; /* shared memory has been allowed */
    if (!is_set) TRY(allow_shared(op, multiply_made<E, A>, MOST_ROW_BYTES, err));
    is_set = true;
    return launch_early(op, err, multiply_made<E, A>, dim3(blocks_of(x.n)), WARPS * WARP,
                        padded_row_bytes(x), args_of<E, E>(x), a);
}

/* w: the product's weight, followed by its bias. */
template <typename E>
static struct product fused_product(const void *a, size_t rows, const struct operand *w,
                                    const struct operand *y)
{
    struct product x = {};
    x.elem = ELEM_OF<E>;
    x.a = a;
    x.b = w[0].data;
    x.bias = w[1].data;
    x.c = y[0].data;
    x.transpose_b = true;
    x.m = rows;
    x.n = w[0].shape[0];
    x.k = w[0].shape[1];
    x.alpha = 1;
    return x;
}

/* Whether one kernel can do it. */
static bool fits_one_kernel(const struct product &x)
{
    return few_rows_mma_takes(x) && x.m <= TILE_ROWS && padded_row_bytes(x) <= MOST_ROW_BYTES &&
           MOST_ROW_BYTES + PLAIN_SHARED_BYTES / 4 <= cuda_shared_bytes;
}

/* Whether one kernel should, by counting: `read` elements are read for each
 * element of a, and `once` more for each of its columns. */
static bool is_worth(const struct product &x, size_t read, size_t once)
{
    return 3 * blocks_of(x.n) * (x.m * read + once) <= x.n;
}

/* ---- the choice ---- */

enum maker { NORM = 1, ADD_NORM, ACTIVATION, GATED_ACTIVATION };

/* Verdicts on products so far. Beyond MAX_KNOWN, the file and the rule are
 * asked each time. */
enum { MAX_KNOWN = 256 };
static struct known {
    struct plan_key key;
    bool is_fused;
} known[MAX_KNOWN];
static unsigned num_known;

void fused_close(void)
{
    num_known = 0;
}

static struct plan_key fused_plan_key(const struct product &x, enum maker maker)
{
    struct plan_key k = {};
    k.m = x.m;
    k.n = x.n;
    k.k = x.k;
    k.elem_type = k.c_type = x.elem == ELEM_F16 ? CUDA_R_16F : CUDA_R_16BF;
    k.transpose_b = 1;
    k.has_bias = x.bias != NULL;
    k.version = cublasLtGetVersion();
    k.made_by = maker;
    return k;
}

/* A call in one of the two ways. */
struct attempt {
    enum status (*run)(OP_ARGUMENTS);
    const union op_params *p;
    const struct operand *in, *out;
    void *workspace;
};

static enum status run_attempt(const void *context, struct error *err)
{
    const struct attempt *a = static_cast<const struct attempt *>(context);
    return a->run(a->p, a->in, a->out, a->workspace, err);
}

static void print_times(const struct plan_key &key, double fused, double in_turn)
{
    static const char *const names[] = {"", "norm", "add_norm", "activation", "gated activation"};
    if (!sm90_has_word("say")) return;
    (void)fprintf(stderr, "%s and product [%llu, %llu, %llu]: fused %.1f us, in turn %.1f us\n",
                  names[key.made_by], (unsigned long long)key.m, (unsigned long long)key.n,
                  (unsigned long long)key.k, fused * 1e6, in_turn * 1e6);
}

/* A failing way counts as infinitely slow. */
static enum status time_both_ways(const struct plan_key &key, const struct attempt &fused,
                                  const struct attempt &in_turn, bool *is_fused, struct error *err)
{
    struct cold_clock clock;
    struct choice choice = {};
    double seconds[2];
    TRY(cold_clock_open(&clock, err));
    (void)!cold_time(&clock, run_attempt, &in_turn, &seconds[0], NULL);
    (void)!cold_time(&clock, run_attempt, &fused, &seconds[1], NULL);
    cold_clock_close(&clock);
    print_times(key, seconds[1], seconds[0]);
    *is_fused = seconds[1] < seconds[0];
    choice.way = *is_fused ? BY_FUSED : BY_TURNS;
    if (seconds[0] < INFINITY || seconds[1] < INFINITY) matmul_cache_add(&key, &choice);
    return OK;
}

/* rule: the result of is_worth(). */
static enum status choose_way(const struct plan_key &key, bool rule, const struct attempt &fused,
                              const struct attempt &in_turn, bool *is_fused, struct error *err)
{
    static const char *const wanted = getenv("FERRY_CUDA_FUSED");
    *is_fused = rule && !(wanted && strcmp(wanted, "0") == 0);
    if (wanted && strcmp(wanted, "0") == 0) return OK;
    for (unsigned i = 0; i < num_known; i++)
        if (memcmp(&known[i].key, &key, sizeof key) == 0) {
            *is_fused = known[i].is_fused;
            return OK;
        }
    TRY(matmul_start(err));
    const struct choice *cached = matmul_cache_find(&key);
    if (cached)
        *is_fused = cached->way == BY_FUSED;
    else if (matmul_searches() && cuda_is_capturing())
        return OK; /* nothing can be timed now */
    else if (matmul_searches())
        TRY(time_both_ways(key, fused, in_turn, is_fused, err));
    if (num_known < MAX_KNOWN) known[num_known++] = {key, *is_fused};
    return OK;
}

/* Runs the faster of the two. */
static enum status run_faster(const struct plan_key &key, bool rule, const struct attempt &fused,
                              const struct attempt &in_turn, struct error *err)
{
    bool is_fused;
    TRY(choose_way(key, rule, fused, in_turn, &is_fused, err));
    return run_attempt(is_fused ? &fused : &in_turn, err);
}

/* ---- one after the other ---- */

/* Bytes of the first op's result, at the start of the workspace. */
template <typename E> static size_t made_bytes(size_t rows, size_t columns)
{
    const size_t unit = 256;
    return (rows * columns * sizeof(E) + unit - 1) / unit * unit;
}

static struct operand made_rows(void *workspace, size_t rows, size_t columns)
{
    return {workspace, OPERAND_ELEM, 2, {rows, columns}, nullptr};
}

template <typename E>
static enum status multiply_rows(const struct operand &a, const struct operand *w,
                                 const struct operand *y, void *workspace, struct error *err)
{
    const struct operand in[] = {a, w[0], w[1], {}};
    union op_params p = {};
    p.matmul.transpose_b = true;
    p.matmul.alpha = 1;
    char *const rest = static_cast<char *>(workspace) + made_bytes<E>(a.shape[0], a.shape[1]);
    return op_matmul<E>(&p, in, y, rest, err);
}

template <typename E>
static size_t workspace_of(size_t rows, size_t columns, const struct operand *out)
{
    return made_bytes<E>(rows, columns) + op_matmul_workspace<E>(NULL, NULL, out);
}

/* ---- norm_matmul ---- */

template <typename E> static bool norm_fits(WORKSPACE_ARGUMENTS)
{
    (void)p;
    const struct product x = fused_product<E>(in[0].data, in[0].shape[0], in + 5, out);
    return fits_one_kernel(x) && fits_width<E>(x.k, {in[0].data, in[1].data, in[2].data, in[3].data,
                                                     in[4].data, out[1].data});
}

template <typename E> static enum status norm_fused(OP_ARGUMENTS)
{
    (void)workspace;
    struct normed<E> a = {
    };
    a.stream = data_of<E>(in[0]);
    a.branch = data_of<E>(in[1]);
    a.branch_bias = data_of<E>(in[2]);
    a.weight = data_of<E>(in[3]);
    a.bias = data_of<E>(in[4]);
    a.sum = data_of<E>(out[1]);
    a.epsilon = (float)p->norm.epsilon;
    a.shift = (float)p->norm.shift;
    a.layer_norm = p->norm.layer_norm;
    return launch_made<E>("norm_matmul", fused_product<E>(in[0].data, in[0].shape[0], in + 5, out),
                          a, err);
}

template <typename E> static enum status norm_in_turn(OP_ARGUMENTS)
{
    const struct operand a = made_rows(workspace, in[0].shape[0], in[0].shape[1]);
    const struct operand x[] = {in[0], in[3], in[4]}, y[] = {a, {}}, both[] = {out[1], a, {}};
    if (in[1].data)
        TRY(op_add_norm<E>(p, in, both, NULL, err));
    else
        TRY(op_norm<E>(p, x, y, NULL, err));
    return multiply_rows<E>(a, in + 5, out, workspace, err);
}

template <typename E> enum status op_norm_matmul(OP_ARGUMENTS)
{
    if constexpr (HAS_MMA<E>)
        if (norm_fits<E>(p, in, out)) {
            const struct product x = fused_product<E>(NULL, in[0].shape[0], in + 5, out);
            const bool adds = in[1].data;
            return run_faster(fused_plan_key(x, adds ? ADD_NORM : NORM),
                              is_worth(x, adds ? 2 : 1, 1), {norm_fused<E>, p, in, out, workspace},
                              {norm_in_turn<E>, p, in, out, workspace}, err);
        }
    return norm_in_turn<E>(p, in, out, workspace, err);
}

template <typename E> size_t op_norm_matmul_workspace(WORKSPACE_ARGUMENTS)
{
    (void)p;
    return workspace_of<E>(in[0].shape[0], in[0].shape[1], out);
}

/* ---- activation_matmul ---- */

template <typename E> static bool activation_fits(WORKSPACE_ARGUMENTS)
{
    (void)p;
    const struct product x = fused_product<E>(in[0].data, in[0].shape[0], in + 1, out);
    return fits_one_kernel(x) && fits_width<E>(x.k, {in[0].data});
}

template <typename E> static enum status activation_fused(OP_ARGUMENTS)
{
    (void)workspace;
    const struct activated<E> a = {
        data_of<E>(in[0]), p->activation.kind, p->activation.gated
    };
    return launch_made<E>("activation_matmul",
                          fused_product<E>(in[0].data, in[0].shape[0], in + 1, out), a, err);
}

template <typename E> static enum status activation_in_turn(OP_ARGUMENTS)
{
    const struct operand a = made_rows(workspace, in[0].shape[0], in[1].shape[1]);
    const struct operand x[] = {in[0], {}};
    TRY(op_activation<E>(p, x, &a, NULL, err));
    return multiply_rows<E>(a, in + 1, out, workspace, err);
}

template <typename E> enum status op_activation_matmul(OP_ARGUMENTS)
{
    if constexpr (HAS_MMA<E>)
        if (activation_fits<E>(p, in, out)) {
            const struct product x = fused_product<E>(NULL, in[0].shape[0], in + 1, out);
            const bool gated = p->activation.gated;
            return run_faster(fused_plan_key(x, gated ? GATED_ACTIVATION : ACTIVATION),
                              is_worth(x, gated ? 2 : 1, 0),
                              {activation_fused<E>, p, in, out, workspace},
                              {activation_in_turn<E>, p, in, out, workspace}, err);
        }
    return activation_in_turn<E>(p, in, out, workspace, err);
}

template <typename E> size_t op_activation_matmul_workspace(WORKSPACE_ARGUMENTS)
{
    (void)p;
    return workspace_of<E>(in[0].shape[0], in[1].shape[1], out);
}

FOR_ALL_TYPES(op_norm_matmul)
FOR_ALL_TYPES(op_activation_matmul)
WORKSPACE_FOR_ALL_TYPES(op_norm_matmul_workspace)
WORKSPACE_FOR_ALL_TYPES(op_activation_matmul_workspace)

/* ---- named kernels ---- */

static bool takes_all(WORKSPACE_ARGUMENTS)
{
    (void)p, (void)in, (void)out;
    return true;
}

// clang-format off
const struct device_kernel norm_matmul_kernels[] = {
    {"fused", ELEM_BF16, norm_fits<bf16>, {norm_fused<bf16>, NULL}},
    {"fused", ELEM_F16, norm_fits<f16>, {norm_fused<f16>, NULL}},
    {"in_turn", ELEM_BF16, takes_all, {norm_in_turn<bf16>, op_norm_matmul_workspace<bf16>}},
    {"in_turn", ELEM_F16, takes_all, {norm_in_turn<f16>, op_norm_matmul_workspace<f16>}},
    {},
};

const struct device_kernel activation_matmul_kernels[] = {
    {"fused", ELEM_BF16, activation_fits<bf16>, {activation_fused<bf16>, NULL}},
    {"fused", ELEM_F16, activation_fits<f16>, {activation_fused<f16>, NULL}},
    {"in_turn", ELEM_BF16, takes_all, {activation_in_turn<bf16>, op_activation_matmul_workspace<bf16>}},
    {"in_turn", ELEM_F16, takes_all, {activation_in_turn<f16>, op_activation_matmul_workspace<f16>}},
    {},
};
// clang-format on
