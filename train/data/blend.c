#include "train/data/blend.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "common/memory.h"

/* NumPy's pairwise sum (numpy/core/src/umath/loops_utils.h.src): blocks of up
 * to 128 have eight sums, larger ones are halved at a multiple of eight. */
static double pairwise_sum(const double *x, size_t n)
{
    if (n < 8) {
        double sum = -0.0;
        for (size_t i = 0; i < n; i++)
            sum += x[i];
        return sum;
    }
    if (n > 128) {
        const size_t half = n / 2 - n / 2 % 8;
        return pairwise_sum(x, half) + pairwise_sum(x + half, n - half);
    }
    double r[8];
    size_t i;
    for (i = 0; i < 8; i++)
        r[i] = x[i];
    for (; i < n - n % 8; i++)
        r[i % 8] += x[i];
    double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < n; i++)
        sum += x[i];
    return sum;
}

void blend_normalize(double *weights, size_t count)
{
    const double sum = pairwise_sum(weights, count);
    for (size_t i = 0; i < count; i++)
        weights[i] /= sum;
}

uint64_t blend_share(uint64_t size, double weight)
{
    return (uint64_t)ceil((double)size * weight);
}

uint64_t blend_share_to_build(uint64_t size, double weight)
{
    return (uint64_t)ceil((double)blend_share(size, weight) * (1 + 0.005));
}

static enum status allocate_blend(struct blend *b, uint64_t size, struct error *err)
{
    *b = (struct blend){.size = size,
                        .dataset_index = calloc(size + 1, sizeof *b->dataset_index),
                        .dataset_sample_index = calloc(size + 1, sizeof *b->dataset_sample_index)};
    if (b->dataset_index && b->dataset_sample_index) return OK;
    blend_release(b);
    return fail(err, ERR_MEMORY, "no memory for the indices of a blend of %" PRIu64 " samples",
                size);
}

void blend_release(struct blend *b)
{
    free(b->dataset_index);
    free(b->dataset_sample_index);
    *b = (struct blend){.size = 0};
}

/* The dataset that lacks most at sample i. lengths: skips datasets without
 * samples left. */
static size_t pick_dataset(const double *weights, const uint64_t *used, const uint64_t *lengths,
                           size_t count, uint64_t i)
{
    const double so_far = i ? (double)i : 1.0;
    double most = -DBL_MAX;
    size_t picked = 0;
    for (size_t k = 0; k < count; k++) {
        if (lengths && used[k] == lengths[k]) continue;
        const double due = weights[k] * so_far; /* rounded by itself: never a fused operation */
        const double lack = due - (double)used[k];
        if (lack > most) {
            most = lack;
            picked = k;
        }
    }
    return picked;
}

static void fill_blend(struct blend *b, const double *weights, const uint64_t *lengths,
                       size_t count)
{
    uint64_t *used = must_calloc(count, sizeof *used);
    for (uint64_t i = 0; i < b->size; i++) {
        const size_t k = pick_dataset(weights, used, lengths, count, i);
        b->dataset_index[i] = (int16_t)k;
        b->dataset_sample_index[i] = (int64_t)used[k]++;
    }
    free(used);
}

enum status blend_by_weight(struct blend *b, const double *weights, size_t count, uint64_t size,
                            struct error *err)
{
    TRY(allocate_blend(b, size, err));
    fill_blend(b, weights, NULL, count);
    return OK;
}

enum status blend_exhaustive(struct blend *b, const uint64_t *lengths, size_t count,
                             struct error *err)
{
    uint64_t size = 0;
    for (size_t k = 0; k < count; k++)
        size += lengths[k];
    TRY(allocate_blend(b, size, err));
    double *weights = must_calloc(count, sizeof *weights);
    for (size_t k = 0; k < count; k++)
        weights[k] = (double)lengths[k] / (double)size;
    fill_blend(b, weights, lengths, count);
    free(weights);
    return OK;
}
