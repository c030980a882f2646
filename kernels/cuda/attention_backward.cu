/* attention_backward.cu - OP_ATTENTION_BACKWARD for any type and head: slow,
 * plain. A warp has a query head of a token, or a key head and its value head.
 * Its lanes share 32 keys or queries, then the head's elements. */
#include <algorithm>

#include "kernels/cuda/attention_backward.h"
#include "kernels/device.h"

enum { DELTA_WARPS = 4 };

/* delta of each query head, a warp each. */
template <typename E>
__global__ void __launch_bounds__(DELTA_WARPS *WARP) make_delta(const attention_backward_args<E> b)
{
    const size_t items = (size_t)b.a.num_queries * b.a.groups * b.a.queries;
    const size_t item = (size_t)blockIdx.x * DELTA_WARPS + warp_id(), at = item * b.a.head_dim;
    if (item >= items) return;
    real_of<E> dot = 0;
    for (unsigned d = lane_id(); d < b.a.head_dim; d += WARP)
        dot += to_real(b.o[at + d]) * to_real(b.d_o[at + d]);
    dot = warp_reduce(dot, add_up());
    if (lane_id() == 0) b.delta[item] = dot;
}

/* ---- a query and a key ---- */

template <typename R> struct pair_weights {
    R p, ds; /* p: times dropout's factor */
};

template <typename E>
__device__ inline real_of<E> dot_with(const real_of<E> *x, const E *y, unsigned n)
{
    real_of<E> dot = 0;
    for (unsigned d = 0; d < n; d++)
        dot += x[d] * to_real(y[d]);
    return dot;
}

/* x is scale * q.k, dov is do.v. */
template <typename E>
__device__ inline pair_weights<real_of<E>> weigh_pair(const attention_backward_args<E> &b,
                                                      real_of<E> x, real_of<E> dov, size_t row,
                                                      unsigned head, int64_t k_position)
{
    typedef real_of<E> real;
    const size_t item = row * b.a.groups * b.a.queries + head;
    const real cap = b.a.softcap, score = cap != 0 ? cap * tanh(x / cap) : x;
    const real slope = cap != 0 ? 1 - score / cap * (score / cap) : 1;
    const real p = exp(score - b.lse[item]), kept = kept_share(b.a, row, head, k_position);
    pair_weights<real> w = {p * kept, p * (kept * dov - b.delta[item]) * slope};
    return w;
}

/* ---- dq ---- */

/* A warp's, in shared memory. */
template <typename R> struct dq_state {
    R *q, *d_o, *dq; /* [head_dim]; q times scale */
    R *ds;           /* [WARP] */
};

template <typename R> static size_t dq_bytes(unsigned head_dim)
{
    return (3 * (size_t)head_dim + WARP) * sizeof(R);
}

/* Adds keys [at, min(at + WARP, end)) of a span, whose heads begin at kv. */
template <typename E>
__device__ inline void add_keys(const attention_backward_args<E> &b, const dq_state<real_of<E>> &r,
                                const E *kv, size_t row, unsigned head, int k_position, int at,
                                int end)
{
    const attention_args<E> &a = b.a;
    const int count = end - at < WARP ? end - at : WARP, lane = (int)lane_id();
    const E *rows = kv + (size_t)at * a.kv_columns;
    if (lane < count) {
        const E *k = rows + lane * a.kv_columns + a.k_at, *v = rows + lane * a.kv_columns + a.v_at;
        r.ds[lane] = weigh_pair(b, dot_with(r.q, k, a.head_dim), dot_with(r.d_o, v, a.head_dim),
                                row, head, (int64_t)k_position + at + lane)
                         .ds;
    }
    __syncwarp();
    for (unsigned d = lane_id(); d < a.head_dim; d += WARP) {
        real_of<E> sum = r.dq[d];
        for (int j = 0; j < count; j++)
            sum += r.ds[j] * to_real(rows[j * a.kv_columns + a.k_at + d]);
        r.dq[d] = sum;
    }
    __syncwarp();
}

template <typename E> __global__ void make_dq(const attention_backward_args<E> b, size_t warp_bytes)
{
    typedef real_of<E> real;
    DYNAMIC_SHARED(shared);
    const attention_args<E> &a = b.a;
    const unsigned heads = a.groups * a.queries;
    const size_t item = (size_t)blockIdx.x * (blockDim.x / WARP) + warp_id();
    if (item >= (size_t)a.num_queries * heads) return;
    const int row = (int)(item / heads);
    const unsigned head = (unsigned)(item % heads), group = head / a.queries;
    const size_t at = row * a.q_columns + group * a.q_stride + head % a.queries * a.head_dim;
    dq_state<real> r;
    r.q = reinterpret_cast<real *>(shared + warp_id() * warp_bytes);
    r.d_o = r.q + a.head_dim;
    r.dq = r.d_o + a.head_dim;
    r.ds = r.dq + a.head_dim;
    for (unsigned d = lane_id(); d < a.head_dim; d += WARP) {
        r.q[d] = a.scale * to_real(a.q[at + d]);
        r.d_o[d] = to_real(b.d_o[item * a.head_dim + d]);
        r.dq[d] = 0;
    }
    __syncwarp();
    const struct spans_found f = spans_of_query(a, row);
    for (unsigned i = f.first; i < f.first + f.count; i++) {
        const struct span s = a.spans[i];
        const struct interval keys = keys_of(a, s, row - s.q_begin);
        const E *kv = a.kv + s.k_begin * a.kv_columns + group * a.kv_stride;
        for (int j = keys.begin; j < keys.end; j += WARP)
            add_keys(b, r, kv, (size_t)row, head, s.k_position, j, keys.end);
    }
    for (unsigned d = lane_id(); d < a.head_dim; d += WARP)
        b.dq[at + d] = from_real<E>(a.scale * r.dq[d]);
}

/* ---- dk and dv ---- */

/* A warp's, in shared memory. */
template <typename R> struct dkv_state {
    R *k, *v, *dk, *dv; /* [head_dim]; k times scale */
    R *p, *ds;          /* [WARP] */
};

template <typename R> static size_t dkv_bytes(unsigned head_dim)
{
    return (4 * (size_t)head_dim + 2 * WARP) * sizeof(R);
}

/* Adds queries [first, min(first + WARP, end)) in rows of q, for one head. */
template <typename E>
__device__ inline void add_queries(const attention_backward_args<E> &b,
                                   const dkv_state<real_of<E>> &r, unsigned head, int first,
                                   int end, int64_t k_position)
{
    const attention_args<E> &a = b.a;
    const int count = end - first < WARP ? end - first : WARP, lane = (int)lane_id();
    const size_t o_columns = (size_t)a.groups * a.queries * a.head_dim;
    const E *q =
        a.q + first * a.q_columns + head / a.queries * a.q_stride + head % a.queries * a.head_dim;
    const E *d_o = b.d_o + first * o_columns + (size_t)head * a.head_dim;
    if (lane < count) {
        const pair_weights<real_of<E>> w =
            weigh_pair(b, dot_with(r.k, q + lane * a.q_columns, a.head_dim),
                       dot_with(r.v, d_o + lane * o_columns, a.head_dim), (size_t)first + lane,
                       head, k_position);
        r.p[lane] = w.p;
        r.ds[lane] = w.ds;
    }
    __syncwarp();
    for (unsigned d = lane_id(); d < a.head_dim; d += WARP) {
        real_of<E> dk = r.dk[d], dv = r.dv[d];
        for (int i = 0; i < count; i++) {
            dk += r.ds[i] * to_real(q[i * a.q_columns + d]);
            dv += r.p[i] * to_real(d_o[i * o_columns + d]);
        }
        r.dk[d] = dk;
        r.dv[d] = dv;
    }
    __syncwarp();
}

/* Adds a span's contribution to one of its keys. */
template <typename E>
__device__ inline void add_span(const attention_backward_args<E> &b, const dkv_state<real_of<E>> &r,
                                const struct span &s, int key, unsigned group)
{
    const struct interval queries = queries_of(b.a, s, key);
    for (unsigned j = 0; j < b.a.queries; j++)
        for (int i = queries.begin; i < queries.end; i += WARP)
            add_queries(b, r, group * b.a.queries + j, s.q_begin + i, s.q_begin + queries.end,
                        (int64_t)s.k_position + key);
}

template <typename E>
__global__ void make_dkv(const attention_backward_args<E> b, size_t warp_bytes)
{
    typedef real_of<E> real;
    DYNAMIC_SHARED(shared);
    const attention_args<E> &a = b.a;
    const size_t item = (size_t)blockIdx.x * (blockDim.x / WARP) + warp_id();
    if (item >= (size_t)b.num_keys * a.groups) return;
    const int row = (int)(item / a.groups);
    const unsigned group = (unsigned)(item % a.groups);
    const size_t at = row * a.kv_columns + (size_t)group * a.kv_stride;
    dkv_state<real> r;
    r.k = reinterpret_cast<real *>(shared + warp_id() * warp_bytes);
    r.v = r.k + a.head_dim;
    r.dk = r.v + a.head_dim;
    r.dv = r.dk + a.head_dim;
    r.p = r.dv + a.head_dim;
    r.ds = r.p + WARP;
    for (unsigned d = lane_id(); d < a.head_dim; d += WARP) {
        r.k[d] = a.scale * to_real(a.kv[at + a.k_at + d]);
        r.v[d] = to_real(a.kv[at + a.v_at + d]);
        r.dk[d] = r.dv[d] = 0;
    }
    __syncwarp();
    for (unsigned i = 0; i < a.num_spans; i++) {
        const struct span s = a.spans[i];
        if (s.q_count <= 0) break;
        if (row >= s.k_begin && row - s.k_begin < s.k_count)
            add_span(b, r, s, row - s.k_begin, group);
    }
    for (unsigned d = lane_id(); d < a.head_dim; d += WARP) {
        b.dkv[at + a.k_at + d] = from_real<E>(a.scale * r.dk[d]);
        b.dkv[at + a.v_at + d] = from_real<E>(r.dv[d]);
    }
}

/* ---- the launches ---- */

template <typename E>
static enum status launch_items(void (*kernel)(attention_backward_args<E>, size_t),
                                const attention_backward_args<E> &b, size_t items,
                                size_t warp_bytes, struct error *err)
{
    const unsigned warps = (unsigned)std::min<size_t>(4, PLAIN_SHARED_BYTES / warp_bytes);
    if (warps == 0)
        return fail(err, ERR_UNSUPPORTED,
                    "attention_backward: head_dim %u exceeds the limit of GPU kernels",
                    b.a.head_dim);
    return launch("attention_backward", err, kernel, dim3(blocks_for(items, warps)), warps * WARP,
                  warps * warp_bytes, b, warp_bytes);
}

template <typename E>
static enum status backward_plain(const attention_backward_args<E> &b, struct error *err)
{
    typedef real_of<E> real;
    const size_t heads = (size_t)b.a.groups * b.a.queries;
    TRY(launch_items(make_dq<E>, b, b.a.num_queries * heads, dq_bytes<real>(b.a.head_dim), err));
    return launch_items(make_dkv<E>, b, (size_t)b.num_keys * b.a.groups,
                        dkv_bytes<real>(b.a.head_dim), err);
}

template <typename E> static attention_backward_args<E> backward_args_of(OP_ARGUMENTS)
{
    attention_backward_args<E> b = {};
    (void)err;
    b.a = attention_inputs_of<E>(p, in);
    b.a.tokens = data_of<int32_t>(in[3]);
    b.o = data_of<E>(in[4]);
    b.lse = data_of<real_of<E>>(in[5]);
    b.d_o = data_of<E>(in[6]);
    b.delta = static_cast<real_of<E> *>(workspace);
    b.dq = data_of<E>(out[0]);
    b.dkv = out[1].data ? data_of<E>(out[1]) : b.dq;
    b.num_keys = (unsigned)in[1].shape[0];
    return b;
}

/* Zeros both gradients: elements outside heads stay 0. */
template <typename E>
static enum status clear_gradients(const struct operand *out, struct error *err)
{
    for (int i = 0; i < 2; i++)
        if (out[i].data)
            TRY(cuda_status(
                "attention_backward",
                cudaMemsetAsync(out[i].data, 0, operand_numel(&out[i]) * sizeof(E), cuda_stream),
                err));
    return OK;
}

template <typename E>
static enum status start_backward(const attention_backward_args<E> &b, const struct operand *out,
                                  struct error *err)
{
    const size_t items = (size_t)b.a.num_queries * b.a.groups * b.a.queries;
    TRY(clear_gradients<E>(out, err));
    return launch("attention_backward", err, make_delta<E>, dim3(blocks_for(items, DELTA_WARPS)),
                  DELTA_WARPS * WARP, 0, b);
}

template <typename E> static bool takes_mma(WORKSPACE_ARGUMENTS)
{
    return attention_backward_fits_mma(p, in) &&
           fits_width<E>(WIDTH<E>, {in[0].data, in[1].data, in[6].data, out[0].data, out[1].data});
}

template <typename E> static enum status run_plain(OP_ARGUMENTS)
{
    const attention_backward_args<E> b = backward_args_of<E>(p, in, out, workspace, err);
    TRY(start_backward(b, out, err));
    return backward_plain(b, err);
}

template <typename E> static enum status run_mma(OP_ARGUMENTS)
{
    const attention_backward_args<E> b = backward_args_of<E>(p, in, out, workspace, err);
    TRY(start_backward(b, out, err));
    return attention_backward_mma(b, err);
}

template <typename E> enum status op_attention_backward(OP_ARGUMENTS)
{
    if constexpr (HAS_MMA<E>)
        if (takes_mma<E>(p, in, out)) return run_mma<E>(p, in, out, workspace, err);
    return run_plain<E>(p, in, out, workspace, err);
}

template <typename E> size_t op_attention_backward_workspace(WORKSPACE_ARGUMENTS)
{
    (void)p, (void)out;
    return operand_numel(&in[5]) * sizeof(real_of<E>);
}

FOR_ALL_TYPES(op_attention_backward)
WORKSPACE_FOR_ALL_TYPES(op_attention_backward_workspace)

/* ---- named kernels ---- */

// clang-format off
const struct device_kernel attention_backward_kernels[] = {
    {"mma", ELEM_BF16, takes_mma<bf16>, {run_mma<bf16>, op_attention_backward_workspace<bf16>}},
    {"mma", ELEM_F16, takes_mma<f16>, {run_mma<f16>, op_attention_backward_workspace<f16>}},
    {},
};
// clang-format on
