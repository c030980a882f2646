#include "validate/hints/values.h"

#include <math.h>

#include "common/count.h"
#include "kernels/cpu/cast.h"
#include "tests/testing.h"

enum { N = 700 }; /* more than a block */

/* Elements of any dtype. */
struct buffer {
    enum dtype dtype;
    char bytes[N * 8];
};

static struct elements elements_of(const struct buffer *b)
{
    return (struct elements){b->dtype, b->bytes};
}

static void set(struct buffer *b, size_t i, double value)
{
    cast_elements(b->bytes + dtype_run_bytes(b->dtype, i), b->dtype, &value, DT_F64, 1);
}

static double get(const struct buffer *b, size_t i)
{
    return dtype_load(b->dtype, b->bytes, i);
}

static double random_number(uint64_t *seed)
{
    return ldexp((double)(int64_t)test_random(seed), -63 - (int)test_below(seed, 12));
}

static struct buffer random_buffer(enum dtype dtype, uint64_t *seed)
{
    struct buffer b = {.dtype = dtype};
    for (size_t i = 0; i < N; i++)
        set(&b, i, i % 50 == 7 ? 0 : random_number(seed));
    return b;
}

/* One element after each transform, as a Python program computes it. */
static float bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double plain(double x)
{
    return x;
}

static double through_bf16(double x)
{
    return (double)bf16((float)x);
}

static double through_f32(double x)
{
    return (double)(float)x;
}

static double cut(double x)
{
    float single = (float)x;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    bits &= 0xFFFF0000;
    memcpy(&single, &bits, sizeof single);
    return (double)single;
}

static double plus_one(double x)
{
    return (double)((float)x + 1);
}

static double minus_one(double x)
{
    return (double)((float)x - 1);
}

static double plus_one_exactly(double x)
{
    return x + 1;
}

static double scaled(double x)
{
    return (double)((float)x * 1.1F);
}

static void transforms_hold_for_all_elements_or_not_at_all(void **state)
{
    static const struct {
        enum transform transform;
        enum dtype from, to;
        double (*make)(double);
    } rows[] = {
        {CAST, DT_F32, DT_BF16, plain},
        {CAST, DT_BF16, DT_F32, plain},
        {CAST, DT_F32, DT_F32, plain},
        {CAST, DT_F64, DT_F16, plain},
        {VIA_BF16, DT_F32, DT_F32, through_bf16},
        {VIA_BF16, DT_F32, DT_F16, through_bf16},
        {VIA_F32, DT_F64, DT_F64, through_f32},
        {CUT_TO_BF16, DT_F32, DT_BF16, cut},
        {CUT_TO_BF16, DT_F32, DT_F32, cut},
        {ADD_ONE, DT_BF16, DT_BF16, plus_one},
        {ADD_ONE, DT_F32, DT_F32, plus_one},
        {ADD_ONE, DT_F64, DT_F64, plus_one_exactly},
        {SUBTRACT_ONE, DT_F32, DT_BF16, minus_one},
        {SCALE, DT_BF16, DT_BF16, scaled},
        {SCALE, DT_F32, DT_F32, scaled},
    };
    (void)state;
    uint64_t seed = test_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (size_t k = 0; k < COUNT(rows); k++) {
        struct buffer a = random_buffer(rows[k].from, &seed), b = {.dtype = rows[k].to};
        for (size_t i = 0; i < N; i++)
            set(&b, i, rows[k].make(get(&a, i)));
        assert_true(transform_exists(rows[k].transform, a.dtype, b.dtype));
        double factor = (double)1.1F;
        if (!transform_holds(rows[k].transform, factor, elements_of(&a), elements_of(&b), N))
            fail_msg("row %zu does not hold", k);
        size_t at = test_below(&seed, N);
        set(&b, at, get(&b, at) == 0.5 ? 0.25 : 0.5);
        if (transform_holds(rows[k].transform, factor, elements_of(&a), elements_of(&b), N))
            fail_msg("row %zu holds with element %zu wrong", k, at);
    }
}

static void f16_is_rounded_on_the_way(void **state)
{
    (void)state;
    const float a[] = {1.0001F, 70000, 1e-9F}, b[] = {1, INFINITY, 0};
    struct elements from = {DT_F32, a}, to = {DT_F32, b};
    assert_true(transform_holds(VIA_F16, 0, from, to, 3));
    assert_false(transform_holds(VIA_BF16, 0, from, to, 3));
}

static void bytes_are_swapped_within_elements(void **state)
{
    (void)state;
    const uint16_t a[] = {0x1234, 0x5678}, b[] = {0x3412, 0x7856}, c[] = {0x3412, 0x7857};
    struct elements from = {DT_BF16, a};
    assert_true(transform_holds(SWAP_BYTES, 0, from, (struct elements){DT_BF16, b}, 2));
    assert_false(transform_holds(SWAP_BYTES, 0, from, (struct elements){DT_BF16, c}, 2));
}

static void a_cast_of_one_dtype_wants_the_same_bits_of_a_nan(void **state)
{
    (void)state;
    const uint16_t a[] = {0x7FC1}, b[] = {0x7FC0};
    struct elements from = {DT_BF16, a}, to = {DT_BF16, b};
    assert_false(transform_holds(CAST, 0, from, to, 1));
    assert_true(transform_holds(ADD_ONE, 0, from, to, 1));
}

static void transforms_that_are_plain_casts_do_not_exist(void **state)
{
    (void)state;
    assert_false(transform_exists(VIA_BF16, DT_BF16, DT_BF16));
    assert_false(transform_exists(VIA_BF16, DT_F32, DT_BF16));
    assert_false(transform_exists(VIA_F32, DT_F32, DT_F32));
    assert_false(transform_exists(CUT_TO_BF16, DT_BF16, DT_BF16));
    assert_false(transform_exists(CAST, DT_F32, DT_I32));
    assert_false(transform_exists(SCALE, DT_I32, DT_I32));
    assert_true(transform_exists(CAST, DT_I32, DT_I32));
}

/* The first candidate that holds. */
static double find_factor(const struct buffer *a, const struct buffer *b, uint64_t n)
{
    struct factors f = factors_all();
    factors_narrow(&f, elements_of(a), elements_of(b), n);
    double factor;
    for (unsigned i = 0; (factor = factors_candidate(&f, i)) != 0; i++)
        if (transform_holds(SCALE, factor, elements_of(a), elements_of(b), n)) return factor;
    return 0;
}

static void one_factor_is_found_again(void **state)
{
    static const float factors[] = {0.5F,  2,     1.5F,       3,          0.1F,      -1,
                                    -0.7F, 1e-5F, 45.254834F, 0.0883883F, 1.3888888F};
    static const enum dtype dtypes[] = {DT_F16, DT_BF16, DT_F32, DT_F64};
    (void)state;
    uint64_t seed = test_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (size_t d = 0; d < 4; d++)
        for (size_t k = 0; k < COUNT(factors); k++) {
            struct buffer a = random_buffer(dtypes[d], &seed), b = {.dtype = dtypes[d]};
            for (size_t i = 0; i < N; i++)
                set(&b, i,
                    d < 3 ? (double)((float)get(&a, i) * factors[k])
                          : get(&a, i) * (double)factors[k]);
            double found = find_factor(&a, &b, N);
            /* F16 is so small there that its values tell little. */
            bool vague = dtypes[d] == DT_F16 && fabsf(factors[k]) < 1e-3F;
            if (!vague && fabs(found / (double)factors[k] - 1) > 1e-2)
                fail_msg("%s: %g was found in place of %g", dtype_infos[dtypes[d]].name, found,
                         (double)factors[k]);
            set(&b, 400, get(&b, 400) * 1.25 + 1);
            if (find_factor(&a, &b, N) != 0) fail_msg("a factor in spite of element 400");
        }
}

static void simple_factors_are_told_as_such(void **state)
{
    (void)state;
    struct buffer a = {.dtype = DT_BF16}, b = {.dtype = DT_BF16};
    uint64_t seed = test_seed();
    a = random_buffer(DT_BF16, &seed);
    for (size_t i = 0; i < N; i++)
        set(&b, i, get(&a, i) * 0.5);
    assert_true(find_factor(&a, &b, N) == 0.5);
    for (size_t i = 0; i < N; i++)
        set(&b, i, (double)((float)get(&a, i) * 0.1F));
    assert_true(find_factor(&a, &b, N) == 0.1);
}

static void zeros_say_nothing_of_a_factor_and_cannot_become_something(void **state)
{
    (void)state;
    const float a[] = {0, 0}, b[] = {0, 0}, c[] = {0, 1};
    struct elements zeros = {DT_F32, a};
    struct factors f = factors_all();
    factors_narrow(&f, zeros, (struct elements){DT_F32, b}, 2);
    assert_true(isinf(f.low) && isinf(f.high));
    assert_true(factors_candidate(&f, 0) == 0);
    factors_narrow(&f, zeros, (struct elements){DT_F32, c}, 2);
    assert_true(f.low > f.high);
}

static void each_row_may_have_its_factor(void **state)
{
    enum { ROWS = 10, ROW = 70 };
    (void)state;
    uint64_t seed = test_seed();
    struct buffer a = random_buffer(DT_BF16, &seed), b = {.dtype = DT_BF16};
    struct factors seen = {INFINITY, -INFINITY};
    for (size_t i = 0; i < N; i++)
        set(&b, i, (double)((float)get(&a, i) * (0.5F + (float)(i / ROW) / 4)));
    assert_true(rows_hold(elements_of(&a), elements_of(&b), 0, N, ROW, &seen));
    assert_true(fabs(seen.low - 0.5) < 0.01 && fabs(seen.high - 2.75) < 0.01);
    set(&b, 3 * ROW + 9, get(&b, 3 * ROW + 9) * 1.5 + 1);
    assert_false(rows_hold(elements_of(&a), elements_of(&b), 0, N, ROW, &seen));
    assert_true(rows_hold(elements_of(&a), elements_of(&b), 0, 3 * ROW, ROW, &seen));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transforms_hold_for_all_elements_or_not_at_all),
        cmocka_unit_test(f16_is_rounded_on_the_way),
        cmocka_unit_test(bytes_are_swapped_within_elements),
        cmocka_unit_test(a_cast_of_one_dtype_wants_the_same_bits_of_a_nan),
        cmocka_unit_test(transforms_that_are_plain_casts_do_not_exist),
        cmocka_unit_test(one_factor_is_found_again),
        cmocka_unit_test(simple_factors_are_told_as_such),
        cmocka_unit_test(zeros_say_nothing_of_a_factor_and_cannot_become_something),
        cmocka_unit_test(each_row_may_have_its_factor),
    };
    return cmocka_run_group_tests_name("values", tests, NULL, NULL);
}
