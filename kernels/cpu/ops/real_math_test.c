#define ELEM_f32
#define VARIANT test
#include "kernels/cpu/ops/real_math.h"

#include "tests/testing.h"

/* Calls check() with every 1009th float of both signs. */
static void sweep(void (*check)(float x))
{
    for (uint32_t bits = 0; bits < 0x7F800000; bits += 1009) {
        check(bits_float(bits));
        check(bits_float(bits | 0x80000000));
    }
}

static void check_near(const char *what, float x, float got, double want, double bound)
{
    const double floor = 0x1p-149; /* the smallest float */
    if (fabs((double)got - want) > fabs(want) * bound + floor)
        fail_msg("%s of %.9g is %.9g, not %.9g", what, (double)x, (double)got, want);
}

static void check_exp(float x)
{
    const double want = exp((double)x);
    if (want > 0x1.fffffep127)
        assert_true(real_exp(x) > 3e38f);
    else
        check_near("exp", x, real_exp(x), want, 2e-7);
}

static void exp_is_right_over_the_whole_range(void **state)
{
    (void)state;
    sweep(check_exp);
    assert_true(real_exp(0) == 1 && real_exp(-INFINITY) == 0 && real_exp(-1e30f) == 0);
    assert_true(isinf(real_exp(INFINITY)) && isinf(real_exp(1e30f)));
    assert_true(isnan(real_exp(NAN)) && isnan(real_exp(-NAN)));
}

static void check_tanh(float x)
{
    check_near("tanh", x, real_tanh(x), tanh((double)x), 2.5e-7);
}

static void tanh_is_right_over_the_whole_range(void **state)
{
    (void)state;
    sweep(check_tanh);
    assert_true(real_tanh(INFINITY) == 1 && real_tanh(-INFINITY) == -1 && isnan(real_tanh(NAN)));
}

static void check_erf(float x)
{
    check_near("erf", x, real_erf(x), erf((double)x), 2.5e-7);
}

static void erf_is_right_over_the_whole_range(void **state)
{
    (void)state;
    sweep(check_erf);
    assert_true(real_erf(INFINITY) == 1 && real_erf(-INFINITY) == -1 && isnan(real_erf(NAN)));
}

static void sigmoid_ends_at_0_and_1(void **state)
{
    (void)state;
    assert_true(real_sigmoid(0) == 0.5f);
    assert_true(real_sigmoid(INFINITY) == 1 && real_sigmoid(-INFINITY) == 0);
    assert_true(isnan(real_sigmoid(NAN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_right_over_the_whole_range),
        cmocka_unit_test(tanh_is_right_over_the_whole_range),
        cmocka_unit_test(erf_is_right_over_the_whole_range),
        cmocka_unit_test(sigmoid_ends_at_0_and_1),
    };
    return cmocka_run_group_tests_name("real_math", tests, NULL, NULL);
}
