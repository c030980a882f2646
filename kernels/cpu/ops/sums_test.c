#include "kernels/cpu/ops/gradient_testing.h"

/* Expected values are summed in long double: double would err as much as
 * a kernel. */
static void check_columns(const struct op_test *t, const struct operand *x,
                          const struct operand *before, const struct operand *y)
{
    const size_t rows = x->shape[0], columns = x->shape[1];
    for (size_t c = 0; c < columns; c++) {
        long double sum = test_get(t, before, c);
        for (size_t r = 0; r < rows; r++)
            sum += test_get(t, x, r * columns + c);
        test_near(t, y, c, (double)sum, sqrt((double)rows));
    }
}

OP_TEST(columns_are_summed, 20)
{
    const size_t rows = test_below(&t->seed, test_coin(t) ? 40 : 900);
    const size_t columns = test_between(t, 1, test_coin(t) ? 20 : 600);
    const struct operand all = ELEMS(rows + 1, columns), y = FLOATS(columns);
    const union op_params p = {0};
    struct operand before, in[] = {all, test_sum(t, &y, &before)};
    in[0].shape[0] = rows;
    test_op(t, OP_COLUMN_SUM, &p, in, &y);
    check_columns(t, in, &before, &y);
}

/* Elements of one sign: a sum without blocks would lose 1e-4. */
OP_TEST(a_sum_of_many_rows_is_exact, 2)
{
    const size_t rows = 20000 + test_below(&t->seed, 100), columns = 3;
    const struct operand in[] = {ELEMS(rows, columns), ABSENT}, y = REALS(columns);
    const union op_params p = {0};
    for (size_t i = 0; i < rows * columns; i++)
        test_set(t, in, i, fabs(test_get(t, in, i)));
    test_op(t, OP_COLUMN_SUM, &p, in, &y);
    for (size_t c = 0; c < columns; c++) {
        long double sum = 0;
        for (size_t r = 0; r < rows; r++)
            sum += test_get(t, in, r * columns + c);
        test_near(t, &y, c, (double)sum, 0);
    }
}

OP_TEST(a_sum_is_weighted, 10)
{
    const size_t n = test_between(t, 1, 3000);
    struct operand y = REALS(1), before, in[] = {REALS(n), REALS(n), test_sum(t, &y, &before)};
    const union op_params p = {0};
    double sum = test_get(t, &before, 0);
    for (size_t i = 0; i < n; i++)
        sum += test_get(t, in, i) * test_get(t, in + 1, i);
    test_op(t, OP_WEIGHTED_SUM, &p, in, &y);
    test_near(t, &y, 0, sum, 0.01);
}

OP_TEST(nan_reaches_its_column_only, 2)
{
    const struct operand in[] = {ELEMS(70, 5), ABSENT}, y = FLOATS(5);
    const union op_params p = {0};
    test_set(t, in, 33 * 5 + 2, (double)NAN);
    test_op(t, OP_COLUMN_SUM, &p, in, &y);
    for (size_t c = 0; c < 5; c++)
        assert_int_equal(isnan(test_get(t, &y, c)) != 0, c == 2);
}

/* Every eighth number is 0, infinite or NaN. */
static void make_odd(struct op_test *t, const struct operand *x)
{
    const double odd[] = {0, -0.0, (double)INFINITY, -(double)INFINITY, (double)NAN};
    for (size_t i = 0; i < test_count(x); i++)
        if (test_below(&t->seed, 8) == 0) test_set(t, x, i, odd[test_below(&t->seed, 5)]);
}

OP_TEST(squares_are_summed_and_what_is_not_finite_counted, 16)
{
    const size_t n = test_between(t, 1, test_coin(t) ? 600 : 300000);
    struct operand sums = REALS(3), before, in[] = {FLOATS(n), test_sum(t, &sums, &before)};
    const union op_params p = {0};
    long double want[3] = {test_get(t, &before, 0), test_get(t, &before, 1),
                           test_get(t, &before, 2)};
    if (test_coin(t)) make_odd(t, in);
    for (size_t i = 0; i < n; i++) {
        const double x = test_get(t, in, i);
        want[0] += isfinite(x) ? x * x : 0;
        want[1] += !isfinite(x);
        want[2] += x == 0;
    }
    test_op(t, OP_SQUARE_SUM, &p, in, &sums);
    test_near(t, &sums, 0, (double)want[0], 1);
    test_near(t, &sums, 1, (double)want[1], 1);
    test_near(t, &sums, 2, (double)want[2], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_are_summed),
        cmocka_unit_test(a_sum_of_many_rows_is_exact),
        cmocka_unit_test(a_sum_is_weighted),
        cmocka_unit_test(nan_reaches_its_column_only),
        cmocka_unit_test(squares_are_summed_and_what_is_not_finite_counted),
    };
    return cmocka_run_group_tests_name("sums", tests, NULL, NULL);
}
