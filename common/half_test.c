#include "common/half.h"

#include <math.h>

#include "common/dtype.h"
#include "tests/testing.h"

enum { INFINITE = 0x7c00, SIGN = 0x8000 };

/* As the table of dtypes reads it. */
static double value_of(uint16_t half)
{
    return dtype_load(DT_F16, &half, 0);
}

static void every_half_round_trips(void **state)
{
    (void)state;
    for (uint32_t i = 0; i <= UINT16_MAX; i++) {
        const uint16_t half = (uint16_t)i;
        const float f = half_load(half);
        const double want = value_of(half);
        if (isnan(want)) {
            assert_true(isnan(f) && isnan(value_of(half_store(f))));
            assert_int_equal(half_store(f), half | 0x200); /* quiet, and otherwise the same */
        } else {
            assert_true((double)f == want);
            assert_int_equal(half_store(f), half);
        }
    }
}

static void assert_rounds(double value, uint16_t want)
{
    assert_int_equal(half_store((float)value), want);
    assert_int_equal(half_store((float)-value), want | SIGN);
}

/* Between all neighbours; behind the largest of them lies 65536, which is
 * infinite. */
static void floats_become_the_nearest_half(void **state)
{
    (void)state;
    for (uint16_t half = 0; half < INFINITE; half++) {
        const uint16_t next = (uint16_t)(half + 1);
        const double low = value_of(half), high = next == INFINITE ? 0x1p16 : value_of(next);
        const double middle = (low + high) / 2; /* a float, as all halves are */
        assert_rounds(middle, half & 1 ? next : half);
        assert_rounds((double)nextafterf((float)middle, 0), half);
        assert_rounds((double)nextafterf((float)middle, INFINITY), next);
    }
}

static void what_no_half_is_near_to(void **state)
{
    (void)state;
    assert_rounds(0x1p-149, 0); /* the smallest float */
    assert_rounds(0x1p-126, 0);
    assert_rounds(0x1.fffffep127, INFINITE);
    assert_rounds((double)INFINITY, INFINITE);
    assert_int_equal(half_store(half_float_of(0xff800001)), 0xfe00); /* NaN is no infinity */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_round_trips),
        cmocka_unit_test(floats_become_the_nearest_half),
        cmocka_unit_test(what_no_half_is_near_to),
    };
    return cmocka_run_group_tests_name("half", tests, NULL, NULL);
}
