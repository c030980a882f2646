/* activation.cu - OP_ACTIVATION, and OP_SIGMOID_SCALE. */
#include "kernels/cuda/cuda.h"

template <typename R> __device__ inline R sigmoid(R x)
{
    return 1 / (1 + exp(-x));
}

template <typename R> __device__ inline R silu(R x)
{
    return x / (1 + exp(-x));
}

template <typename R> __device__ inline R gelu(R x)
{
    return x * R(0.5) * (1 + erf(x * R(0.70710678118654752440)));
}

/* (1 + tanh(u)) / 2 is sigmoid(2u), which does not cancel where u is far below 0. */
template <typename R> __device__ inline R gelu_tanh(R x)
{
    const R two_u = R(1.59576912160573071176) * (x + R(0.044715) * x * x * x);
    return x / (1 + exp(-two_u));
}

template <typename R> __device__ inline R relu(R x)
{
    return x < 0 ? 0 : x; /* NaN stays */
}

template <typename R> __device__ inline R squared_relu(R x)
{
    return relu(x) * relu(x);
}

template <typename R> __device__ inline R quick_gelu(R x)
{
    return x / (1 + exp(R(-1.702) * x));
}

#define EACH(f)                                                                                    \
    _Pragma("unroll") for (int j = 0; j < N; j++) x[j] = f(x[j]);                                  \
    break

template <typename R, int N> __device__ inline void activate(R (&x)[N], enum activation kind)
{
    switch (kind) {
    case ACTIVATION_SILU:
        EACH(silu);
    case ACTIVATION_GELU:
        EACH(gelu);
    case ACTIVATION_GELU_TANH:
        EACH(gelu_tanh);
    case ACTIVATION_RELU:
        EACH(relu);
    case ACTIVATION_SQUARED_RELU:
        EACH(squared_relu);
    case ACTIVATION_QUICK_GELU:
        EACH(quick_gelu);
    case NUM_ACTIVATIONS:
        break;
    }
}

/* A block a row. */
template <typename E, int N>
__global__ void activate_rows(const E *x, const int32_t *counts, unsigned num_counts, E *y,
                              size_t n, bool gated, enum activation kind)
{
    if (blockIdx.x >= counted_rows(counts, num_counts, gridDim.x)) return;
    const E *from = x + blockIdx.x * n * (gated ? 2 : 1);
    real_of<E> v[N], up[N];
    for (size_t i = threadIdx.x * N; i < n; i += blockDim.x * N) {
        load_reals<E, N>(v, from + i);
        activate(v, kind);
        if (gated) {
            load_reals<E, N>(up, from + n + i);
#pragma unroll
            for (int j = 0; j < N; j++)
                v[j] *= up[j];
        }
        store_reals<E, N>(y + blockIdx.x * n + i, v);
    }
}

template <typename E> enum status op_activation(OP_ARGUMENTS)
{
    (void)workspace;
    const E *x = data_of<E>(in[0]);
    E *y = data_of<E>(out[0]);
    const size_t n = out[0].shape[1];
    const bool wide = fits_width<E>(n, {x, y});
    return launch("activation", err, BY_WIDTH(activate_rows, E, wide),
                  dim3((unsigned)out[0].shape[0]), row_threads<E>(n, wide), 0, x,
                  data_of<int32_t>(in[1]), (unsigned)in[1].shape[0], y, n, p->activation.gated,
                  p->activation.kind);
}

template <typename E, int N> __global__ void scale_rows(const E *x, const E *gate, E *y, size_t n)
{
    const real_of<E> scale = sigmoid(to_real(gate[blockIdx.x]));
    real_of<E> v[N];
    for (size_t i = threadIdx.x * N; i < n; i += blockDim.x * N) {
        load_reals<E, N>(v, x + blockIdx.x * n + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            v[j] *= scale;
        store_reals<E, N>(y + blockIdx.x * n + i, v);
    }
}

template <typename E> enum status op_sigmoid_scale(OP_ARGUMENTS)
{
    (void)p, (void)workspace;
    const E *x = data_of<E>(in[0]), *gate = data_of<E>(in[1]);
    E *y = data_of<E>(out[0]);
    const size_t n = out[0].shape[1];
    const bool wide = fits_width<E>(n, {x, y});
    return launch("sigmoid_scale", err, BY_WIDTH(scale_rows, E, wide),
                  dim3((unsigned)out[0].shape[0]), row_threads<E>(n, wide), 0, x, gate, y, n);
}

FOR_ALL_TYPES(op_activation)
FOR_ALL_TYPES(op_sigmoid_scale)
