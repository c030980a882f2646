#include "validate/difference.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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
        bool beyond = false;
        double before = d.rms;
        for (uint64_t i = row * a->columns; i < (row + 1) * a->columns; i++)
            beyond |= count_element(&d, array_at(a, i), array_at(b, i), i) > r->max;
        if (!beyond) d.rms_within += d.rms - before;
        if (beyond && !d.rows_beyond++) d.first_row = row;
    }
    d.rms = root_of_mean(d.rms, count);
    d.rms_within = root_of_mean(d.rms_within, count - (double)d.rows_beyond * columns);
    d.rms_a = root_of_mean(d.rms_a, count);
    return d;
}

static double part_of(double part, double whole)
{
    return part > 0 ? part / whole : 0;
}

double difference_relative(const struct difference *d)
{
    return part_of(d->max, d->largest);
}

double difference_relative_rms(const struct difference *d)
{
    return part_of(d->rms, d->rms_a);
}

enum agreement agreement_of(const struct difference *d, const struct rounding *r)
{
    if (d->not_finite) return DISAGREE;
    if (!d->different) return AGREE_BIT_FOR_BIT;
    if (d->rows_beyond > 0 && d->rows_beyond <= strays_allowed(r, d->rows))
        return d->rms_within <= r->rms ? AGREE_BUT_FOR_ROUNDING : DISAGREE;
    return d->max <= r->max && d->rms <= r->rms ? AGREE_BUT_FOR_ROUNDING : DISAGREE;
}

uint64_t strays_allowed(const struct rounding *r, uint64_t rows)
{
    if (!(r->strays > 0)) return 0;
    const double expected = r->strays * (double)rows;
    return (uint64_t)(expected + 2 * sqrt(expected)); /* chance has the larger part of few */
}

/* ---- what rounding explains ---- */

const char *const elem_names[NUM_ELEM_TYPES] = {
    [ELEM_F32] = "f32", [ELEM_F64] = "f64", [ELEM_BF16] = "bf16"};

/* What explains the rounding of arithmetic in a type: the distance to the run in a finer one; of
 * the finest, the same distance of a coarser one, scaled. Sums in another order may be further
 * apart than that, so it counts several times. In bf16, where everything is some per cent apart, 8
 * times would explain too much: A is once that distance from what is true, another program of other
 * roundings up to twice. */
static const struct {
    enum elem_type beside;
    double scale, factor, by_another, unit;
} arithmetic[NUM_ELEM_TYPES] = {
    [ELEM_F32] = {ELEM_F64, 1, 8, 8, 0x1p-24},
    [ELEM_F64] = {ELEM_F32, 0x1p-29, 8, 8, 0x1p-53},
    [ELEM_BF16] = {ELEM_F32, 1, 2, 3, 0x1p-8},
};

double dtype_unit(enum dtype d)
{
    static const double units[NUM_DTYPES] = {
        [DT_F64] = 0x1p-53, [DT_F32] = 0x1p-24,    [DT_F16] = 0x1p-11,
        [DT_BF16] = 0x1p-8, [DT_F8_E4M3] = 0x1p-4, [DT_F8_E5M2] = 0x1p-3,
    };
    return units[d];
}

/* One side's weights were rounded to a coarser dtype. A in bf16, whose activations are rounded,
 * too, is further away than that; of a dtype that the engine does not compute in, as much further
 * as its roundings are coarser. */
static struct yardstick yardstick_of_stored(enum dtype stored)
{
    double unit = dtype_unit(stored), scale = unit / dtype_unit(DT_BF16);
    struct yardstick y = {.elem = ELEM_BF16, .times = {2 * scale, 2 * scale}, .least = 2 * unit};
    int n = snprintf(y.text, sizeof y.text,
                     "one side is stored in %s: %g times the distance of A from A in bf16",
                     dtype_infos[stored].name, 2 * scale);
    if (scale != 1)
        snprintf(y.text + n, sizeof y.text - (size_t)n, ", of whose rounding it has %g", scale);
    return y;
}

static struct yardstick yardstick_of_arithmetic(enum elem_type computed, bool by_another)
{
    double factor = by_another ? arithmetic[computed].by_another : arithmetic[computed].factor;
    double scale = arithmetic[computed].scale;
    struct yardstick y = {.elem = arithmetic[computed].beside,
                          .times = {factor * scale, factor * scale},
                          .least = factor * arithmetic[computed].unit};
    int n = snprintf(y.text, sizeof y.text, "%g times the distance of A in %s from A in %s", factor,
                     elem_names[computed], elem_names[y.elem]);
    if (scale != 1)
        snprintf(y.text + n, sizeof y.text - (size_t)n, ", times %.2g, by which %s is finer", scale,
                 elem_names[computed]);
    return y;
}

/* A token that goes to another expert is as far away as experts are apart, however small the
 * rounding was that sent it there: some tokens are not judged. How many go is in proportion to the
 * rounding, so the mean, which has those that stay near, grows with its root. */
static void allow_for_experts(struct yardstick *y)
{
    enum { ONE_OF = 10 };
    size_t n = strlen(y->text);
    y->times.rms = fmax(y->times.rms, 2 * sqrt(y->times.rms / 2));
    y->times.strays = 1.0 / ONE_OF;
    snprintf(y->text + n, sizeof y->text - n,
             "; experts: %.2g times of the mean, and about one of %d tokens may be anywhere, as it "
             "may send tokens to others",
             y->times.rms, ONE_OF);
}

struct yardstick yardstick_choose(const struct sides_rounding *s)
{
    bool is_stored = dtype_unit(s->stored) > arithmetic[s->computed].unit;
    struct yardstick y = is_stored ? yardstick_of_stored(s->stored)
                                   : yardstick_of_arithmetic(s->computed, s->by_another);
    if (s->experts && (is_stored || s->computed == ELEM_BF16)) allow_for_experts(&y);
    return y;
}

struct rounding rounding_of(const struct yardstick *y, const struct difference *second_run)
{
    const struct difference *d = second_run;
    return (struct rounding){.max = fmax(y->times.max * d->max, y->least * d->largest),
                             .rms = fmax(y->times.rms * d->rms, y->least * d->rms_a),
                             .strays = y->times.strays};
}

/* ---- logits ---- */

/* The logarithm of the sum of exp over a row, and the place of its largest element. */
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
    return kl < 0 ? 0 : kl; /* by rounding only */
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
