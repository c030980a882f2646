#include "validate/compare/statistics.h"

#include <math.h>

#include "common/count.h"
#include "kernels/cpu/cast.h"
#include "tests/testing.h"

/* The expected numbers, computed by their definitions, one element after the
 * other, in long double. */
struct expected {
    uint64_t equal, first, last, unpaired, max_ulp;
    double max_difference, relative_error, cosine;
};

/* Steps from x to y through all values of the dtype, counted one by one from
 * nearby values. */
static uint64_t steps_between(enum dtype dtype, double x, double y)
{
    uint64_t steps = 0;
    double low = fmin(x, y), high = fmax(x, y);
    while (low < high) {
        float single = (float)low;
        low = dtype == DT_F32 ? (double)nextafterf(single, INFINITY) : nextafter(low, INFINITY);
        steps++;
    }
    return steps;
}

static struct expected expect(const double *a, const double *b, uint64_t n, enum dtype dtype)
{
    struct expected e = {.first = UINT64_MAX};
    long double differences = 0, norm_a = 0, norm_b = 0, product = 0;
    for (uint64_t i = 0; i < n; i++) {
        bool same = memcmp(&a[i], &b[i], sizeof *a) == 0;
        e.equal += same;
        if (!same && e.first == UINT64_MAX) e.first = i;
        if (!same) e.last = i;
        if (!isfinite(a[i]) || !isfinite(b[i])) {
            e.unpaired += !same && !(isnan(a[i]) && isnan(b[i]));
            continue;
        }
        long double d = (long double)a[i] - (long double)b[i];
        differences += d * d;
        norm_a += (long double)a[i] * (long double)a[i];
        norm_b += (long double)b[i] * (long double)b[i];
        product += (long double)a[i] * (long double)b[i];
        if (fabsl(d) > (long double)e.max_difference) e.max_difference = (double)fabsl(d);
        if (dtype == DT_F32 || dtype == DT_F64) {
            uint64_t steps = steps_between(dtype, a[i], b[i]);
            if (steps > e.max_ulp) e.max_ulp = steps;
        }
    }
    e.relative_error = (double)sqrtl(differences / norm_b);
    e.cosine = (double)(product / sqrtl(norm_a * norm_b));
    return e;
}

static double random_value(uint64_t *seed)
{
    switch (test_below(seed, 40)) {
    case 0:
        return NAN;
    case 1:
        return INFINITY;
    case 2:
        return -INFINITY;
    case 3:
        return 0;
    default:
        return ldexp((double)(int64_t)test_random(seed), -64 - (int)test_below(seed, 8));
    }
}

/* A value that is the same, a few steps away, or another. */
static double random_partner(uint64_t *seed, double x, enum dtype dtype, bool near)
{
    uint64_t kind = test_below(seed, near ? 7 : 8);
    if (kind < 4 || !isfinite(x)) return kind == 7 ? random_value(seed) : x;
    for (uint64_t steps = test_below(seed, 50); kind < 7 && steps > 0; steps--)
        x = dtype == DT_F64 ? nextafter(x, INFINITY) : (double)nextafterf((float)x, INFINITY);
    return x;
}

static void check_close(double x, double y)
{
    if (fabs(x - y) > 1e-12 * fabs(y)) fail_msg("%.17g is not %.17g", x, y);
}

static void check_random(uint64_t *seed, enum dtype dtype)
{
    enum { MOST = 3000 };
    double a[MOST], b[MOST];
    char stored[2][MOST * 8];
    uint64_t n = 1 + test_below(seed, MOST);
    bool near = test_below(seed, 2);
    struct statistics s;
    for (uint64_t i = 0; i < n; i++) {
        cast_elements(stored[0] + dtype_run_bytes(dtype, i), dtype, &(double){random_value(seed)},
                      DT_F64, 1);
        cast_elements(&a[i], DT_F64, stored[0] + dtype_run_bytes(dtype, i), dtype, 1);
        b[i] = random_partner(seed, a[i], dtype, near);
        if (i == 5) b[i] = a[i] = 0.5; /* norms are not 0 */
        cast_elements(stored[0] + dtype_run_bytes(dtype, i), dtype, &a[i], DT_F64, 1);
        cast_elements(stored[1] + dtype_run_bytes(dtype, i), dtype, &b[i], DT_F64, 1);
        cast_elements(&a[i], DT_F64, stored[0] + dtype_run_bytes(dtype, i), dtype, 1);
        cast_elements(&b[i], DT_F64, stored[1] + dtype_run_bytes(dtype, i), dtype, 1);
    }
    statistics_init(&s);
    statistics_add(&s, (struct elements){dtype, stored[0]}, (struct elements){dtype, stored[1]}, 0,
                   n, NULL);
    struct expected e = expect(a, b, n, near ? dtype : DT_BF16); /* few steps are counted */
    assert_int_equal(s.elements, n);
    assert_int_equal(s.equal, e.equal);
    assert_int_equal(s.unpaired, e.unpaired);
    if (e.equal < n) {
        assert_int_equal(s.first, e.first);
        assert_int_equal(s.last, e.last);
    }
    assert_true(s.max_difference == e.max_difference);
    if (n > 5) {
        check_close(statistics_relative_error(&s), e.relative_error);
        check_close(statistics_cosine(&s), e.cosine);
    }
    if (near && (dtype == DT_F32 || dtype == DT_F64)) assert_int_equal(s.max_ulp, e.max_ulp);
}

static void numbers_are_those_of_their_definitions(void **state)
{
    static const enum dtype dtypes[] = {DT_F16, DT_BF16, DT_F32, DT_F64};
    (void)state;
    uint64_t seed = test_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 400; i++)
        check_random(&seed, dtypes[i % 4]);
}

static struct statistics of_f32(const float *a, const float *b, uint64_t n,
                                const struct tolerance *t)
{
    struct statistics s;
    statistics_init(&s);
    statistics_add(&s, (struct elements){DT_F32, a}, (struct elements){DT_F32, b}, 0, n, t);
    return s;
}

static void sums_do_not_depend_on_how_a_tensor_is_cut(void **state)
{
    (void)state;
    enum { N = 5000 };
    float a[N], b[N];
    uint64_t seed = test_seed();
    for (int i = 0; i < N; i++) {
        a[i] = (float)random_value(&seed);
        b[i] = (float)random_value(&seed);
    }
    struct statistics whole = of_f32(a, b, N, NULL), cut;
    statistics_init(&cut);
    for (uint64_t low = 0, n; low < N; low += n) {
        n = 1 + test_below(&seed, 700);
        if (n > N - low) n = N - low;
        statistics_add(&cut, (struct elements){DT_F32, a + low}, (struct elements){DT_F32, b + low},
                       low, n, NULL);
    }
    assert_memory_equal(&whole, &cut, sizeof whole);
}

static void parts_are_joined_as_if_they_were_one(void **state)
{
    (void)state;
    const float a[] = {1, 2, 3, 4, NAN, 6, 7, 8}, b[] = {1, 2, 3.5F, 4, 5, 6, 7, 9};
    struct statistics whole = of_f32(a, b, 8, NULL), later;
    struct statistics joined = of_f32(a, b, 4, NULL);
    statistics_init(&later);
    statistics_add(&later, (struct elements){DT_F32, a + 4}, (struct elements){DT_F32, b + 4}, 4, 4,
                   NULL);
    statistics_join(&joined, &later);
    assert_int_equal(joined.first, 2);
    assert_int_equal(joined.last, 7);
    assert_int_equal(joined.max_at, whole.max_at);
    assert_memory_equal(&whole, &joined, sizeof whole);
}

static void zeros_of_two_signs_differ_in_bits_and_are_0_apart(void **state)
{
    (void)state;
    const float a[] = {0.0F, 1}, b[] = {-0.0F, 1};
    const struct tolerance none = {.by_ulps = true};
    struct statistics s = of_f32(a, b, 2, &none);
    assert_int_equal(s.equal, 1);
    assert_int_equal(s.max_ulp, 0);
    assert_int_equal(s.outside, 0);
    assert_true(statistics_relative_error(&s) == 0);
    assert_int_equal(s.zero_signs, 1);
    assert_int_equal(s.zeros[0], 0);
}

static void ulps_are_counted_across_zero_and_binades(void **state)
{
    (void)state;
    const float tiny = 0x1p-149F, one = 1;
    const float a[] = {tiny, one, 2}, b[] = {-tiny, nextafterf(one, 2), nextafterf(2, 0)};
    assert_int_equal(of_f32(a, b, 1, NULL).max_ulp, 2);
    assert_int_equal(of_f32(a + 1, b + 1, 1, NULL).max_ulp, 1);
    assert_int_equal(of_f32(a + 2, b + 2, 1, NULL).max_ulp, 1);
    const double x = -1.7976931348623157e308, y = 1.7976931348623157e308;
    struct statistics s;
    statistics_init(&s);
    statistics_add(&s, (struct elements){DT_F64, &x}, (struct elements){DT_F64, &y}, 0, 1, NULL);
    assert_true(s.max_ulp == 2 * (UINT64_C(0x7FEFFFFFFFFFFFFF)));
    assert_true(isinf(s.max_difference));
    assert_true(isnan(statistics_relative_error(&s)));
}

static void a_nan_passes_against_a_nan_and_an_infinity_against_itself(void **state)
{
    (void)state;
    const struct tolerance all = {true, true, UINT64_MAX, 1e300, 1e300};
    float a[] = {NAN, NAN, INFINITY, INFINITY, INFINITY, -INFINITY, 1};
    float b[] = {NAN, 1, INFINITY, -INFINITY, 1, -INFINITY, 1};
    uint32_t payload = 0x7FC12345;
    memcpy(&b[0], &payload, sizeof payload);
    struct statistics s = of_f32(a, b, 7, &all);
    assert_int_equal(s.equal, 3);
    assert_int_equal(s.unpaired, 3);
    assert_int_equal(s.outside, 3);
    assert_int_equal(s.nan[0], 2);
    assert_int_equal(s.nan[1], 1);
    assert_int_equal(s.infinite[0], 4);
    assert_int_equal(s.infinite[1], 3);
    assert_int_equal(s.nan_bits, 1);
    assert_false(statistics_cover_all(&s));
}

static void nothing_but_nan_has_no_distances(void **state)
{
    (void)state;
    const float a[] = {NAN, NAN}, b[] = {1, NAN};
    struct statistics s = of_f32(a, b, 2, NULL);
    assert_true(isnan(statistics_relative_error(&s)));
    assert_true(isnan(statistics_cosine(&s)));
    assert_true(s.max_difference == 0);
    assert_false(statistics_constant(&s, 0));
}

static void an_error_of_zeros_is_infinite(void **state)
{
    (void)state;
    const float a[] = {1, 2}, b[] = {0, 0};
    struct statistics s = of_f32(a, b, 2, NULL);
    assert_true(isinf(statistics_relative_error(&s)));
    assert_true(isnan(statistics_cosine(&s)));
    assert_true(statistics_constant(&s, 1));
    assert_false(statistics_constant(&s, 0));
    assert_int_equal(s.zeros[1], 2);
}

static void either_tolerance_is_enough_and_b_is_what_rtol_is_of(void **state)
{
    (void)state;
    const float a[] = {110, 100, 0.001F}, b[] = {100, 110, 0.0011F};
    const struct tolerance tenth = {.by_bounds = true, .rtol = 0.0999};
    assert_int_equal(of_f32(a, b, 1, &tenth).outside, 1);
    assert_int_equal(of_f32(a + 1, b + 1, 1, &tenth).outside, 0);
    const struct tolerance near = {.by_bounds = true, .atol = 0.0002};
    assert_int_equal(of_f32(a + 2, b + 2, 1, &near).outside, 0);
    const struct tolerance ulps = {.by_ulps = true, .max_ulp = UINT64_C(1) << 20};
    assert_int_equal(of_f32(a, b, 3, &ulps).outside, 2);
    const struct tolerance either = {true, true, UINT64_C(1) << 20, 11, 0};
    assert_int_equal(of_f32(a, b, 3, &either).outside, 0);
    assert_int_equal(of_f32(a, b, 3, NULL).outside, 3);
}

static void two_floating_point_dtypes_are_compared_by_value(void **state)
{
    (void)state;
    const float a[] = {1, 2, 3.0009765625F, NAN};
    const uint16_t b[] = {0x3F80, 0x4000, 0x4040, 0x7FC0}; /* 1, 2, 3, NaN in BF16 */
    struct statistics s;
    statistics_init(&s);
    assert_true(statistics_exist(DT_F32, DT_BF16));
    assert_false(statistics_exist(DT_F32, DT_I32));
    const struct tolerance near = {.by_ulps = true, .max_ulp = 1000};
    statistics_add(&s, (struct elements){DT_F32, a}, (struct elements){DT_BF16, b}, 0, 4, &near);
    assert_int_equal(s.equal, 3);
    assert_int_equal(s.first, 2);
    assert_int_equal(s.outside, 1); /* ulps of two dtypes mean nothing */
    assert_true(s.max_difference == 0.0009765625);
}

static void of_other_dtypes_only_equality_is_counted(void **state)
{
    static const struct {
        enum dtype dtype;
        uint64_t elements;
    } rows[] = {{DT_BOOL, 16}, {DT_U8, 16}, {DT_F8_E4M3, 16}, {DT_I16, 8},
                {DT_I32, 4},   {DT_I64, 2}, {DT_C64, 2},      {DT_C128, 1}};
    (void)state;
    const struct tolerance all = {true, true, UINT64_MAX, 1e300, 1e300};
    for (size_t i = 0; i < COUNT(rows); i++) {
        unsigned char a[16] = {1, 2, 3}, b[16] = {1, 2, 3};
        struct statistics s;
        b[15] = 1;
        statistics_init(&s);
        statistics_add(&s, (struct elements){rows[i].dtype, a}, (struct elements){rows[i].dtype, b},
                       0, rows[i].elements, &all);
        assert_int_equal(statistics_different(&s), 1);
        assert_int_equal(s.first, rows[i].elements - 1);
        assert_int_equal(s.outside, 1);
        assert_true(isnan(statistics_relative_error(&s)));
    }
}

/* Elements of 1 to 16 bytes, few of them other than zero, against a plain
 * count. */
static void bits_are_counted_for_elements_of_all_sizes(void **state)
{
    static const enum dtype dtypes[] = {DT_U8, DT_I16, DT_BF16, DT_F32, DT_I32, DT_I64, DT_C128};
    enum { BYTES = 24000 };
    (void)state;
    uint64_t seed = test_seed();
    char *a = malloc(BYTES), *b = malloc(BYTES);
    for (int round = 0; round < 100; round++) {
        enum dtype dtype = dtypes[round % 7];
        uint64_t bytes = dtype_bytes(dtype), n = 1 + test_below(&seed, BYTES / bytes);
        for (size_t i = 0; i < BYTES; i++) {
            a[i] = test_below(&seed, 4) ? 0 : 1;
            b[i] = test_below(&seed, 4) ? a[i] : (char)test_below(&seed, 2);
        }
        uint64_t equal = 0, both_zero = 0, zeros[2] = {0}, first = UINT64_MAX, last = 0;
        for (uint64_t i = 0; i < n; i++) {
            static const char zero[16];
            bool same = memcmp(a + i * bytes, b + i * bytes, bytes) == 0;
            bool zero_a = memcmp(a + i * bytes, zero, bytes) == 0,
                 zero_b = memcmp(b + i * bytes, zero, bytes) == 0;
            equal += same;
            both_zero += zero_a && zero_b;
            zeros[0] += zero_a && !zero_b;
            zeros[1] += zero_b && !zero_a;
            if (!same && first == UINT64_MAX) first = i;
            if (!same) last = i;
        }
        struct statistics s;
        statistics_init(&s);
        statistics_add(&s, (struct elements){dtype, a}, (struct elements){dtype, b}, 0, n, NULL);
        assert_int_equal(s.equal, equal);
        assert_int_equal(s.outside, n - equal);
        assert_true(s.first == first && (first == UINT64_MAX || s.last == last));
        if (bytes == 16) continue; /* of these no zeros are counted */
        assert_int_equal(s.both_zero, both_zero);
        assert_int_equal(s.zeros[0], zeros[0]);
        assert_int_equal(s.zeros[1], zeros[1]);
    }
    free(a);
    free(b);
}

static void the_same_elements_in_another_order_have_the_same_sums_of_bits(void **state)
{
    (void)state;
    const float a[] = {1, 2, 3, 4}, b[] = {4, 3, 1, 2}, c[] = {4, 3, 1, 1};
    struct statistics same = of_f32(a, b, 4, NULL), other = of_f32(a, c, 4, NULL);
    assert_true(statistics_same_elements(&same));
    assert_false(statistics_same_elements(&other));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_their_definitions),
        cmocka_unit_test(sums_do_not_depend_on_how_a_tensor_is_cut),
        cmocka_unit_test(parts_are_joined_as_if_they_were_one),
        cmocka_unit_test(zeros_of_two_signs_differ_in_bits_and_are_0_apart),
        cmocka_unit_test(ulps_are_counted_across_zero_and_binades),
        cmocka_unit_test(a_nan_passes_against_a_nan_and_an_infinity_against_itself),
        cmocka_unit_test(nothing_but_nan_has_no_distances),
        cmocka_unit_test(an_error_of_zeros_is_infinite),
        cmocka_unit_test(either_tolerance_is_enough_and_b_is_what_rtol_is_of),
        cmocka_unit_test(two_floating_point_dtypes_are_compared_by_value),
        cmocka_unit_test(of_other_dtypes_only_equality_is_counted),
        cmocka_unit_test(bits_are_counted_for_elements_of_all_sizes),
        cmocka_unit_test(the_same_elements_in_another_order_have_the_same_sums_of_bits),
    };
    return cmocka_run_group_tests_name("statistics", tests, NULL, NULL);
}
