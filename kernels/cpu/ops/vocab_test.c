#include "kernels/cpu/ops/ops_testing.h"

/* Random logits of a rank that has columns 100 .. 100 + valid, and padding of NaN behind them. */
static struct operand make_logits(struct op_test *t, size_t n, size_t columns, size_t valid)
{
    const struct operand logits = REALS(n, columns);
    for (size_t i = 0; i < n * columns; i++)
        test_set(t, &logits, i, i % columns < valid ? 9 * test_uniform(t) : (double)NAN);
    return logits;
}

OP_TEST(sums_and_loss_are_those_of_the_columns, 12)
{
    const size_t n = test_between(t, 1, 30), valid = test_between(t, 1, 1500);
    const size_t columns = valid + test_below(&t->seed, 5);
    const union op_params p = {.vocab = {.first_column = 100, .valid = valid}};
    struct operand in[] = {make_logits(t, n, columns, valid), REALS(n), INTS(n)};
    const struct operand sums = REALS(n, 2), loss = REALS(n), loss_in[] = {sums, in[2]};
    for (size_t i = 0; i < n; i++)
        test_set(t, in + 2, i, (double)test_below(&t->seed, 2 * valid + 200) - 1);
    test_op(t, OP_VOCAB_MAX, &p, in, in + 1);
    test_op(t, OP_VOCAB_SUM, &p, in, &sums);
    test_op(t, OP_TOKEN_LOSS, &p, loss_in, &loss);
    for (size_t i = 0; i < n; i++) {
        double max = -INFINITY, sum = 0;
        for (size_t j = 0; j < valid; j++) /* not fmax(): GCC 12 for aarch64 crashes on it */
            if (test_get(t, in, i * columns + j) > max) max = test_get(t, in, i * columns + j);
        for (size_t j = 0; j < valid; j++)
            sum += exp(test_get(t, in, i * columns + j) - max);
        const double target = test_get(t, in + 2, i), column = target - 100;
        const bool ours = column >= 0 && column < (double)valid;
        const double of_target = ours ? test_get(t, in, i * columns + (size_t)column) - max : 0;
        test_near(t, in + 1, i, max, 0);
        test_near(t, &sums, 2 * i, sum, 0);
        test_near(t, &sums, 2 * i + 1, of_target, 0);
        test_near(t, &loss, i, target < 0 ? 0 : log(sum) - of_target, 1);
    }
}

OP_TEST(nan_reaches_the_loss, 1)
{
    const union op_params p = {.vocab = {.valid = 40}};
    struct operand in[] = {make_logits(t, 2, 40, 40), REALS(2), INTS(2)};
    const struct operand sums = REALS(2, 2), loss = REALS(2), loss_in[] = {sums, in[2]};
    test_set(t, in, 7, (double)NAN);
    test_op(t, OP_VOCAB_MAX, &p, in, in + 1);
    test_op(t, OP_VOCAB_SUM, &p, in, &sums);
    test_op(t, OP_TOKEN_LOSS, &p, loss_in, &loss);
    assert_true(isnan(test_get(t, in + 1, 0)) && isnan(test_get(t, &loss, 0)));
    assert_false(isnan(test_get(t, in + 1, 1)) || isnan(test_get(t, &loss, 1)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_loss_are_those_of_the_columns),
        cmocka_unit_test(nan_reaches_the_loss),
    };
    return cmocka_run_group_tests_name("vocab", tests, NULL, NULL);
}
