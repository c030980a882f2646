#include "kernels/cpu/remainders.h"

#include <math.h>

#include "tests/testing.h"

/* As Transformer Engine does: the master's upper half, plus one if the lower
 * half, as a signed number, is negative. */
static void split(uint32_t master, uint16_t *weight, int16_t *remainder)
{
    const uint16_t lower = (uint16_t)master;
    memcpy(remainder, &lower, sizeof lower);
    *weight = (uint16_t)((master >> 16) + (*remainder < 0));
}

static uint32_t joined(uint16_t weight, int16_t remainder)
{
    uint32_t master;
    const float number = remainder;
    uint32_t of_number;
    assert_int_equal(join_remainders(&master, &weight, &remainder, DT_I16, 1), 1);
    assert_int_equal(join_remainders(&of_number, &weight, &number, DT_F32, 1), 1);
    assert_int_equal(master, of_number);
    return master;
}

static void each_master_comes_back(void **state)
{
    static const uint32_t edges[] = {0,          1,          0x7fff,     0x8000,     0x8001,
                                     0xffff,     0x10000,    0x3f800000, 0x3f808000, 0x3f818000,
                                     0x3f7fffff, 0x80000000, 0x80008000, 0xbf808000, 0xbf818000,
                                     0xbf7fffff, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000,
                                     0x00008000, 0x007fffff};
    (void)state;
    for (uint64_t i = 0, random = test_seed(); i < 100000; i++) {
        uint16_t weight;
        int16_t remainder;
        const size_t count = sizeof edges / sizeof *edges;
        const uint32_t master = i < count ? edges[i] : (uint32_t)test_random(&random);
        split(master, &weight, &remainder);
        assert_int_equal(joined(weight, remainder), master);
    }
}

/* weight 1.0: 0x3f80; ties are rounded up. */
static void halves_of_one_have_these_bits(void **state)
{
    (void)state;
    assert_int_equal(joined(0x3f80, 0), 0x3f800000);
    assert_int_equal(joined(0x3f80, 32767), 0x3f807fff);
    assert_int_equal(joined(0x3f80, -32768), 0x3f7f8000);
    assert_int_equal(joined(0x3f80, -1), 0x3f7fffff);
    assert_int_equal(joined(0x8000, -1), 0x7fffffff); /* of NaN, which comes back, too */
}

static void masters_may_take_the_place_of_numbers(void **state)
{
    const uint16_t weights[] = {0x3f80, 0x3f80, 0xbf80};
    float numbers[] = {-1, 2, 3};
    uint32_t masters[3];
    (void)state;
    assert_int_equal(join_remainders(numbers, weights, numbers, DT_F32, 3), 3);
    memcpy(masters, numbers, sizeof masters);
    assert_int_equal(masters[0], 0x3f7fffff);
    assert_int_equal(masters[1], 0x3f800002);
    assert_int_equal(masters[2], 0xbf800003);
}

static void other_numbers_are_no_remainders(void **state)
{
    static const float others[] = {0.5f, -0.25f, 32768, -32769, 1e30f, (float)INFINITY, (float)NAN};
    const uint16_t weights[] = {0x3f80, 0x3f80};
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        float numbers[] = {7, others[i]};
        assert_false(is_remainder((double)others[i]));
        assert_int_equal(join_remainders(numbers, weights, numbers, DT_F32, 2), 1);
    }
    assert_true(is_remainder(-0.0));
    assert_true(is_remainder(-32768));
    assert_true(is_remainder(32767));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_master_comes_back),
        cmocka_unit_test(halves_of_one_have_these_bits),
        cmocka_unit_test(masters_may_take_the_place_of_numbers),
        cmocka_unit_test(other_numbers_are_no_remainders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
