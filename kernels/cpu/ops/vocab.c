/* vocab.c - cross entropy over columns of several ranks: OP_VOCAB_MAX,
 * OP_VOCAB_SUM, OP_TOKEN_LOSS and OP_VOCAB_BACKWARD. */
#include <assert.h>

#include "kernels/cpu/ops/ops_internal.h"
#include "kernels/cpu/ops/real_math.h"

void NAME(vocab_max)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    const real *logits = in[0].data;
    real *max = out[0].data;
    const size_t num_tokens = in[0].shape[0], columns = in[0].shape[1], valid = p->vocab.valid;
#pragma omp parallel for if (num_tokens * valid >= WORTH_THREADS)
    for (size_t t = 0; t < num_tokens; t++) {
        real top = -INFINITY;
        int nans = 0;
#pragma omp simd reduction(max : top) reduction(| : nans)
        for (size_t i = 0; i < valid; i++) {
            const real x = logits[t * columns + i];
            top = x > top ? x : top;
            nans |= x != x;
        }
        max[t] = nans ? (real)NAN : top;
    }
}

/* Short sums in REAL, so that long sums lose no precision. */
enum { SUM_BLOCK = 512 };

static real sum_exp(const real *logits, size_t n, real max)
{
    double sum = 0;
    for (size_t first = 0; first < n; first += SUM_BLOCK) {
        const size_t end = min_size(first + SUM_BLOCK, n);
        real part = 0;
#pragma omp simd reduction(+ : part)
        for (size_t i = first; i < end; i++)
            part += real_exp(logits[i] - max);
        sum += (double)part;
    }
    return (real)sum;
}

void NAME(vocab_sum)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    const real *logits = in[0].data, *max = in[1].data;
    const int32_t *targets = in[2].data;
    real *sums = out[0].data; /* [T, 2] */
    const size_t num_tokens = in[0].shape[0], columns = in[0].shape[1], valid = p->vocab.valid;
#pragma omp parallel for if (num_tokens * valid >= WORTH_THREADS)
    for (size_t t = 0; t < num_tokens; t++) {
        const real *row = logits + t * columns;
        const uint64_t column = (uint64_t)(int64_t)targets[t] - p->vocab.first_column;
        sums[2 * t] = sum_exp(row, valid, max[t]);
        sums[2 * t + 1] = column < valid ? row[column] - max[t] : 0;
    }
}

void NAME(token_loss)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    (void)p;
    const real *sums = in[0].data;
    const int32_t *targets = in[1].data;
    real *loss = out[0].data;
    for (size_t t = 0; t < out[0].shape[0]; t++)
        loss[t] = targets[t] < 0 ? 0 : real_log(sums[2 * t]) - sums[2 * t + 1];
}

/* A row's gradient: `by` times (softmax - 1 at the target, if it has a column).
 * dlogits may be logits if ELEM is REAL. */
static void row_backward(elem *dlogits, const real *logits, size_t valid, real max, real sum,
                         uint64_t target, real by)
{
    const real softmax_by = by / sum;
    const real of_target = target < valid ? real_exp(logits[target] - max) / sum : 0;
#pragma omp simd
    for (size_t i = 0; i < valid; i++)
        dlogits[i] = store(real_exp(logits[i] - max) * softmax_by);
    if (target < valid) dlogits[target] = store((of_target - 1) * by);
}

void NAME(vocab_backward)(const union op_params *p, const struct operand *in,
                          const struct operand *out)
{
    const real *logits = in[0].data, *max = in[1].data, *sums = in[2].data, *dloss = in[4].data;
    const int32_t *targets = in[3].data;
    const real scale = *(const real *)in[5].data;
    elem *dlogits = out[0].data;
    const size_t num_tokens = in[0].shape[0], columns = in[0].shape[1];
    assert(in[0].data != out[0].data || sizeof(elem) == sizeof(real));
#pragma omp parallel for if (num_tokens * columns >= WORTH_THREADS)
    for (size_t t = 0; t < num_tokens; t++) {
        const size_t valid = targets[t] < 0 ? 0 : p->vocab.valid; /* neither loss nor gradient */
        const uint64_t target = (uint64_t)(int64_t)targets[t] - p->vocab.first_column;
        elem *row = dlogits + t * columns;
        row_backward(row, logits + t * columns, valid, max[t], sums[2 * t], target,
                     dloss[t] * scale);
        memset(row + valid, 0, (columns - valid) * sizeof *row);
    }
}
