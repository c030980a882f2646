/* activation.cu - OP_ACTIVATION, its backward, and OP_SIGMOID_SCALE. */
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

/* ---- backward ---- */

/* sigmoid(z), and sigmoid(z) (1 - sigmoid(z)), neither of which cancels. */
template <typename R> struct sigmoid_slope {
    R of, slope;
};

template <typename R> __device__ inline sigmoid_slope<R> sigmoid_slope_of(R z)
{
    const R e = exp(z < 0 ? z : -z), large = 1 / (1 + e), small = e * large;
    const sigmoid_slope<R> s = {z < 0 ? small : large, small * large};
    return s;
}

/* (x sigmoid(z))' = sigmoid(z) + x z' sigmoid(z) (1 - sigmoid(z)) */
template <typename R> __device__ inline R silu_slope(R x)
{
    const sigmoid_slope<R> s = sigmoid_slope_of(x);
    return s.of + x * s.slope;
}

/* Of gelu: Phi(x) + x phi(x). */
template <typename R> __device__ inline R gelu_slope(R x)
{
    const R phi = R(0.39894228040143267794) * exp(R(-0.5) * x * x);
    return R(0.5) * (1 + erf(x * R(0.70710678118654752440))) + x * phi;
}

/* Away from 0 it is 0 or 1, and powers of x are not to overflow before. */
template <typename R> __device__ inline R gelu_tanh_slope(R x)
{
    const R c = R(1.59576912160573071176), far = 100;
    const R near = x < -far ? -far : x > far ? far : x, square = near * near;
    const sigmoid_slope<R> s = sigmoid_slope_of(c * near * (1 + R(0.044715) * square));
    return s.of + near * (c * (1 + R(0.134145) * square)) * s.slope;
}

template <typename R> __device__ inline R relu_slope(R x)
{
    return x <= 0 ? 0 : x > 0 ? 1 : x; /* NaN stays */
}

template <typename R> __device__ inline R squared_relu_slope(R x)
{
    return 2 * relu(x);
}

template <typename R> __device__ inline R quick_gelu_slope(R x)
{
    const R c = R(1.702);
    const sigmoid_slope<R> s = sigmoid_slope_of(c * x);
    return s.of + c * x * s.slope;
}

/* What activate() does to x, differentiated. */
template <typename R, int N> __device__ inline void make_slopes(R (&x)[N], enum activation kind)
{
    switch (kind) {
    case ACTIVATION_SILU:
        EACH(silu_slope);
    case ACTIVATION_GELU:
        EACH(gelu_slope);
    case ACTIVATION_GELU_TANH:
        EACH(gelu_tanh_slope);
    case ACTIVATION_RELU:
        EACH(relu_slope);
    case ACTIVATION_SQUARED_RELU:
        EACH(squared_relu_slope);
    case ACTIVATION_QUICK_GELU:
        EACH(quick_gelu_slope);
    case NUM_ACTIVATIONS:
        break;
    }
}

template <typename E> struct slope_args {
    const E *x, *dy;
    const int32_t *counts;
    E *dx; /* may be x */
    size_t n;
    unsigned num_counts;
    bool gated;
    enum activation kind;
};

/* A block a row. A thread has read both halves of a gated x where it writes them. */
template <typename E, int N> __global__ void activate_backward_rows(const slope_args<E> a)
{
    if (blockIdx.x >= counted_rows(a.counts, a.num_counts, gridDim.x)) return;
    const size_t row = blockIdx.x * a.n * (a.gated ? 2 : 1);
    real_of<E> x[N], dy[N], up[N];
    for (size_t i = threadIdx.x * N; i < a.n; i += blockDim.x * N) {
        load_reals<E, N>(x, a.x + row + i);
        load_reals<E, N>(dy, a.dy + blockIdx.x * a.n + i);
        if (a.gated) {
            real_of<E> y[N];
            load_reals<E, N>(up, a.x + row + a.n + i);
            load_reals<E, N>(y, a.x + row + i);
            activate(y, a.kind);
#pragma unroll
            for (int j = 0; j < N; j++) {
                y[j] *= dy[j];
                dy[j] *= up[j];
            }
            store_reals<E, N>(a.dx + row + a.n + i, y);
        }
        make_slopes(x, a.kind);
#pragma unroll
        for (int j = 0; j < N; j++)
            x[j] *= dy[j];
        store_reals<E, N>(a.dx + row + i, x);
    }
}

template <typename E> enum status op_activation_backward(OP_ARGUMENTS)
{
    (void)workspace;
    struct slope_args<E> a = {
    };
    a.x = data_of<E>(in[0]);
    a.dy = data_of<E>(in[1]);
    a.counts = data_of<int32_t>(in[2]);
    a.num_counts = (unsigned)in[2].shape[0];
    a.dx = data_of<E>(out[0]);
    a.n = in[1].shape[1];
    a.gated = p->activation.gated;
    a.kind = p->activation.kind;
    const bool wide = fits_width<E>(a.n, {a.x, a.dy, a.dx});
    return launch("activation_backward", err, BY_WIDTH(activate_backward_rows, E, wide),
                  dim3((unsigned)in[0].shape[0]), row_threads<E>(a.n, wide), 0, a);
}

/* ---- a gate ---- */

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
FOR_ALL_TYPES(op_activation_backward)
FOR_ALL_TYPES(op_sigmoid_scale)
