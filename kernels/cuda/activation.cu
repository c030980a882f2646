/* activation.cu - OP_ACTIVATION, its backward, and OP_SIGMOID_SCALE. */
#include "kernels/cuda/activation.h"

template <typename E, int N>
__global__ void activate_rows(const E *x, const int32_t *counts, unsigned num_counts, E *y,
                              size_t n, bool gated, enum activation kind)
{
    wait_for_kernel_before();
    let_kernel_behind_start();
    if (blockIdx.x >= counted_rows(counts, num_counts, gridDim.x)) return;
    const E *from = x + blockIdx.x * n * (gated ? 2 : 1);
    real_of<E> v[N], up[N] = {};
    for (size_t i = first_column<N>(); i < n; i += next_column<N>()) {
        load_reals<E, N>(v, from + i);
        if (gated) load_reals<E, N>(up, from + n + i);
        activate<E>(v, kind);
        if (gated) {
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
    const struct spread s = spread_rows<E>(out[0].shape[0], n, wide);
    return launch_early("activation", err, BY_WIDTH(activate_rows, E, wide), s.grid, s.threads, 0,
                        x, data_of<int32_t>(in[1]), (unsigned)in[1].shape[0], y, n,
                        p->activation.gated, p->activation.kind);
}

/* ---- backward ---- */

/* sigmoid(z), and sigmoid(z) (1 - sigmoid(z)), neither of which cancels. */
template <typename R> struct sigmoid_slope {
    R of, slope;
};

template <typename E> __device__ inline sigmoid_slope<real_of<E>> sigmoid_slope_of(real_of<E> z)
{
    typedef real_of<E> R;
    const R e = exp_for<E>(z < 0 ? z : -z), large = divide_for<E>(1, 1 + e), small = e * large;
    const sigmoid_slope<R> s = {z < 0 ? small : large, small * large};
    return s;
}

/* (x sigmoid(z))' = sigmoid(z) + x z' sigmoid(z) (1 - sigmoid(z)) */
template <typename E> __device__ inline real_of<E> silu_slope(real_of<E> x)
{
    typedef real_of<E> R;
    const sigmoid_slope<R> s = sigmoid_slope_of<E>(x);
    return s.of + x * s.slope;
}

/* gelu's slope: Phi(x) + x phi(x). */
template <typename E> __device__ inline real_of<E> gelu_slope(real_of<E> x)
{
    typedef real_of<E> R;
    const R phi = R(0.39894228040143267794) * exp_for<E>(R(-0.5) * x * x);
    return R(0.5) * (1 + erf(x * R(0.70710678118654752440))) + x * phi;
}

/* Away from 0 the slope is 0 or 1; powers of x must not overflow first. */
template <typename E> __device__ inline real_of<E> gelu_tanh_slope(real_of<E> x)
{
    typedef real_of<E> R;
    const R c = R(1.59576912160573071176), far = 100;
    const R near = x < -far ? -far : x > far ? far : x, square = near * near;
    const sigmoid_slope<R> s = sigmoid_slope_of<E>(c * near * (1 + R(0.044715) * square));
    return s.of + near * (c * (1 + R(0.134145) * square)) * s.slope;
}

template <typename E> __device__ inline real_of<E> relu_slope(real_of<E> x)
{
    return x <= 0 ? 0 : x > 0 ? 1 : x; /* NaN stays */
}

template <typename E> __device__ inline real_of<E> squared_relu_slope(real_of<E> x)
{
    return 2 * relu<E>(x);
}

template <typename E> __device__ inline real_of<E> quick_gelu_slope(real_of<E> x)
{
    typedef real_of<E> R;
    const R c = R(1.702);
    const sigmoid_slope<R> s = sigmoid_slope_of<E>(c * x);
    return s.of + c * x * s.slope;
}

/* Derivative of activate(). */
template <typename E, int N>
__device__ inline void make_slopes(real_of<E> (&x)[N], enum activation kind)
{
    switch (kind) {
    case ACTIVATION_SILU:
        ACTIVATE_EACH(silu_slope<E>);
    case ACTIVATION_GELU:
        ACTIVATE_EACH(gelu_slope<E>);
    case ACTIVATION_GELU_TANH:
        ACTIVATE_EACH(gelu_tanh_slope<E>);
    case ACTIVATION_RELU:
        ACTIVATE_EACH(relu_slope<E>);
    case ACTIVATION_SQUARED_RELU:
        ACTIVATE_EACH(squared_relu_slope<E>);
    case ACTIVATION_QUICK_GELU:
        ACTIVATE_EACH(quick_gelu_slope<E>);
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

/* A thread reads both halves of a gated x before it writes them. */
template <typename E, int N> __global__ void activate_backward_rows(const slope_args<E> a)
{
    if (blockIdx.x >= counted_rows(a.counts, a.num_counts, gridDim.x)) return;
    const size_t row = blockIdx.x * a.n * (a.gated ? 2 : 1);
    real_of<E> x[N], dy[N], up[N];
    for (size_t i = first_column<N>(); i < a.n; i += next_column<N>()) {
        load_reals<E, N>(x, a.x + row + i);
        load_reals<E, N>(dy, a.dy + blockIdx.x * a.n + i);
        if (a.gated) {
            real_of<E> y[N];
            load_reals<E, N>(up, a.x + row + a.n + i);
            load_reals<E, N>(y, a.x + row + i);
            activate<E>(y, a.kind);
#pragma unroll
            for (int j = 0; j < N; j++) {
                y[j] *= dy[j];
                dy[j] *= up[j];
            }
            store_reals<E, N>(a.dx + row + a.n + i, y);
        }
        make_slopes<E>(x, a.kind);
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
    const struct spread s = spread_rows<E>(in[0].shape[0], a.n, wide);
    return launch("activation_backward", err, BY_WIDTH(activate_backward_rows, E, wide), s.grid,
                  s.threads, 0, a);
}

/* ---- a gate ---- */

template <typename E, int N> __global__ void scale_rows(const E *x, const E *gate, E *y, size_t n)
{
    const real_of<E> scale = sigmoid<E>(to_real(gate[blockIdx.x]));
    real_of<E> v[N];
    for (size_t i = first_column<N>(); i < n; i += next_column<N>()) {
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
    const struct spread s = spread_rows<E>(out[0].shape[0], n, wide);
    return launch("sigmoid_scale", err, BY_WIDTH(scale_rows, E, wide), s.grid, s.threads, 0, x,
                  gate, y, n);
}

FOR_ALL_TYPES(op_activation)
FOR_ALL_TYPES(op_activation_backward)
FOR_ALL_TYPES(op_sigmoid_scale)
