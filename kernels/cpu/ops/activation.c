/* activation.c - OP_ACTIVATION, and OP_SIGMOID_SCALE. */
#include "kernels/cpu/ops/ops_internal.h"
#include "kernels/cpu/ops/real_math.h"

static inline real silu(real x)
{
    return x / (1 + real_exp(-x));
}

static inline real gelu(real x)
{
    return x * (real)0.5 * (1 + real_erf(x * (real)0.70710678118654752440));
}

/* (1 + tanh(u)) / 2 is sigmoid(2u), which does not cancel where u is far
 * below 0. */
static inline real gelu_tanh(real x)
{
    const real two_u = (real)1.59576912160573071176 * (x + (real)0.044715 * x * x * x);
    return x / (1 + real_exp(-two_u));
}

static inline real relu(real x)
{
    return x < 0 ? 0 : x; /* NaN stays */
}

static inline real squared_relu(real x)
{
    return relu(x) * relu(x);
}

static inline real quick_gelu(real x)
{
    return x / (1 + real_exp((real)-1.702 * x));
}

/* y = f(x), times up where that is not NULL. */
#define ROW_OF(f)                                                                                  \
    static void f##_row(elem *restrict y, const elem *restrict x, const elem *restrict up,         \
                        size_t n)                                                                  \
    {                                                                                              \
        if (up)                                                                                    \
            for (size_t i = 0; i < n; i++)                                                         \
                y[i] = store(f(load(x[i])) * load(up[i]));                                         \
        else                                                                                       \
            for (size_t i = 0; i < n; i++)                                                         \
                y[i] = store(f(load(x[i])));                                                       \
    }
ROW_OF(silu)
ROW_OF(gelu)
ROW_OF(gelu_tanh)
ROW_OF(relu)
ROW_OF(squared_relu)
ROW_OF(quick_gelu)

typedef void row_function(elem *restrict y, const elem *restrict x, const elem *restrict up,
                          size_t n);
static row_function *const row_functions[NUM_ACTIVATIONS] = {
    [ACTIVATION_SILU] = silu_row,
    [ACTIVATION_GELU] = gelu_row,
    [ACTIVATION_GELU_TANH] = gelu_tanh_row,
    [ACTIVATION_RELU] = relu_row,
    [ACTIVATION_SQUARED_RELU] = squared_relu_row,
    [ACTIVATION_QUICK_GELU] = quick_gelu_row,
};

void NAME(activation)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    const elem *x = in[0].data;
    elem *y = out[0].data;
    const size_t num_tokens = counted_rows(&in[1], out[0].shape[0]);
    const size_t n = out[0].shape[1], stride = in[0].shape[1];
    const bool gated = p->activation.gated;
    row_function *f = row_functions[p->activation.kind];
#pragma omp parallel for if (num_tokens * n >= WORTH_THREADS)
    for (size_t t = 0; t < num_tokens; t++)
        f(y + t * n, x + t * stride, gated ? x + t * stride + n : NULL, n);
}

void NAME(sigmoid_scale)(const union op_params *p, const struct operand *in,
                         const struct operand *out)
{
    (void)p;
    const elem *x = in[0].data, *gate = in[1].data;
    elem *y = out[0].data;
    const size_t num_tokens = out[0].shape[0], n = out[0].shape[1];
#pragma omp parallel for if (num_tokens * n >= WORTH_THREADS)
    for (size_t t = 0; t < num_tokens; t++) {
        const real scale = real_sigmoid(load(gate[t]));
        for (size_t i = 0; i < n; i++)
            y[t * n + i] = store(scale * load(x[t * n + i]));
    }
}
