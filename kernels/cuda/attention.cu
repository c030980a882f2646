#include <algorithm>
#include <stdio.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/trust.h"
#include "kernels/device.h"

/* A warp's, in shared memory. */
template <typename R> struct row_state {
    R *q, *o;   /* [head_dim]; q times scale */
    R *weights; /* [WARP], of the current keys */
    size_t row; /* in q */
    unsigned head;
    R max, sum; /* of the scores so far; of exp(score - max) */
};

template <typename R> __host__ __device__ inline size_t row_bytes(unsigned head_dim)
{
    return (2 * (size_t)head_dim + WARP) * sizeof(R);
}

template <typename E>
__device__ inline real_of<E> score_of(const attention_args<E> &a, const real_of<E> *q, const E *k)
{
    real_of<E> dot = 0;
    for (unsigned d = 0; d < a.head_dim; d++)
        dot += q[d] * to_real(k[d]);
    return a.softcap != 0 ? a.softcap * tanh(dot / a.softcap) : dot;
}

struct larger {
    template <typename T> __device__ T operator()(T a, T b) const
    {
        return a > b ? a : b;
    }
};

/* Attends to keys [at, min(at + WARP, end)) of a span, whose heads begin at kv
 * and positions at k_position; each lane scores one. */
template <typename E>
__device__ inline void attend_keys(const attention_args<E> &a, struct row_state<real_of<E>> &r,
                                   const E *kv, int k_position, int at, int end)
{
    typedef real_of<E> real;
    const int count = end - at < WARP ? end - at : WARP, lane = (int)lane_id();
    const E *rows = kv + (size_t)at * a.kv_columns;
    real score = -real(INFINITY);
    if (lane < count) score = score_of(a, r.q, rows + lane * a.kv_columns + a.k_at);
    const real top = larger()(r.max, warp_reduce(score, larger()));
    const real shift = top == -real(INFINITY) ? 0 : top, before = exp(r.max - shift);
    const real weight = lane < count ? exp(score - shift) : 0;
    r.sum = r.sum * before + warp_reduce(weight, add_up());
    r.max = top;
    r.weights[lane] = weight * kept_share(a, r.row, r.head, (int64_t)k_position + at + lane);
    __syncwarp();
    for (unsigned d = lane_id(); d < a.head_dim; d += WARP) {
        real sum = r.o[d] * before;
        for (int j = 0; j < count; j++)
            sum += r.weights[j] * to_real(rows[j * a.kv_columns + a.v_at + d]);
        r.o[d] = sum;
    }
    __syncwarp();
}

/* A row without keys has a sum of 0, with sinks too. */
template <typename E>
__device__ inline void finish_row(const attention_args<E> &a, struct row_state<real_of<E>> &r,
                                  size_t item, unsigned head)
{
    typedef real_of<E> real;
    const bool empty = r.sum == 0;
    real scale = 1;
    if (a.sinks && !empty) scale = add_sink(to_real(a.sinks[head]), &r.max, &r.sum);
    scale = empty ? 0 : scale / r.sum;
    for (unsigned d = lane_id(); d < a.head_dim; d += WARP)
        a.o[item * a.head_dim + d] = from_real<E>(empty ? 0 : scale * r.o[d]);
    if (a.lse && lane_id() == 0) a.lse[item] = empty ? -real(INFINITY) : r.max + log(r.sum);
}

/* A warp for each query head of a token. */
template <typename E> __global__ void attend_rows(const attention_args<E> a)
{
    typedef real_of<E> real;
    DYNAMIC_SHARED(shared);
    const unsigned heads = a.groups * a.queries;
    const size_t item = (size_t)blockIdx.x * (blockDim.x / WARP) + warp_id();
    if (item >= (size_t)a.num_queries * heads) return;
    const int row = (int)(item / heads);
    const unsigned head = (unsigned)(item % heads), group = head / a.queries;
    struct row_state<real> r;
    r.q = reinterpret_cast<real *>(shared + warp_id() * row_bytes<real>(a.head_dim));
    r.o = r.q + a.head_dim;
    r.weights = r.o + a.head_dim;
    r.max = -real(INFINITY);
    r.sum = 0;
    r.row = (size_t)row;
    r.head = head;
    const E *q = a.q + row * a.q_columns + group * a.q_stride + head % a.queries * a.head_dim;
    for (unsigned d = lane_id(); d < a.head_dim; d += WARP) {
        r.q[d] = a.scale * to_real(q[d]);
        r.o[d] = 0;
    }
    __syncwarp();
    const struct spans_found f = spans_of_query(a, row);
    for (unsigned i = f.first; i < f.first + f.count; i++) {
        const struct span s = a.spans[i];
        const struct interval keys = keys_of(a, s, row - s.q_begin);
        const E *kv = a.kv + s.k_begin * a.kv_columns + group * a.kv_stride;
        for (int at = keys.begin; at < keys.end; at += WARP)
            attend_keys(a, r, kv, s.k_position, at, keys.end);
    }
    finish_row(a, r, item, head);
}

template <typename E>
static enum status attention_plain(const attention_args<E> &a, struct error *err)
{
    const size_t bytes = row_bytes<real_of<E>>(a.head_dim);
    const unsigned warps = (unsigned)std::min<size_t>(4, PLAIN_SHARED_BYTES / bytes);
    if (warps == 0)
        return fail(err, ERR_UNSUPPORTED, "attention: head_dim %u exceeds the limit of GPU kernels",
                    a.head_dim);
    const size_t items = (size_t)a.num_queries * a.groups * a.queries;
    return launch("attention", err, attend_rows<E>, dim3(blocks_for(items, warps)), warps * WARP,
                  warps * bytes, a);
}

/* ---- the choice ---- */

template <typename E> static bool takes_mma(WORKSPACE_ARGUMENTS)
{
    (void)out;
    return attention_fits_mma(p, in) && fits_width<E>(WIDTH<E>, {in[0].data, in[1].data});
}

template <typename E> static bool takes_decode(WORKSPACE_ARGUMENTS)
{
    return takes_mma<E>(p, in, out) && attention_decodes(p, in) &&
           (uintptr_t)out[0].data % (4 * sizeof(E)) == 0; /* stores four at a time */
}

template <typename E> static enum status run_mma(OP_ARGUMENTS)
{
    (void)workspace;
    return attention_mma(attention_args_of<E>(p, in, out), err);
}

template <typename E> static enum status run_decode(OP_ARGUMENTS)
{
    return attention_decode(attention_args_of<E>(p, in, out), in[1].shape[0], workspace, err);
}

/* ---- attention_sm90.cu ---- */

/* Length of a small case: uses every stage of a ring of blocks of keys
 * three times. */
enum { NUM_SM90_HEADS = 3, SMALL_LENGTH_SM90 = 530 };
static const unsigned sm90_heads[NUM_SM90_HEADS] = {64, 128, 256};

/* Features of an op. */
enum {
    HAS_CAUSAL = 1,
    HAS_WINDOW = 2,
    HAS_SOFTCAP = 4,
    HAS_SINKS = 8,
    HAS_LSE = 16,
    NUM_FEATURE_SETS = 32
};

/* One kernel for each head_dim, with a path for each set of features. */
static enum verdict verdicts[NUM_ELEM_TYPES][NUM_SM90_HEADS][NUM_FEATURE_SETS];

static unsigned features_of(WORKSPACE_ARGUMENTS)
{
    return (p->attention.causal ? HAS_CAUSAL : 0u) | (p->attention.window ? HAS_WINDOW : 0u) |
           (p->attention.softcap != 0 ? HAS_SOFTCAP : 0u) | (in[3].data ? HAS_SINKS : 0u) |
           (out[1].data ? HAS_LSE : 0u);
}

/* Index of head_dim in sm90_heads, or NUM_SM90_HEADS. */
static unsigned sm90_head(const union op_params *p)
{
    unsigned i = 0;
    while (i < NUM_SM90_HEADS && sm90_heads[i] != p->attention.heads.head_dim)
        i++;
    return i;
}

template <typename E> static bool takes_sm90(WORKSPACE_ARGUMENTS)
{
    return sm90_kernels.attention && sm90_is_on() && sm90_head(p) < NUM_SM90_HEADS &&
           in[1].shape[0] > 0 && takes_mma<E>(p, in, out);
}

template <typename E> static enum status run_sm90(OP_ARGUMENTS)
{
    (void)workspace;
    return sm90_kernels.attention(ELEM_OF<E>, p, in, out, err);
}

template <typename E>
static enum status run_small_case(const struct op_call *call, const void *context, void *workspace,
                                  struct error *err)
{
    return (context ? run_sm90<E> : run_mma<E>)(&call->p, call->in, call->out, workspace, err);
}

struct op_call attention_small_case(const struct op_call *o, uint32_t sequences, uint64_t length)
{
    struct op_call s = *o;
    const uint64_t rows = sequences * length;
    struct head_shape *const h = &s.p.attention.heads;
    h->groups = std::min(h->groups, 2u);
    const uint64_t heads = (uint64_t)h->groups * h->queries;
    s.p.attention.uniform_sequences = sequences;
    s.in[0].shape[0] = s.in[1].shape[0] = s.out[0].shape[0] = s.out[1].shape[0] = rows;
    s.in[2].shape[0] = sequences;
    s.in[3].shape[0] = heads;
    s.in[4].data = NULL; /* tokens, for dropout: none */
    s.out[0].shape[1] = heads * h->head_dim;
    s.out[1].shape[1] = heads;
    return s;
}

void attention_small_spans(const struct op_call *small, int32_t *to)
{
    const uint32_t sequences = small->p.attention.uniform_sequences;
    const int length = (int)(small->in[0].shape[0] / sequences);
    for (int i = 0; i < (int)sequences; i++) {
        const struct span s = {i * length, length, 0, i * length, length, 0};
        reinterpret_cast<struct span *>(to)[i] = s;
    }
}

/* Shortens a window to end within the small case. */
template <typename E> static enum verdict try_out(WORKSPACE_ARGUMENTS)
{
    const struct contender plain = {"mma", 0, run_small_case<E>, NULL};
    const struct contender faster = {"attention_sm90", 0, run_small_case<E>, &sm90_kernels};
    const struct op_call o = op_call_of(ELEM_OF<E>, p, in, out);
    const unsigned has = features_of(p, in, out);
    char what[128];
    struct op_call small = attention_small_case(&o, 2, SMALL_LENGTH_SM90);
    small.p.attention.window = std::min(p->attention.window, SMALL_LENGTH_SM90 / 3u);
    (void)snprintf(what, sizeof what, "%s, heads of %u%s%s%s%s%s",
                   o.elem == ELEM_F16 ? "f16" : "bf16", p->attention.heads.head_dim,
                   has & HAS_CAUSAL ? ", causal" : "", has & HAS_WINDOW ? ", window" : "",
                   has & HAS_SOFTCAP ? ", softcap" : "", has & HAS_SINKS ? ", sinks" : "",
                   has & HAS_LSE ? ", lse" : "");
    return try_sm90(what, &small, attention_small_spans, &plain, &faster);
}

/* Only on request, until a GPU has timed it. */
template <typename E> static bool is_by_sm90(WORKSPACE_ARGUMENTS)
{
    if (!sm90_has_word("first") || !takes_sm90<E>(p, in, out)) return false;
    enum verdict *const v = &verdicts[ELEM_OF<E>][sm90_head(p)][features_of(p, in, out)];
    if (*v == NOT_TRIED) *v = try_out<E>(p, in, out);
    return *v == TRUSTED;
}

void attention_close(void)
{
    std::fill_n(&verdicts[0][0][0], sizeof verdicts / sizeof(enum verdict), NOT_TRIED);
    attention_cudnn_close();
}

/* ---- the op ---- */

template <typename E> enum status attention_own(OP_ARGUMENTS)
{
    if (takes_decode<E>(p, in, out)) return run_decode<E>(p, in, out, workspace, err);
    if (takes_mma<E>(p, in, out)) return run_mma<E>(p, in, out, workspace, err);
    return attention_plain(attention_args_of<E>(p, in, out), err);
}

size_t attention_own_workspace(const union op_params *p, const struct operand *in)
{
    if (!attention_fits_mma(p, in) || !attention_decodes(p, in)) return 0;
    return attention_decode_workspace(p, in);
}

template <typename E> enum status op_attention(OP_ARGUMENTS)
{
    if constexpr (HAS_MMA<E>) {
        if (!takes_decode<E>(p, in, out) && is_by_sm90<E>(p, in, out))
            return run_sm90<E>(p, in, out, workspace, err);
        if (attention_cudnn_takes<E>(p, in, out))
            return attention_cudnn<E>(p, in, out, workspace, err);
        return attention_own<E>(p, in, out, workspace, err);
    } else {
        (void)workspace;
        return attention_plain(attention_args_of<E>(p, in, out), err);
    }
}

template <typename E> size_t op_attention_workspace(WORKSPACE_ARGUMENTS)
{
    if constexpr (HAS_MMA<E>)
        return std::max(attention_own_workspace(p, in), attention_cudnn_workspace<E>(p, in, out));
    (void)p, (void)in, (void)out;
    return 0;
}

template enum status attention_own<bf16>(OP_ARGUMENTS);
template enum status attention_own<f16>(OP_ARGUMENTS);
FOR_ALL_TYPES(op_attention)
WORKSPACE_FOR_ALL_TYPES(op_attention_workspace)

/* ---- named kernels ---- */

static size_t decode_workspace(WORKSPACE_ARGUMENTS)
{
    (void)out;
    return attention_own_workspace(p, in);
}

// clang-format off
const struct device_kernel attention_kernels[] = {
    {"mma", ELEM_BF16, takes_mma<bf16>, {run_mma<bf16>, NULL}},
    {"mma", ELEM_F16, takes_mma<f16>, {run_mma<f16>, NULL}},
    {"attention_sm90", ELEM_BF16, takes_sm90<bf16>, {run_sm90<bf16>, NULL}},
    {"attention_sm90", ELEM_F16, takes_sm90<f16>, {run_sm90<f16>, NULL}},
    {"decode", ELEM_BF16, takes_decode<bf16>, {run_decode<bf16>, decode_workspace}},
    {"decode", ELEM_F16, takes_decode<f16>, {run_decode<f16>, decode_workspace}},
    {"cudnn", ELEM_BF16, attention_cudnn_takes<bf16>, {attention_cudnn<bf16>, attention_cudnn_workspace<bf16>}},
    {"cudnn", ELEM_F16, attention_cudnn_takes<f16>, {attention_cudnn<f16>, attention_cudnn_workspace<f16>}},
    {},
};
// clang-format on
