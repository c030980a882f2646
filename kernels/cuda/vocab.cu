/* Cross entropy: a block for each token. */
#include "kernels/cuda/cuda.h"

/* The larger, or NaN if either is. */
struct larger_or_nan {
    template <typename T> __device__ T operator()(T a, T b) const
    {
        return a > b || a != a ? a : b;
    }
};

template <typename R, int N>
__global__ void max_of_rows(const R *logits, size_t columns, size_t valid, R *max)
{
    const R *row = logits + blockIdx.x * columns;
    R top = -R(INFINITY), v[N];
    for (size_t i = threadIdx.x * N; i < valid; i += blockDim.x * N) {
        load_reals<R, N>(v, row + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            top = larger_or_nan()(top, v[j]);
    }
    top = block_reduce(top, -R(INFINITY), larger_or_nan());
    if (threadIdx.x == 0) max[blockIdx.x] = top;
}

template <typename E> enum status op_vocab_max(OP_ARGUMENTS)
{
    typedef real_of<E> real;
    (void)workspace;
    const real *logits = data_of<real>(in[0]);
    const size_t columns = in[0].shape[1], valid = p->vocab.valid;
    const bool wide = fits_width<real>(columns, {logits}) && valid % WIDTH<real> == 0;
    return launch("vocab_max", err, BY_WIDTH(max_of_rows, real, wide),
                  dim3((unsigned)in[0].shape[0]), threads_for(valid, 512), 0, logits, columns,
                  valid, data_of<real>(out[0]));
}

/* Sums of threads are short, and are added in f64. */
template <typename R, int N>
__global__ void sum_of_rows(const R *logits, size_t columns, uint64_t first_column, size_t valid,
                            const R *max, const int32_t *targets, R *sums)
{
    const R *row = logits + blockIdx.x * columns;
    const R top = max[blockIdx.x];
    R part = 0, v[N];
    for (size_t i = threadIdx.x * N; i < valid; i += blockDim.x * N) {
        load_reals<R, N>(v, row + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            part += exp(v[j] - top);
    }
    const double sum = block_sum((double)part);
    if (threadIdx.x != 0) return;
    const uint64_t column = (uint64_t)(int64_t)targets[blockIdx.x] - first_column;
    sums[2 * (size_t)blockIdx.x] = R(sum);
    sums[2 * (size_t)blockIdx.x + 1] = column < valid ? row[column] - top : 0;
}

template <typename E> enum status op_vocab_sum(OP_ARGUMENTS)
{
    typedef real_of<E> real;
    (void)workspace;
    const real *logits = data_of<real>(in[0]);
    const size_t columns = in[0].shape[1], valid = p->vocab.valid;
    const bool wide = fits_width<real>(columns, {logits}) && valid % WIDTH<real> == 0;
    return launch("vocab_sum", err, BY_WIDTH(sum_of_rows, real, wide),
                  dim3((unsigned)in[0].shape[0]), threads_for(valid, 512), 0, logits, columns,
                  p->vocab.first_column, valid, data_of<real>(in[1]), data_of<int32_t>(in[2]),
                  data_of<real>(out[0]));
}

template <typename R>
__global__ void loss_of_tokens(const R *sums, const int32_t *targets, R *loss, size_t num_tokens)
{
    const size_t t = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (t < num_tokens) loss[t] = targets[t] < 0 ? 0 : log(sums[2 * t]) - sums[2 * t + 1];
}

template <typename E> enum status op_token_loss(OP_ARGUMENTS)
{
    typedef real_of<E> real;
    (void)p, (void)workspace;
    const size_t num_tokens = out[0].shape[0];
    return launch("token_loss", err, loss_of_tokens<real>, dim3(blocks_for(num_tokens, 256)), 256,
                  0, data_of<real>(in[0]), data_of<int32_t>(in[1]), data_of<real>(out[0]),
                  num_tokens);
}

/* ---- backward ---- */

template <typename E> struct vocab_backward_args {
    const real_of<E> *logits, *max, *sums, *dloss, *scale;
    const int32_t *targets;
    E *dlogits; /* may be logits */
    size_t columns, valid;
    uint64_t first_column;
};

/* dlogit = (exp(logit - max) / sum - 1 at the target) * dloss * scale; N
 * elements of REAL at once. */
template <typename E, int N> __global__ void vocab_backward_rows(const vocab_backward_args<E> a)
{
    typedef real_of<E> real;
    const size_t token = blockIdx.x, row = token * a.columns;
    const uint64_t target = (uint64_t)(int64_t)a.targets[token] - a.first_column;
    const bool counts = a.targets[token] >= 0;
    const real top = a.max[token], sum = a.sums[2 * token], factor = a.dloss[token] * a.scale[0];
    real v[N];
    for (size_t i = threadIdx.x * N; i < a.columns; i += blockDim.x * N) {
        load_reals<real, N>(v, a.logits + row + i);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const real hit = i + j == target ? 1 : 0;
            v[j] = counts && i + j < a.valid ? (exp(v[j] - top) / sum - hit) * factor : 0;
        }
        store_reals<E, N>(a.dlogits + row + i, v);
    }
}

template <typename E> enum status op_vocab_backward(OP_ARGUMENTS)
{
    typedef real_of<E> real;
    (void)workspace;
    struct vocab_backward_args<E> a = {
    };
    a.logits = data_of<real>(in[0]);
    a.max = data_of<real>(in[1]);
    a.sums = data_of<real>(in[2]);
    a.targets = data_of<int32_t>(in[3]);
    a.dloss = data_of<real>(in[4]);
    a.scale = data_of<real>(in[5]);
    a.dlogits = data_of<E>(out[0]);
    a.columns = in[0].shape[1];
    a.valid = p->vocab.valid;
    a.first_column = p->vocab.first_column;
    const bool wide = fits_width<real>(a.columns, {a.logits, a.dlogits});
    return launch("vocab_backward", err,
                  wide ? vocab_backward_rows<E, WIDTH<real>> : vocab_backward_rows<E, 1>,
                  dim3((unsigned)in[0].shape[0]), threads_for(a.columns, 512), 0, a);
}

/* ---- the loss ---- */

/* For one block: a batch has few tokens, and its sum one order. */
template <typename R>
__global__ void weigh_losses(const R *x, const R *weights, const R *y_sum, R *y, size_t num_tokens)
{
    double sum = 0;
    for (size_t t = threadIdx.x; t < num_tokens; t += blockDim.x)
        sum += weights ? (double)x[t] * (double)weights[t] : (double)x[t];
    sum = block_sum(sum);
    if (threadIdx.x == 0) y[0] = R(sum + (y_sum ? (double)y_sum[0] : 0));
}

template <typename E> enum status op_weighted_sum(OP_ARGUMENTS)
{
    typedef real_of<E> real;
    const size_t num_tokens = in[0].shape[0];
    (void)p, (void)workspace;
    return launch("weighted_sum", err, weigh_losses<real>, dim3(1), threads_for(num_tokens, 1024),
                  0, data_of<real>(in[0]), data_of<real>(in[1]), data_of<real>(in[2]),
                  data_of<real>(out[0]), num_tokens);
}

FOR_ALL_TYPES(op_vocab_max)
FOR_ALL_TYPES(op_vocab_sum)
FOR_ALL_TYPES(op_token_loss)
FOR_ALL_TYPES(op_vocab_backward)
FOR_ALL_TYPES(op_weighted_sum)
