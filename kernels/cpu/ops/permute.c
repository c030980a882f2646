/* permute.c - rows by expert: ops that sort, permute, unpermute and
 * gather rows. */
#include <assert.h>

#include "kernels/cpu/ops/ops_internal.h"

/* Counts become each expert's first row. */
static void counts_to_begins(int32_t *counts, size_t num_experts)
{
    int32_t begin = 0;
    for (size_t e = 0; e < num_experts; e++) {
        const int32_t count = counts[e];
        counts[e] = begin;
        begin += count;
    }
}

/* Each expert's end, which is the next one's first row, becomes its
 * count again. */
static void ends_to_counts(int32_t *ends, size_t num_experts)
{
    for (size_t e = num_experts; e-- > 1;)
        ends[e] -= ends[e - 1];
}

void NAME(sort_by_expert)(const union op_params *p, const struct operand *in,
                          const struct operand *out)
{
    (void)p;
    const int32_t *experts = in[0].data;
    int32_t *rows = out[0].data, *counts = out[1].data;
    const size_t slots = in[0].shape[0] * in[0].shape[1], num_experts = out[1].shape[0];
    memset(counts, 0, num_experts * sizeof *counts);
    for (size_t i = 0; i < slots; i++) {
        assert(experts[i] >= 0 && (size_t)experts[i] < num_experts);
        counts[experts[i]]++;
    }
    counts_to_begins(counts, num_experts);
    for (size_t i = 0; i < slots; i++)
        rows[i] = counts[experts[i]]++;
    ends_to_counts(counts, num_experts);
}

void NAME(sort_received)(const union op_params *p, const struct operand *in,
                         const struct operand *out)
{
    const int32_t *counts = in[0].data;
    int32_t *rows = out[0].data, *totals = out[1].data;
    const size_t num_experts = out[1].shape[0], num_senders = in[0].shape[0] / num_experts;
    const size_t per_block = p->sort_received.senders_per_block;
    memset(totals, 0, num_experts * sizeof *totals);
    memset(rows, 0xff, out[0].shape[0] * sizeof *rows); /* -1 */
    for (size_t i = 0; i < num_senders * num_experts; i++)
        totals[i % num_experts] += counts[i];
    counts_to_begins(totals, num_experts);
    size_t row = 0;
    for (size_t i = 0; i < num_senders * num_experts; i++) {
        if (i % (per_block * num_experts) == 0)
            row = i / (per_block * num_experts) * p->sort_received.rows_per_block;
        assert((uint64_t)row + (uint64_t)counts[i] <= out[0].shape[0]);
        for (int32_t n = 0; n < counts[i]; n++)
            rows[row++] = totals[i % num_experts]++;
    }
    ends_to_counts(totals, num_experts);
}

void NAME(permute)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    (void)p;
    const elem *x = in[0].data;
    const int32_t *rows = in[1].data;
    elem *y = out[0].data;
    const size_t h = in[0].shape[1], k = in[1].shape[1], slots = in[1].shape[0] * k;
#pragma omp parallel for if (slots * h >= WORTH_THREADS)
    for (size_t i = 0; i < slots; i++) {
        if (rows[i] < 0) continue;
        assert((uint64_t)rows[i] < out[0].shape[0]);
        memcpy(y + (size_t)rows[i] * h, x + i / k * h, h * sizeof *y);
    }
}

enum { SUM_BLOCK = 256 };

/* Columns [0, n) of x = sum over j < k of weights[j] * y[rows[j]]. */
static void sum_weighted_rows(elem *x, const elem *y, size_t h, size_t n, const int32_t *rows,
                              const real *weights, size_t k)
{
    real sum[SUM_BLOCK] = {0};
    for (size_t j = 0; j < k; j++) {
        if (rows[j] < 0) continue;
        const elem *row = y + (size_t)rows[j] * h;
        const real weight = weights ? weights[j] : 1;
        for (size_t i = 0; i < n; i++)
            sum[i] += weight * load(row[i]);
    }
    for (size_t i = 0; i < n; i++)
        x[i] = store(sum[i]);
}

void NAME(unpermute)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    (void)p;
    const elem *y = in[0].data;
    const int32_t *rows = in[1].data;
    const real *weights = in[2].data;
    elem *x = out[0].data;
    const size_t num_tokens = out[0].shape[0], h = out[0].shape[1], k = in[1].shape[1];
#pragma omp parallel for if (num_tokens * h * k >= WORTH_THREADS)
    for (size_t t = 0; t < num_tokens; t++)
        for (size_t i = 0; i < h; i += SUM_BLOCK)
            sum_weighted_rows(x + t * h + i, y + i, h, min_size(h - i, SUM_BLOCK), rows + t * k,
                              weights ? weights + t * k : NULL, k);
}

/* to = weight * dx. Returns the sum of dx * y, if y is not NULL. */
static real spread_row(elem *to, const elem *dx, const elem *y, size_t h, real weight)
{
    real sum = 0;
    for (size_t i = 0; i < h; i++)
        to[i] = store(weight * load(dx[i]));
    if (!y) return 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < h; i++)
        sum += load(dx[i]) * load(y[i]);
    return sum;
}

void NAME(unpermute_backward)(const union op_params *p, const struct operand *in,
                              const struct operand *out)
{
    (void)p;
    const elem *dx = in[0].data, *y = out[1].data ? in[3].data : NULL;
    const int32_t *rows = in[1].data;
    const real *weights = in[2].data;
    elem *dy = out[0].data;
    real *dweights = out[1].data;
    const size_t h = in[0].shape[1], k = in[1].shape[1], slots = in[1].shape[0] * k;
    assert(y || !dweights);
#pragma omp parallel for if (slots * h >= WORTH_THREADS)
    for (size_t i = 0; i < slots; i++) {
        assert(rows[i] < 0 || (uint64_t)rows[i] < out[0].shape[0]);
        const size_t at = rows[i] < 0 ? 0 : (size_t)rows[i] * h;
        real sum = 0;
        if (rows[i] >= 0)
            sum =
                spread_row(dy + at, dx + i / k * h, y ? y + at : NULL, h, weights ? weights[i] : 1);
        if (dweights) dweights[i] = sum;
    }
}

void NAME(gather_rows)(const union op_params *p, const struct operand *in,
                       const struct operand *out)
{
    (void)p;
    const elem *x = in[0].data;
    const int32_t *rows = in[1].data;
    elem *y = out[0].data;
    const size_t n = out[0].shape[0], h = out[0].shape[1];
#pragma omp parallel for if (n * h >= WORTH_THREADS)
    for (size_t i = 0; i < n; i++) {
        assert(rows[i] < 0 || (uint64_t)rows[i] < in[0].shape[0]);
        if (rows[i] < 0)
            memset(y + i * h, 0, h * sizeof *y);
        else
            memcpy(y + i * h, x + (size_t)rows[i] * h, h * sizeof *y);
    }
}
