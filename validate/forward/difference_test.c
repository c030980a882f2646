#include "validate/forward/difference.h"

#include <math.h>
#include <string.h>

#include "common/count.h"
#include "tests/testing.h"

static struct array floats(const float *data, uint64_t rows, uint64_t columns)
{
    return (struct array){data, false, rows, columns};
}

static const struct rounding none = {0};

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fmax(fabs(a), fabs(b));
}

/* ---- two arrays ---- */

static void distances_are_counted(void **state)
{
    (void)state;
    const float x[] = {1, -4, 0, 2, 2, 2}, y[] = {1, -4, 3, 2, 2, 2.5F};
    struct array a = floats(x, 3, 2), b = floats(y, 3, 2);
    struct difference d = difference_of(&a, &b, &(struct rounding){.max = 1});
    assert_int_equal(d.different, 2);
    assert_true(d.max == 3 && d.largest == 4 && d.at == 2);
    assert_true(near(d.rms, sqrt((9 + 0.25) / 6)));
    assert_true(near(d.rms_a, sqrt((1 + 16 + 4 + 4 + 4) / 6.0)));
    assert_int_equal(d.rows_beyond, 1);
    assert_int_equal(d.first_row, 1);
    assert_true(difference_relative(&d) == 0.75);
}

static void floats_and_doubles_are_compared_by_value(void **state)
{
    (void)state;
    const float x[] = {0.1F, 2};
    const double y[] = {0.1F, 2}, z[] = {0.1, 2};
    struct array a = floats(x, 1, 2), b = {y, true, 1, 2}, c = {z, true, 1, 2};
    assert_int_equal(difference_of(&a, &b, &none).different, 0);
    assert_int_equal(difference_of(&a, &c, &none).different, 1);
}

static void zeros_of_two_signs_are_not_identical(void **state)
{
    (void)state;
    const float x[] = {0}, y[] = {-0.0F};
    struct array a = floats(x, 1, 1), b = floats(y, 1, 1);
    struct difference d = difference_of(&a, &b, &none);
    assert_int_equal(agreement_of(&d, &none), AGREE_BUT_FOR_ROUNDING);
    assert_true(difference_relative(&d) == 0);
}

static void nan_and_infinities_of_b_disagree_whatever_rounding_explains(void **state)
{
    (void)state;
    const float x[] = {1, 1};
    const float bad[] = {NAN, INFINITY, -INFINITY};
    const struct rounding all = {.max = INFINITY, .rms = INFINITY};
    for (size_t i = 0; i < COUNT(bad); i++) {
        const float y[] = {1, bad[i]};
        struct array a = floats(x, 1, 2), b = floats(y, 1, 2);
        struct difference d = difference_of(&a, &b, &all);
        assert_int_equal(d.not_finite, 1);
        assert_true(isinf(d.max));
        assert_int_equal(agreement_of(&d, &all), DISAGREE);
    }
}

static void one_element_and_the_mean_both_must_be_within(void **state)
{
    (void)state;
    const float x[] = {1, 1, 1, 1}, y[] = {1, 1, 1, 1.5F};
    struct array a = floats(x, 2, 2), b = floats(y, 2, 2);
    static const struct {
        struct rounding rounding;
        enum agreement agreement;
    } cases[] = {{{.max = 0.5, .rms = 0.25}, AGREE_BUT_FOR_ROUNDING},
                 {{.max = 0.4, .rms = 1}, DISAGREE},
                 {{.max = 1, .rms = 0.2}, DISAGREE}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct difference d = difference_of(&a, &b, &cases[i].rounding);
        assert_int_equal(agreement_of(&d, &cases[i].rounding), cases[i].agreement);
    }
    struct difference same = difference_of(&a, &a, &none);
    assert_int_equal(agreement_of(&same, &none), AGREE_BIT_FOR_BIT);
}

/* ---- rounding ---- */

static struct yardstick choose(enum elem_type computed, enum dtype stored, bool experts)
{
    return yardstick_choose(
        &(struct sides_rounding){.computed = computed, .stored = stored, .experts = experts});
}

static void arithmetic_is_measured_by_a_finer_type(void **state)
{
    (void)state;
    struct difference d = {.max_within = 1e-3, .rms_within = 1e-4, .largest = 1, .rms_a = 0.5};
    struct yardstick y = choose(ELEM_F32, DT_F64, false);
    struct rounding r = rounding_of(&y, &d);
    assert_int_equal(y.elem, ELEM_F64);
    assert_true(near(r.max, 8e-3) && near(r.rms, 8e-4));
    assert_string_equal(y.text, "8 times the difference between A in f32 and A in f64");
    y = choose(ELEM_F64, DT_F64, true);
    assert_int_equal(y.elem, ELEM_F32);
    assert_true(near(rounding_of(&y, &d).max, 8e-3 * 0x1p-29));
    y = choose(ELEM_BF16, DT_BF16, false);
    assert_int_equal(y.elem, ELEM_F32);
    assert_true(near(y.max, 2));
    y = choose(ELEM_F16, DT_F16, false);
    assert_int_equal(y.elem, ELEM_F32);
    assert_true(near(y.max, 2) && y.least == 0x1p-10 && !y.experts);
    assert_string_equal(y.text, "2 times the difference between A in fp16 and A in f32");
    y = choose(ELEM_F16, DT_BF16, true);
    assert_true(y.elem == ELEM_BF16 && y.least == 0x1p-7 && y.experts);
    assert_true(choose(ELEM_F16, DT_F32, true).experts);
}

static void a_coarser_dtype_is_measured_by_bf16(void **state)
{
    (void)state;
    struct yardstick y = choose(ELEM_F32, DT_BF16, false);
    assert_int_equal(y.elem, ELEM_BF16);
    assert_true(y.max == 2 && y.rms == 2 && y.least == 0x1p-7);
    y = choose(ELEM_F32, DT_F16, false);
    assert_int_equal(y.elem, ELEM_BF16);
    assert_true(y.max == 0.25 && y.least == 0x1p-10);
    assert_non_null(strstr(y.text, "one side is stored in F16"));
    y = choose(ELEM_F32, DT_F32, false);
    assert_int_equal(y.elem, ELEM_F64);
    y = choose(ELEM_F64, DT_F32, true);
    assert_true(y.elem == ELEM_F32 && y.max == 8 && y.rms == 8 && !y.experts);
}

/* A is once its own rounding away from what is true, the other one twice that. */
static void another_program_rounds_for_itself(void **state)
{
    (void)state;
    struct sides_rounding s = {.computed = ELEM_BF16, .stored = DT_F32, .by_another = true};
    assert_true(near(yardstick_choose(&s).max, 3));
    s.computed = ELEM_F32;
    assert_true(near(yardstick_choose(&s).max, 8));
}

/* The mean is taken over rows that are not outliers. */
static void a_token_may_be_routed_to_another_expert(void **state)
{
    (void)state;
    enum { ROWS = 20 };
    float a[ROWS] = {0}, b[ROWS] = {0.0625f};
    const struct array x = floats(a, ROWS, 1), y = floats(b, ROWS, 1);
    const struct rounding strict = {.max = 0.1, .rms = 0.05},
                          loose = {.max = 0.1, .rms = 0.05, .outliers = 2};
    b[3] = b[7] = 100;
    struct difference d = difference_of(&x, &y, &loose);
    assert_int_equal(d.rows_beyond, 2);
    assert_int_equal(d.first_row, 3);
    assert_true(d.max_within == 0.0625 && near(d.rms_within, sqrt(0.00390625 / 18)));
    assert_int_equal(agreement_of(&d, &loose), AGREE_BUT_FOR_ROUNDING);
    assert_int_equal(agreement_of(&d, &strict), DISAGREE);

    b[10] = 100;
    d = difference_of(&x, &y, &loose);
    assert_int_equal(agreement_of(&d, &loose), DISAGREE);

    for (size_t i = 4; i < ROWS; i++) /* many that are a little away, beside one outlier */
        b[i] = 0.0625f;
    d = difference_of(&x, &y, &loose);
    assert_int_equal(d.rows_beyond, 1);
    assert_int_equal(agreement_of(&d, &loose), DISAGREE);
}

/* Outliers do not raise the limit of the rounding, only the allowed number of
 * outliers. */
static void outliers_of_the_second_run_do_not_raise_the_rounding(void **state)
{
    (void)state;
    enum { ROWS = 40 };
    float a[ROWS] = {8}, second[ROWS];
    const struct array x = floats(a, ROWS, 1), y = floats(second, ROWS, 1);
    const struct yardstick dense = choose(ELEM_F32, DT_BF16, false),
                           experts = choose(ELEM_F32, DT_BF16, true);
    for (size_t i = 0; i < ROWS; i++)
        second[i] = a[i] + (i % 2 ? 0.5f : 0.25f);
    struct difference d = difference_of_second_run(&experts, &x, &y);
    struct rounding r = rounding_of(&experts, &d);
    assert_true(r.max == 1 && r.rms == 2 * d.rms);
    assert_int_equal(r.outliers, 2); /* chance */
    second[5] = 20;
    d = difference_of_second_run(&experts, &x, &y);
    r = rounding_of(&experts, &d);
    assert_true(d.max == 20 && r.max == 1 && r.rms < 1);
    assert_int_equal(r.outliers, 5);
    second[6] = second[7] = second[8] = second[9] = 20;
    d = difference_of_second_run(&experts, &x, &y);
    assert_int_equal(rounding_of(&experts, &d).outliers, ROWS / 4); /* never more */
    d = difference_of_second_run(&dense, &x, &y);
    r = rounding_of(&dense, &d);
    assert_true(r.max == 40 && r.outliers == 0);
}

/* A flip is as large in f16 as in bf16; there are fewer. */
static void experts_may_be_chosen_otherwise(void **state)
{
    (void)state;
    struct yardstick y = choose(ELEM_F32, DT_F16, true);
    assert_true(y.experts && y.max == 2 && near(y.rms, 2 * sqrt(0.125)));
    assert_non_null(strstr(y.text, "experts"));
    y = choose(ELEM_F32, DT_F64, true);
    assert_true(!y.experts && y.max == 8 && y.rms == 8);
}

static void what_happens_to_be_exact_may_be_rounded_still(void **state)
{
    (void)state;
    struct yardstick y = choose(ELEM_F32, DT_F64, false);
    struct rounding r = rounding_of(&y, &(struct difference){.largest = 3, .rms_a = 2});
    assert_true(r.max == 3 * 0x1p-21 && r.rms == 2 * 0x1p-21);
}

/* ---- logits ---- */

static void divergence_and_top_1_are_those_of_the_formula(void **state)
{
    (void)state;
    const float x[] = {1, 2, 3, 0, 0, 0}, y[] = {1, 2, 2.5F, 0, 1, 0};
    struct array a = floats(x, 2, 3), b = floats(y, 2, 3);
    struct logits_statistics s = logits_compare(&a, &b);
    double za = exp(1) + exp(2) + exp(3), zb = exp(1) + exp(2) + exp(2.5), first = log(zb / za);
    first += exp(3) / za * 0.5;
    double second = log((2 + exp(1)) / 3) - 1 / 3.0;
    assert_int_equal(s.rows, 2);
    assert_int_equal(s.same_top, 1);
    assert_true(fabs(s.kl_mean - (first + second) / 2) < 1e-15);
    assert_true(fabs(s.kl_max - fmax(first, second)) < 1e-15);
    s = logits_compare(&a, &a);
    assert_true(s.kl_mean == 0 && s.kl_max == 0 && s.same_top == 2);
}

static void logits_may_be_large_or_broken(void **state)
{
    (void)state;
    const float x[] = {1e30F, -1e30F, 0}, y[] = {NAN, 0, 0};
    struct array a = floats(x, 1, 3), b = floats(y, 1, 3);
    struct logits_statistics s = logits_compare(&a, &a);
    assert_true(s.kl_max == 0 && s.same_top == 1);
    s = logits_compare(&a, &b);
    assert_true(isinf(s.kl_max) && s.same_top == 0);
}

static void the_loss_is_of_tokens_that_follow_in_the_same_sequence(void **state)
{
    (void)state;
    const float x[] = {0, 1, 5, 5, 2, 0, 5, 5};
    const int32_t ids[] = {0, 1, 1, 0};
    struct array a = floats(x, 4, 2);
    double expected = (log(1 + exp(1)) - 1 + log(1 + exp(2)) - 2) / 2;
    assert_true(near(logits_loss(&a, ids, 2, 2), expected));
    assert_true(isnan(logits_loss(&a, ids, 4, 1)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distances_are_counted),
        cmocka_unit_test(floats_and_doubles_are_compared_by_value),
        cmocka_unit_test(zeros_of_two_signs_are_not_identical),
        cmocka_unit_test(nan_and_infinities_of_b_disagree_whatever_rounding_explains),
        cmocka_unit_test(one_element_and_the_mean_both_must_be_within),
        cmocka_unit_test(arithmetic_is_measured_by_a_finer_type),
        cmocka_unit_test(a_coarser_dtype_is_measured_by_bf16),
        cmocka_unit_test(another_program_rounds_for_itself),
        cmocka_unit_test(a_token_may_be_routed_to_another_expert),
        cmocka_unit_test(outliers_of_the_second_run_do_not_raise_the_rounding),
        cmocka_unit_test(experts_may_be_chosen_otherwise),
        cmocka_unit_test(what_happens_to_be_exact_may_be_rounded_still),
        cmocka_unit_test(divergence_and_top_1_are_those_of_the_formula),
        cmocka_unit_test(logits_may_be_large_or_broken),
        cmocka_unit_test(the_loss_is_of_tokens_that_follow_in_the_same_sequence),
    };
    return cmocka_run_group_tests_name("difference", tests, NULL, NULL);
}
