#include "validate/forward/difference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"

/* ---- two arrays ---- */

static bool same_bits(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Counts element i; returns its distance. */
static double count_element(struct difference *d, double a, double b, uint64_t i)
{
    double distance = isfinite(b) ? fabs(a - b) : INFINITY;
    d->different += !same_bits(a, b);
    d->not_finite += isfinite(b) ? 0 : 1;
    d->largest = fmax(d->largest, fabs(a));
    d->rms_a += a * a;
    d->rms += distance * distance;
    if (distance > d->max) {
        d->max = distance;
        d->at = i;
    }
    return distance;
}

static double root_of_mean(double squares, double count)
{
    return count > 0 ? sqrt(squares / count) : 0;
}

struct difference difference_of(const struct array *a, const struct array *b,
                                const struct rounding *r)
{
    struct difference d = {.rows = a->rows};
    double columns = (double)a->columns, count = (double)a->rows * columns;
    for (uint64_t row = 0; row < a->rows; row++) {
        double before = d.rms, most = 0;
        for (uint64_t i = row * a->columns; i < (row + 1) * a->columns; i++)
            most = fmax(most, count_element(&d, array_at(a, i), array_at(b, i), i));
        if (most > r->max) {
            if (!d.rows_beyond++) d.first_row = row;
        } else {
            d.rms_within += d.rms - before;
            d.max_within = fmax(d.max_within, most);
        }
    }
    d.rms = root_of_mean(d.rms, count);
    d.rms_within = root_of_mean(d.rms_within, count - (double)d.rows_beyond * columns);
    d.rms_a = root_of_mean(d.rms_a, count);
    return d;
}

static double ratio_of(double part, double whole)
{
    return part > 0 ? part / whole : 0;
}

double difference_relative(const struct difference *d)
{
    return ratio_of(d->max, d->largest);
}

double difference_relative_rms(const struct difference *d)
{
    return ratio_of(d->rms, d->rms_a);
}

enum agreement agreement_of(const struct difference *d, const struct rounding *r)
{
    if (d->not_finite) return DISAGREE;
    if (!d->different) return AGREE_BIT_FOR_BIT;
    return d->rows_beyond <= r->outliers && d->rms_within <= r->rms ? AGREE_BUT_FOR_ROUNDING
                                                                    : DISAGREE;
}

/* ---- rounding ---- */

const char *const elem_names[NUM_ELEM_TYPES] = {
    [ELEM_F32] = "f32", [ELEM_F64] = "f64", [ELEM_BF16] = "bf16", [ELEM_F16] = "fp16"};

/* The rounding of arithmetic in a type is the difference from a run in
 * `beside`, a finer type; for f64 a coarser one, whose difference is scaled.
 * Sums in another order may differ more, so the difference is multiplied by a
 * factor.
 *
 * In types of 16 bits a factor of 8 would hide errors, since all results differ
 * by percents or tenths of them: A differs from the exact result by one
 * difference, another program by up to two. */
static const struct {
    enum elem_type beside;
    double scale, factor, by_another, unit;
} arithmetic[NUM_ELEM_TYPES] = {
    [ELEM_F32] = {ELEM_F64, 1, 8, 8, 0x1p-24},
    [ELEM_F64] = {ELEM_F32, 0x1p-29, 8, 8, 0x1p-53},
    [ELEM_BF16] = {ELEM_F32, 1, 2, 3, 0x1p-8},
    [ELEM_F16] = {ELEM_F32, 1, 2, 3, 0x1p-11},
};

double dtype_unit(enum dtype d)
{
    static const double units[NUM_DTYPES] = {
        [DT_F64] = 0x1p-53, [DT_F32] = 0x1p-24,    [DT_F16] = 0x1p-11,
        [DT_BF16] = 0x1p-8, [DT_F8_E4M3] = 0x1p-4, [DT_F8_E5M2] = 0x1p-3,
    };
    return units[d];
}

/* For a side with weights or results rounded to a coarser dtype. A run of A in
 * that dtype rounds activations too, so its distance exceeds the rounding of
 * weights. For F16 (computed on CPUs only) and other dtypes, the distance in
 * bf16 is scaled by the ratio of roundings. */
static struct yardstick yardstick_of_stored(enum dtype stored)
{
    const enum elem_type elem = stored == DT_F32 ? ELEM_F32 : ELEM_BF16;
    const double unit = dtype_unit(stored), scale = unit / arithmetic[elem].unit,
                 factor = arithmetic[elem].factor;
    struct yardstick y = {
        .elem = elem, .max = factor * scale, .rms = factor * scale, .least = factor * unit};
    int n = snprintf(y.text, sizeof y.text,
                     "one side is stored in %s: %g times the difference between A and A in %s",
                     dtype_infos[stored].name, factor * scale, elem_names[elem]);
    if (scale != 1)
        snprintf(y.text + n, sizeof y.text - (size_t)n,
                 ", scaled by %g, the ratio of their roundings", scale);
    return y;
}

static struct yardstick yardstick_of_arithmetic(enum elem_type computed, bool by_another)
{
    double factor = by_another ? arithmetic[computed].by_another : arithmetic[computed].factor;
    double scale = arithmetic[computed].scale;
    struct yardstick y = {.elem = arithmetic[computed].beside,
                          .max = factor * scale,
                          .rms = factor * scale,
                          .least = factor * arithmetic[computed].unit};
    int n = snprintf(y.text, sizeof y.text, "%g times the difference between A in %s and A in %s",
                     factor, elem_names[computed], elem_names[y.elem]);
    if (scale != 1)
        snprintf(y.text + n, sizeof y.text - (size_t)n, ", scaled by %.2g, since %s is finer",
                 scale, elem_names[computed]);
    return y;
}

/* A token routed to another expert differs as much as the experts do, however
 * small the rounding. The number of such tokens is proportional to the
 * rounding, so the root mean square grows with its root. With many layers of
 * experts, most tokens change expert in some layer. */
static void allow_for_experts(struct yardstick *y)
{
    size_t n = strlen(y->text);
    y->experts = true;
    y->max = fmax(y->max, 2);
    y->rms = fmax(y->rms, 2 * sqrt(y->rms / 2));
    snprintf(y->text + n, sizeof y->text - n,
             "; experts: %g times for an element, %.2g times for the mean, and a few tokens may "
             "differ more, since rounding may route them to other experts",
             y->max, y->rms);
}

static bool is_16_bits(enum elem_type elem)
{
    return operand_bytes_of(OPERAND_ELEM, elem) == 2;
}

struct yardstick yardstick_choose(const struct sides_rounding *s)
{
    bool is_stored = dtype_unit(s->stored) > arithmetic[s->computed].unit;
    struct yardstick y = is_stored ? yardstick_of_stored(s->stored)
                                   : yardstick_of_arithmetic(s->computed, s->by_another);
    if (s->experts && (is_16_bits(y.elem) || is_16_bits(s->computed))) allow_for_experts(&y);
    return y;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median over rows of the largest difference in the row. */
static double median_of_rows(const struct array *a, const struct array *b)
{
    double *most = must_calloc(a->rows + 1, sizeof *most);
    for (uint64_t i = 0; i < a->rows * a->columns; i++) {
        double *row = &most[i / a->columns];
        *row = fmax(*row, fabs(array_at(a, i) - array_at(b, i)));
    }
    qsort(most, a->rows, sizeof *most, compare_doubles);
    double median = most[a->rows / 2];
    free(most);
    return median;
}

/* In multiples of the median row: rounding alone gives up to about 2, a token
 * of another expert about 20, tokens that attend to it about 5. */
enum { OUTLIER = 4, ONE_OF = 4 };

/* Outliers allowed in B, given the number expected from A's second run: in 19
 * of 20 cases, chance adds less than twice the root of the expected number. */
static uint64_t outliers_allowed(double expected, uint64_t rows)
{
    return min_u64((uint64_t)(expected + 2 * sqrt(expected + 1)), rows / ONE_OF);
}

struct difference difference_of_second_run(const struct yardstick *y, const struct array *a,
                                           const struct array *second_run)
{
    const double far = y->experts ? OUTLIER * median_of_rows(a, second_run) : INFINITY;
    return difference_of(a, second_run, &(struct rounding){.max = far});
}

struct rounding rounding_of(const struct yardstick *y, const struct difference *second_run)
{
    const struct difference *d = second_run;
    struct rounding r = {.max = fmax(y->max * d->max_within, y->least * d->largest),
                         .rms = fmax(y->rms * d->rms_within, y->least * d->rms_a)};
    if (y->experts) r.outliers = outliers_allowed(y->max * (double)d->rows_beyond, d->rows);
    return r;
}

/* ---- logits ---- */

/* log(sum(exp(row))); *top is the index of the largest element. */
static double log_sum_exp(const struct array *a, uint64_t row, uint64_t *top)
{
    uint64_t first = row * a->columns;
    double sum = 0;
    *top = 0;
    for (uint64_t i = 1; i < a->columns; i++)
        if (array_at(a, first + i) > array_at(a, first + *top)) *top = i;
    double most = array_at(a, first + *top);
    for (uint64_t i = 0; i < a->columns; i++)
        sum += exp(array_at(a, first + i) - most);
    return most + log(sum);
}

static double row_kl(const struct array *a, double sum_a, const struct array *b, double sum_b,
                     uint64_t row)
{
    double kl = 0;
    for (uint64_t i = row * a->columns; i < (row + 1) * a->columns; i++) {
        double log_a = array_at(a, i) - sum_a, log_b = array_at(b, i) - sum_b;
        kl += exp(log_a) * (log_a - log_b);
    }
    if (isnan(kl)) return INFINITY;
    return kl < 0 ? 0 : kl; /* below 0 by rounding only */
}

struct logits_statistics logits_compare(const struct array *a, const struct array *b)
{
    struct logits_statistics s = {.rows = a->rows};
    for (uint64_t row = 0; row < a->rows; row++) {
        uint64_t top_a, top_b;
        double sum_a = log_sum_exp(a, row, &top_a), sum_b = log_sum_exp(b, row, &top_b);
        double kl = row_kl(a, sum_a, b, sum_b, row);
        s.same_top += top_a == top_b && isfinite(sum_b);
        s.kl_mean += kl / (double)a->rows;
        s.kl_max = fmax(s.kl_max, kl);
    }
    return s;
}

double logits_loss(const struct array *logits, const int32_t *ids, uint64_t num_sequences,
                   uint64_t length)
{
    double sum = 0;
    uint64_t count = 0, top;
    for (uint64_t row = 0; row < num_sequences * length; row++) {
        if (row % length == length - 1) continue;
        double all = log_sum_exp(logits, row, &top);
        sum += all - array_at(logits, row * logits->columns + (uint64_t)ids[row + 1]);
        count++;
    }
    return count ? sum / (double)count : NAN;
}
