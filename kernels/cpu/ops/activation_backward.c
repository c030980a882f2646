/* activation_backward.c - OP_ACTIVATION_BACKWARD: dx = dy f'(x). Gated: dgate =
 * dy up f'(gate), dup = dy f(gate). */
#include "kernels/cpu/ops/ops_internal.h"
#include "kernels/cpu/ops/real_math.h"

/* f(x) and f'(x) */
struct tangent {
    real value, slope;
};

/* sigmoid(z) and 1 - sigmoid(z), neither of which cancels. */
struct sigmoids {
    real of, rest;
};

static inline struct sigmoids sigmoids_of(real z)
{
    const real e = real_exp(z < 0 ? z : -z), large = 1 / (1 + e), small = e * large;
    return (struct sigmoids){z < 0 ? small : large, z < 0 ? large : small};
}

/* (x sigmoid(z))' = sigmoid(z) + x z' sigmoid(z) (1 - sigmoid(z)) */
static inline struct tangent silu(real x)
{
    const struct sigmoids s = sigmoids_of(x);
    return (struct tangent){x * s.of, s.of + x * s.of * s.rest};
}

static inline struct tangent quick_gelu(real x)
{
    const real c = (real)1.702;
    const struct sigmoids s = sigmoids_of(c * x);
    return (struct tangent){x * s.of, s.of + c * x * s.of * s.rest};
}

/* Away from 0 the slope is 0 or 1; powers of x must not overflow first. */
static inline struct tangent gelu_tanh(real x)
{
    const real c = (real)1.59576912160573071176, far = 100;
    const real near = x < -far ? -far : x > far ? far : x, square = near * near;
    const struct sigmoids s = sigmoids_of(c * near * (1 + (real)0.044715 * square));
    const real dz = c * (1 + (real)0.134145 * square);
    return (struct tangent){x * s.of, s.of + near * dz * (s.of * s.rest)};
}

/* x P(x), where P is the normal distribution and P' its density. */
static inline struct tangent gelu(real x)
{
    const real p = (real)0.5 * (1 + real_erf(x * (real)0.70710678118654752440));
    const real density = (real)0.39894228040143267794 * real_exp((real)-0.5 * x * x);
    return (struct tangent){x * p, p + x * density};
}

/* NaN stays in both. */
static inline struct tangent relu(real x)
{
    const real nan_or_0 = x == x ? 0 : x;
    return (struct tangent){x < 0 ? 0 : x, x > 0 ? 1 : nan_or_0};
}

static inline struct tangent squared_relu(real x)
{
    const real r = x < 0 ? 0 : x;
    return (struct tangent){r * r, 2 * r};
}

/* A row of n elements. up is NULL, or lies n behind x, as dup behind dx. dx may
 * be x. */
#define ROW_OF(f)                                                                                  \
    static void f##_row(elem *dx, const elem *x, const elem *up, const elem *dy, size_t n)         \
    {                                                                                              \
        elem *dup = dx + n;                                                                        \
        if (up) _Pragma("omp simd") for (size_t i = 0; i < n; i++)                                 \
            {                                                                                      \
                const struct tangent y = f(load(x[i]));                                            \
                const real d = load(dy[i]), d_up = d * load(up[i]);                                \
                dx[i] = store(d_up * y.slope);                                                     \
                dup[i] = store(d * y.value);                                                       \
            }                                                                                      \
        else                                                                                       \
            _Pragma("omp simd") for (size_t i = 0; i < n; i++) dx[i] =                             \
                store(load(dy[i]) * f(load(x[i])).slope);                                          \
    }
ROW_OF(silu)
ROW_OF(gelu)
ROW_OF(gelu_tanh)
ROW_OF(relu)
ROW_OF(squared_relu)
ROW_OF(quick_gelu)

typedef void row_function(elem *dx, const elem *x, const elem *up, const elem *dy, size_t n);
static row_function *const row_functions[NUM_ACTIVATIONS] = {
    [ACTIVATION_SILU] = silu_row,
    [ACTIVATION_GELU] = gelu_row,
    [ACTIVATION_GELU_TANH] = gelu_tanh_row,
    [ACTIVATION_RELU] = relu_row,
    [ACTIVATION_SQUARED_RELU] = squared_relu_row,
    [ACTIVATION_QUICK_GELU] = quick_gelu_row,
};

void NAME(activation_backward)(const union op_params *p, const struct operand *in,
                               const struct operand *out)
{
    const elem *x = in[0].data, *dy = in[1].data;
    elem *dx = out[0].data;
    const size_t num_tokens = counted_rows(&in[2], in[0].shape[0]);
    const size_t n = in[1].shape[1], stride = in[0].shape[1];
    const bool gated = p->activation.gated;
    row_function *f = row_functions[p->activation.kind];
#pragma omp parallel for if (num_tokens * n >= WORTH_THREADS)
    for (size_t t = 0; t < num_tokens; t++)
        f(dx + t * stride, x + t * stride, gated ? x + t * stride + n : NULL, dy + t * n, n);
}
