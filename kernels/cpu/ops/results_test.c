#include "kernels/cpu/ops/ops_testing.h"

OP_TEST(columns_of_members_lie_side_by_side, 20)
{
    const size_t n = test_between(t, 1, 9), members = test_between(t, 1, 4),
                 each = test_between(t, 1, 3000),
                 columns = members * each - test_between(t, 0, each - 1);
    const struct operand in[] = {REALS(members * n, each)}, out = REALS(n, columns);
    test_op(t, OP_JOIN_COLUMNS, NULL, in, &out);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < columns; k++)
            assert_true(test_get(t, &out, i * columns + k) ==
                        test_get(t, in, (k / each * n + i) * each + k % each));
}

/* One bad number among many is found anywhere, and an earlier finding stays. */
OP_TEST(a_number_that_is_not_finite_is_found, 60)
{
    const double bad[] = {(double)NAN, INFINITY, -INFINITY};
    const size_t n = test_coin(t) ? test_between(t, 1, 40) : test_between(t, 15000, 40000);
    struct operand in[2] = {test_coin(t) ? REALS(2, n) : ELEMS(2, n)}, out = INTS(1);
    const bool is_bad = test_coin(t), has_before = test_coin(t), before = test_coin(t);
    if (is_bad) test_set(t, in, test_between(t, 0, 2 * n - 1), bad[test_between(t, 0, 2)]);
    if (has_before) in[1] = INTS(1);
    if (has_before) test_set(t, in + 1, 0, before);
    test_op(t, OP_NOT_FINITE, NULL, in, &out);
    assert_true(test_get(t, &out, 0) == (is_bad || (has_before && before)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_of_members_lie_side_by_side),
        cmocka_unit_test(a_number_that_is_not_finite_is_found),
    };
    return cmocka_run_group_tests_name("results", tests, NULL, NULL);
}
