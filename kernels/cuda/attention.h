/* attention.h - shared by the kernels of attention. attention.cu takes
 * everything, a warp for each query head of a token. attention_mma.cu takes
 * bf16 and f16 heads up to 256 on tensor cores; attention_decode.cu the same,
 * faster for few queries; attention_sm90.cu some of it on Hopper GPUs;
 * attention_cudnn.cu whole sequences of these types, if cuDNN is installed.
 *
 * Whole warps read spans on the device; the host is never waited for. */
#ifndef FERRY_KERNELS_CUDA_ATTENTION_H
#define FERRY_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/cuda.h"
#include "kernels/op_dropout.h"

struct span {
    int q_begin, q_count, q_position, k_begin, k_count, k_position;
};

template <typename E> struct attention_args {
    const E *q, *kv, *sinks; /* sinks may be NULL */
    const struct span *spans;
    E *o;            /* [num_queries, heads, head_dim] */
    real_of<E> *lse; /* [num_queries, heads] or NULL */
    unsigned num_spans, num_queries, groups, queries, head_dim;
    size_t q_columns, kv_columns;
    unsigned q_stride, kv_stride, k_at, v_at;
    real_of<E> scale, softcap;
    unsigned window;
    bool causal;
    const int32_t *tokens; /* for dropout; dropout.probability is 0 without it */
    struct dropout dropout;
    uint64_t first_head;
};

/* Arguments common to attention and its backward: q, kv, spans
 * and parameters. */
template <typename E>
static inline struct attention_args<E> attention_inputs_of(const union op_params *p,
                                                           const struct operand *in) {
    struct attention_args<E> a = {
    };
    a.q = data_of<E>(in[0]);
    a.kv = data_of<E>(in[1]);
    a.spans = data_of<struct span>(in[2]);
    a.num_queries = (unsigned)in[0].shape[0];
    a.num_spans = (unsigned)in[2].shape[0];
    a.groups = p->attention.heads.groups;
    a.queries = p->attention.heads.queries;
    a.head_dim = p->attention.heads.head_dim;
    a.q_columns = in[0].shape[1];
    a.kv_columns = in[1].shape[1];
    a.q_stride = p->attention.q_stride;
    a.kv_stride = p->attention.kv_stride;
    a.k_at = p->attention.k_at;
    a.v_at = p->attention.v_at;
    a.scale = (real_of<E>)p->attention.scale;
    a.softcap = (real_of<E>)p->attention.softcap;
    a.window = p->attention.window;
    a.causal = p->attention.causal;
    a.dropout = p->attention.dropout;
    a.first_head = p->attention.first_head;
    return a;
}

template <typename E>
static inline struct attention_args<E>
attention_args_of(const union op_params *p, const struct operand *in, const struct operand *out) {
    struct attention_args<E> a = attention_inputs_of<E>(p, in);
    a.sinks = data_of<E>(in[3]);
    a.tokens = data_of<int32_t>(in[4]);
    a.o = data_of<E>(out[0]);
    a.lse = data_of<real_of<E>>(out[1]);
    return a;
}

/* Dropout's factor of a key's weight, for the query in this row and
 * this head. */
template <typename E>
__device__ inline real_of<E> kept_share(const attention_args<E> &a, size_t row, unsigned head,
                                        int64_t k_position)
{
    if (a.dropout.probability == 0) return 1;
    const uint64_t token = dropout_token(&a.dropout, a.tokens + 2 * row);
    const uint64_t begin = dropout_head(token, a.first_head + head);
    const bool keeps = dropout_keeps(begin, (uint64_t)k_position, dropout_limit(&a.dropout));
    return keeps ? (real_of<E>)(1 / (1 - a.dropout.probability)) : 0;
}

/* Keys [begin, end) of a span. */
struct interval {
    int begin, end;
};

/* The keys that query number `query` of the span may attend to. From query to
 * query neither end falls. */
template <typename E>
__device__ inline struct interval keys_of(const attention_args<E> &a, const struct span &s,
                                          int query)
{
    const int64_t q = (int64_t)s.q_position + query - s.k_position;
    int64_t begin = 0, end = s.k_count;
    if (a.causal && q + 1 < end) end = q + 1;
    if (a.window && q + 1 - (int64_t)a.window > begin) begin = q + 1 - (int64_t)a.window;
    if (end < 0) end = 0;
    struct interval keys = {(int)(begin < end ? begin : end), (int)end};
    return keys;
}

__device__ inline struct span no_span()
{
    struct span s = {0, 0, 0, 0, 0, 0};
    return s;
}

/* The lanes before the first span that ends the list. */
__device__ inline unsigned live_lanes(const struct span &s)
{
    const unsigned ended = __ballot_sync(ALL_LANES, s.q_count <= 0);
    return ended ? (ended & (~ended + 1)) - 1 : ALL_LANES;
}

struct spans_found {
    unsigned first, count;
};

/* The spans of the query at a row, which are adjacent. */
template <typename E>
__device__ inline struct spans_found spans_of_query(const attention_args<E> &a, int row)
{
    struct spans_found f = {0, 0};
    for (unsigned base = 0; base < a.num_spans; base += WARP) {
        const unsigned i = base + lane_id();
        const struct span s = i < a.num_spans ? a.spans[i] : no_span();
        const unsigned live = live_lanes(s);
        const unsigned hits =
            live & __ballot_sync(ALL_LANES, row >= s.q_begin && row - s.q_begin < s.q_count);
        if (hits && f.count == 0) f.first = base + (unsigned)__ffs((int)hits) - 1;
        f.count += (unsigned)__popc(hits);
        if (live != ALL_LANES) break;
    }
    return f;
}

/* The queries [begin, end) of a span that may attend to its key
 * number `key`. */
template <typename E>
__device__ inline struct interval queries_of(const attention_args<E> &a, const struct span &s,
                                             int key)
{
    const int64_t k = (int64_t)s.k_position + key - s.q_position;
    int64_t begin = 0, end = s.q_count;
    if (a.causal && k > 0) begin = k;
    if (a.window && k + (int64_t)a.window < end) end = k + (int64_t)a.window;
    if (begin > s.q_count) begin = s.q_count;
    struct interval queries = {(int)begin, (int)(end > begin ? end : begin)};
    return queries;
}

/* Adds a sink, one more score. Returns the factor of the other sums. */
template <typename R> __device__ inline R add_sink(R sink, R *max, R *sum)
{
    const R top = sink > *max ? sink : *max, before = exp(*max - top);
    *sum = *sum * before + exp(sink - top);
    *max = top;
    return before;
}

/* In attention_mma.cu: whether it and attention_decode.cu support these shapes
 * (rows aligned to 16 bytes); the launch. */
bool attention_fits_mma(const union op_params *p, const struct operand *in);
template <typename E> enum status attention_mma(const attention_args<E> &a, struct error *err);

/* In attention_decode.cu: whether it suits these shapes; bytes of its
 * workspace; the launch. It supports every shape that attention_mma does.
 * num_keys: rows of kv. */
bool attention_decodes(const union op_params *p, const struct operand *in);
size_t attention_decode_workspace(const union op_params *p, const struct operand *in);
template <typename E>
enum status attention_decode(const attention_args<E> &a, uint64_t num_keys, void *workspace,
                             struct error *err);

/* In attention.cu, for bf16 and f16: runs whichever of our kernels
 * supports it. */
template <typename E> enum status attention_own(OP_ARGUMENTS);
size_t attention_own_workspace(const union op_params *p, const struct operand *in);

/* In attention.cu, for trust.h: a case like the op, with its strides and masks,
 * of `sequences` sequences of `length` tokens and at most two groups; its
 * spans. Data pointers are the op's and only tell which operands are
 * present. */
struct op_call;
struct op_call attention_small_case(const struct op_call *o, uint32_t sequences, uint64_t length);
void attention_small_spans(const struct op_call *small, int32_t *to);

/* In attention_cudnn.cu, for bf16 and f16: 0 and false if it does not take an
 * op. It takes only ops whose workspace was asked for. */
template <typename E> size_t attention_cudnn_workspace(WORKSPACE_ARGUMENTS);
template <typename E> bool attention_cudnn_takes(WORKSPACE_ARGUMENTS);
void attention_cudnn_close(void);
template <typename E> enum status attention_cudnn(OP_ARGUMENTS);

#endif
