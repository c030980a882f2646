#include "kernels/cpu/cast.h"
#include "kernels/cpu/ops/gradient_testing.h"

OP_TEST(numbers_are_rounded_once, 20)
{
    const size_t n = test_between(t, 1, test_coin(t) ? 40 : 70000);
    const struct operand x = FLOATS(n), y = FLOATS(n);
    const union op_params p = {0};
    test_op(t, OP_CAST, &p, &x, &y);
    const bool narrower = x.type == OPERAND_REAL && y.type == OPERAND_ELEM;
    for (size_t i = 0; i < n; i++) {
        const double want = test_get(t, &x, i), got = test_get(t, &y, i);
        const double unit = t->elem == ELEM_BF16 ? 0x1p-8 : t->elem == ELEM_F16 ? 0x1p-11 : 0;
        const double off = narrower ? fmax(fabs(want) * unit, test_floor(t, &y)) : 0;
        assert_true(fabs(got - want) <= off);
    }
}

OP_TEST(what_is_not_finite_stays, 2)
{
    const struct operand x = REALS(3), y = ELEMS(3);
    const union op_params p = {0};
    test_set(t, &x, 0, (double)NAN);
    test_set(t, &x, 1, -(double)INFINITY);
    test_op(t, OP_CAST, &p, &x, &y);
    assert_true(isnan(test_get(t, &y, 0)));
    assert_true(test_get(t, &y, 1) == -(double)INFINITY);
}

static enum dtype dtype_of(const struct op_test *t)
{
    return t->elem == ELEM_BF16 ? DT_BF16 : DT_F16;
}

OP_TEST(every_number_of_16_bits_comes_back, 1)
{
    enum { COUNT_16 = 1 << 16 };
    if (operand_bytes_of(OPERAND_ELEM, t->elem) != 2) return;
    const struct operand x = ELEMS(COUNT_16), wide = REALS(COUNT_16), back = ELEMS(COUNT_16);
    const union op_params p = {0};
    for (size_t i = 0; i < COUNT_16; i++)
        ((uint16_t *)x.data)[i] = (uint16_t)i;
    test_op(t, OP_CAST, &p, &x, &wide);
    test_op(t, OP_CAST, &p, &wide, &back);
    for (size_t i = 0; i < COUNT_16; i++) {
        const double want = dtype_load(dtype_of(t), x.data, i);
        const float got = ((const float *)wide.data)[i];
        if (isnan(want)) {
            assert_true(isnan(got) && isnan(test_get(t, &back, i)));
        } else {
            assert_true((double)got == want && !signbit(got) == !signbit(want));
            assert_int_equal(((const uint16_t *)back.data)[i], i);
        }
    }
}

/* Floats of all sizes, many halfway between two f16, round as in
 * kernels/cpu/cast.h. */
OP_TEST(floats_are_rounded_as_casts_of_weights_round_them, 3)
{
    enum { NUM_FLOATS = 100003 };
    if (operand_bytes_of(OPERAND_ELEM, t->elem) != 2) return;
    const struct operand x = REALS(NUM_FLOATS), y = ELEMS(NUM_FLOATS), want = ELEMS(NUM_FLOATS);
    const union op_params p = {0};
    for (size_t i = 0; i < NUM_FLOATS; i++) {
        uint32_t bits = (uint32_t)test_random(&t->seed);
        if (i % 2) bits = (bits & 0x8fffffff) | 0x30000000; /* in the range of f16 */
        if (i % 4 == 3) bits = (bits & 0xffffe000) | 0x1000;
        ((float *)x.data)[i] = half_float_of(bits);
    }
    test_op(t, OP_CAST, &p, &x, &y);
    (void)cast_elements(want.data, dtype_of(t), x.data, DT_F32, NUM_FLOATS);
    assert_memory_equal(y.data, want.data, NUM_FLOATS * sizeof(uint16_t));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_rounded_once),
        cmocka_unit_test(what_is_not_finite_stays),
        cmocka_unit_test(every_number_of_16_bits_comes_back),
        cmocka_unit_test(floats_are_rounded_as_casts_of_weights_round_them),
    };
    return cmocka_run_group_tests_name("cast_op", tests, NULL, NULL);
}
