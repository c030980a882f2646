#include "kernels/cpu/moments.h"

#include <math.h>
#include <stdlib.h>

#include "common/count.h"
#include "kernels/cpu/cast.h"
#include "tests/testing.h"

/* The same, element by element in long double. */
static struct moments plain_moments(enum dtype dtype, const void *elements, size_t n)
{
    struct moments m = {.min = INFINITY, .max = -INFINITY};
    long double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        double x = dtype_load(dtype, elements, i);
        m.nan += isnan(x) != 0;
        m.infinite += isinf(x) != 0;
        m.zeros += fabs(x) <= 0;
        if (!isfinite(x)) continue;
        m.finite++;
        m.min = fmin(m.min, x);
        m.max = fmax(m.max, x);
        sum += x;
    }
    m.mean = (double)(sum / (long double)m.finite);
    for (size_t i = 0; i < n; i++) {
        long double d = dtype_load(dtype, elements, i) - sum / (long double)m.finite;
        if (isfinite((double)d)) squares += d * d;
    }
    m.squares = (double)squares;
    return m;
}

static void assert_near(double a, double b, double scale)
{
    if (!(fabs(a - b) <= 1e-12 * (fabs(b) + scale))) fail_msg("%.17g, wanted %.17g", a, b);
}

static void assert_moments(const struct moments *a, const struct moments *b)
{
    assert_int_equal(a->nan, b->nan);
    assert_int_equal(a->infinite, b->infinite);
    assert_int_equal(a->zeros, b->zeros);
    assert_int_equal(a->finite, b->finite);
    if (!b->finite) return;
    assert_true(a->min <= b->min && a->min >= b->min);
    assert_true(a->max <= b->max && a->max >= b->max);
    assert_near(a->mean, b->mean, moments_std(b));
    assert_near(a->squares, b->squares, 0);
}

/* Random bytes as elements of every type, with NaN and infinities, at
 * odd addresses. */
static void all_types_are_as_one_by_one(void **state)
{
    enum { MOST = 9001 };
    static uint8_t room[8 * MOST + 1];
    static const size_t counts[] = {0, 1, 15, 16, 17, 2047, 2048, 2049, MOST};
    (void)state;
    srandom(7);
    for (int d = 0; d < NUM_DTYPES; d++) {
        enum dtype dtype = (enum dtype)d;
        if (!moments_exist(dtype)) continue;
        for (size_t i = 0; i < sizeof room; i++)
            room[i] = (uint8_t)random();
        if (dtype == DT_F64) /* squares of any exponent overflow */
            for (size_t i = 0; i < MOST; i++)
                room[8 * i + 8] = (uint8_t)(room[8 * i + 8] % 2 ? 0x3F : 0xBF);
        for (size_t k = 0; k < COUNT(counts); k++) {
            struct moments m = {0}, want = plain_moments(dtype, room + 1, counts[k]);
            moments_add(&m, dtype, room + 1, counts[k]);
            assert_moments(&m, &want);
        }
    }
}

static void what_is_not_finite_is_counted_and_left_out(void **state)
{
    const float x[] = {NAN, -3, INFINITY, 0, -INFINITY, -0.0f, 5, NAN};
    struct moments m = {0}, none = {0};
    (void)state;
    moments_add(&m, DT_F32, x, 8);
    assert_int_equal(m.nan, 2);
    assert_int_equal(m.infinite, 2);
    assert_int_equal(m.zeros, 2);
    assert_int_equal(m.finite, 4);
    assert_true(m.min <= -3 && m.min >= -3 && m.max <= 5 && m.max >= 5);
    assert_near(m.mean, 0.5, 0);
    assert_near(moments_std(&m), sqrt(8.25), 0);
    moments_add(&none, DT_F32, x, 1);
    assert_int_equal(none.finite, 0);
    assert_true(isnan(moments_std(&none)));
    moments_join(&none, &m);
    assert_int_equal(none.nan, 3);
    assert_true(none.min <= -3 && none.min >= -3);
}

/* A mean far from 0, where mean of squares minus square of mean loses all
 * digits; and sums beyond f32's precision. */
static void no_digits_are_lost(void **state)
{
    enum { N = 1 << 20 };
    double *x = malloc(N * sizeof *x);
    float *y = malloc(N * sizeof *y);
    struct moments of_x = {0}, of_y = {0};
    (void)state;
    for (size_t i = 0; i < N; i++) {
        x[i] = 1e9 + (i % 2 ? 1e-3 : -1e-3);
        y[i] = i % 2 ? 1.0f + 0x1p-23f : 1.0f;
    }
    moments_add(&of_x, DT_F64, x, N);
    moments_add(&of_y, DT_F32, y, N);
    assert_near(of_x.mean, 1e9, 0);
    if (fabs(moments_std(&of_x) / 1e-3 - 1) > 1e-4) fail_msg("std %.17g", moments_std(&of_x));
    assert_near(of_y.mean, 1 + 0x1p-24, 0);
    assert_near(moments_std(&of_y), 0x1p-24, 0);
    free(x);
    free(y);
}

static void parts_are_joined_in_any_cut(void **state)
{
    enum { N = 10000 };
    static float x[N];
    struct moments whole = {0}, parts = {0};
    (void)state;
    for (size_t i = 0; i < N; i++)
        x[i] = (float)(i % 977) - (i < 100 ? 1e4f : 0);
    moments_add(&whole, DT_F32, x, N);
    for (size_t low = 0, n = 1; low < N; low += n, n = 3 * n + 1) {
        struct moments part = {0};
        moments_add(&part, DT_F32, x + low, N - low < n ? N - low : n);
        moments_join(&parts, &part);
    }
    assert_moments(&parts, &whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_types_are_as_one_by_one),
        cmocka_unit_test(what_is_not_finite_is_counted_and_left_out),
        cmocka_unit_test(no_digits_are_lost),
        cmocka_unit_test(parts_are_joined_in_any_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
