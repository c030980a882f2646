/* norm.c - OP_NORM, OP_ADD_NORM and OP_ADD. */
#include "kernels/cpu/ops/ops_internal.h"

/* y and stats (optional) of rows of h elements, for both norms. */
struct norm {
    const elem *weight, *bias; /* [h]; bias may be NULL */
    elem *y;
    real *stats; /* [T, 2] or NULL */
    size_t num_tokens, h;
    real epsilon, shift;
    bool layer_norm;
};

static struct norm norm_of(const union op_params *p, const struct operand *weight,
                           const struct operand *y)
{
    return (struct norm){.weight = weight[0].data,
                         .bias = weight[1].data,
                         .y = y[0].data,
                         .stats = y[1].data,
                         .num_tokens = y[0].shape[0],
                         .h = y[0].shape[1],
                         .epsilon = (real)p->norm.epsilon,
                         .shift = (real)p->norm.shift,
                         .layer_norm = p->norm.layer_norm};
}

static real mean_of(const elem *x, size_t h)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < h; i++)
        sum += load(x[i]);
    return sum / (real)h;
}

static real mean_square(const elem *x, size_t h, real mean)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < h; i++) {
        real d = load(x[i]) - mean;
        sum += d * d;
    }
    return sum / (real)h;
}

static void norm_row(const struct norm *n, size_t t, const elem *x)
{
    const real mean = n->layer_norm ? mean_of(x, n->h) : 0;
    const real scale = 1 / real_sqrt(mean_square(x, n->h, mean) + n->epsilon);
    elem *y = n->y + t * n->h;
    if (n->bias)
        for (size_t i = 0; i < n->h; i++)
            y[i] = store((load(x[i]) - mean) * scale * (load(n->weight[i]) + n->shift) +
                         load(n->bias[i]));
    else
        for (size_t i = 0; i < n->h; i++)
            y[i] = store((load(x[i]) - mean) * scale * (load(n->weight[i]) + n->shift));
    if (n->stats) {
        n->stats[2 * t] = mean;
        n->stats[2 * t + 1] = scale;
    }
}

static void sum_stream_row(elem *sum, const elem *a, const elem *b, const elem *bias, size_t h)
{
    if (bias)
        for (size_t i = 0; i < h; i++)
            sum[i] = store(load(a[i]) + load(b[i]) + load(bias[i]));
    else
        for (size_t i = 0; i < h; i++)
            sum[i] = store(load(a[i]) + load(b[i]));
}

void NAME(norm)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    const struct norm n = norm_of(p, in + 1, out);
    const elem *x = in[0].data;
#pragma omp parallel for if (n.num_tokens * n.h >= WORTH_THREADS)
    for (size_t t = 0; t < n.num_tokens; t++)
        norm_row(&n, t, x + t * n.h);
}

void NAME(add_norm)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    const struct norm n = norm_of(p, in + 3, out + 1);
    const elem *stream = in[0].data, *branch = in[1].data, *branch_bias = in[2].data;
    elem *sum = out[0].data;
#pragma omp parallel for if (n.num_tokens * n.h >= WORTH_THREADS)
    for (size_t t = 0; t < n.num_tokens; t++) {
        const size_t at = t * n.h;
        sum_stream_row(sum + at, stream + at, branch + at, branch_bias, n.h);
        norm_row(&n, t, sum + at);
    }
}

void NAME(add)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    (void)p;
    const elem *a = in[0].data, *b = in[1].data, *bias = in[2].data;
    elem *c = out[0].data;
    const size_t num_tokens = out[0].shape[0], h = out[0].shape[1];
#pragma omp parallel for if (num_tokens * h >= WORTH_THREADS)
    for (size_t t = 0; t < num_tokens; t++)
        sum_stream_row(c + t * h, a + t * h, b + t * h, bias, h);
}
