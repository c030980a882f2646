#include "kernels/cpu/ops/ops_testing.h"

static union op_params random_params(struct op_test *t)
{
    union op_params p = {.norm = {.layer_norm = test_coin(t), .epsilon = 1e-5}};
    p.norm.shift = test_coin(t) ? 1 : 0;
    return p;
}

/* Row `row` of y and stats against the norm of that row of x. */
static void check_row(const struct op_test *t, const union op_params *p, const struct operand *x,
                      const struct operand *weight, const struct operand *out, size_t row)
{
    const size_t h = x->shape[1];
    double mean = 0, variance = 0;
    for (size_t i = 0; i < h && p->norm.layer_norm; i++)
        mean += test_get(t, x, row * h + i) / (double)h;
    for (size_t i = 0; i < h; i++)
        variance += pow(test_get(t, x, row * h + i) - mean, 2) / (double)h;
    const double scale = 1 / sqrt(variance + p->norm.epsilon);
    for (size_t i = 0; i < h; i++) {
        const double bias = weight[1].data ? test_get(t, weight + 1, i) : 0;
        const double w = test_get(t, weight, i) + p->norm.shift;
        test_near(t, out, row * h + i, (test_get(t, x, row * h + i) - mean) * scale * w + bias,
                  0.05 * scale + 2);
    }
    if (!out[1].data) return;
    test_near(t, out + 1, 2 * row, mean, 1);
    test_near(t, out + 1, 2 * row + 1, scale, scale * scale);
}

OP_TEST(rows_are_normed, 20)
{
    const size_t n = test_between(t, 1, 40), h = test_between(t, 2, test_coin(t) ? 20 : 900);
    const union op_params p = random_params(t);
    struct operand in[] = {ELEMS(n, h), ELEMS(h), test_coin(t) ? ELEMS(h) : ABSENT};
    struct operand out[] = {ELEMS(n, h), test_coin(t) ? REALS(n, 2) : ABSENT};
    test_op(t, OP_NORM, &p, in, out);
    for (size_t row = 0; row < n; row++)
        check_row(t, &p, in, in + 1, out, row);
}

/* The sum replaces the stream; y is the norm of the stored sum. */
OP_TEST(sums_are_normed, 20)
{
    const size_t n = test_between(t, 1, 40), h = test_between(t, 2, test_coin(t) ? 20 : 900);
    const union op_params p = random_params(t);
    struct operand in[] = {ELEMS(n, h), ELEMS(n, h), test_coin(t) ? ELEMS(h) : ABSENT, ELEMS(h),
                           test_coin(t) ? ELEMS(h) : ABSENT};
    const struct operand stream = test_copy(t, in);
    struct operand out[] = {in[0], ELEMS(n, h), test_coin(t) ? REALS(n, 2) : ABSENT};
    test_op(t, OP_ADD_NORM, &p, in, out);
    for (size_t i = 0; i < n * h; i++)
        test_near(t, out, i,
                  test_get(t, &stream, i) + test_get(t, in + 1, i) +
                      (in[2].data ? test_get(t, in + 2, i % h) : 0),
                  1);
    for (size_t row = 0; row < n; row++)
        check_row(t, &p, out, in + 3, out + 1, row);
}

OP_TEST(sums_replace_a_term, 10)
{
    const size_t n = test_between(t, 1, 200), h = test_between(t, 1, 200), replaced = test_coin(t);
    const union op_params p = {0};
    struct operand in[] = {ELEMS(n, h), ELEMS(n, h), test_coin(t) ? ELEMS(h) : ABSENT};
    const struct operand a = test_copy(t, in), b = test_copy(t, in + 1);
    test_op(t, OP_ADD, &p, in, in + replaced);
    for (size_t i = 0; i < n * h; i++)
        test_near(t, in + replaced, i,
                  test_get(t, &a, i) + test_get(t, &b, i) +
                      (in[2].data ? test_get(t, in + 2, i % h) : 0),
                  1);
}

OP_TEST(nan_makes_its_row_nan, 2)
{
    const union op_params p = {.norm = {.layer_norm = t->seed % 2}};
    struct operand in[] = {ELEMS(2, 9), ELEMS(9), ABSENT}, out[] = {ELEMS(2, 9), ABSENT};
    test_set(t, in, 3, (double)NAN);
    test_op(t, OP_NORM, &p, in, out);
    for (size_t i = 0; i < 18; i++)
        assert_int_equal(isnan(test_get(t, out, i)) != 0, i < 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_normed),
        cmocka_unit_test(sums_are_normed),
        cmocka_unit_test(sums_replace_a_term),
        cmocka_unit_test(nan_makes_its_row_nan),
    };
    return cmocka_run_group_tests_name("norm", tests, NULL, NULL);
}
