#include "kernels/cpu/ops/ops_testing.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double formula(enum activation kind, double x)
{
    const double pi = 3.14159265358979323846;
    switch (kind) {
    case ACTIVATION_SILU:
        return x * sigmoid(x);
    case ACTIVATION_GELU:
        return x * (1 + erf(x / sqrt(2))) / 2;
    case ACTIVATION_GELU_TANH:
        return x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x))) / 2;
    case ACTIVATION_RELU:
        return x > 0 ? x : 0;
    case ACTIVATION_SQUARED_RELU:
        return x > 0 ? x * x : 0;
    default:
        return x * sigmoid(1.702 * x);
    }
}

OP_TEST(every_kind_is_its_formula, 4)
{
    for (int kind = 0; kind < NUM_ACTIVATIONS; kind++) {
        union op_params p = {.activation = {.kind = (enum activation)kind}};
        p.activation.gated = test_coin(t);
        const size_t n = test_between(t, 1, 20), h = test_between(t, 1, 150);
        const size_t columns = p.activation.gated ? 2 * h : h;
        const struct operand in[] = {ELEMS(n, columns), ABSENT}, out = ELEMS(n, h);
        for (size_t i = 0; i < n * columns; i++)
            test_set(t, in, i, 8 * test_uniform(t));
        test_op(t, OP_ACTIVATION, &p, in, &out);
        for (size_t i = 0; i < n * h; i++) {
            const size_t at = i / h * columns + i % h;
            test_near(t, &out, i,
                      formula((enum activation)kind, test_get(t, in, at)) *
                          (p.activation.gated ? test_get(t, in, at + h) : 1),
                      1);
        }
    }
}

OP_TEST(rows_that_do_not_count_stay, 4)
{
    const union op_params p = {.activation = {.kind = ACTIVATION_RELU}};
    const size_t n = test_between(t, 1, 20), some = test_below(&t->seed, n + 1);
    const struct operand in[] = {ELEMS(n, 7), INTS(2)}, out = ELEMS(n, 7);
    const struct operand before = test_copy(t, &out);
    test_set(t, in + 1, 0, (double)(some / 3));
    test_set(t, in + 1, 1, (double)(some - some / 3));
    test_op(t, OP_ACTIVATION, &p, in, &out);
    for (size_t i = 0; i < n * 7; i++) {
        const double x = test_get(t, in, i),
                     want = i < some * 7 ? fmax(x, 0) : test_get(t, &before, i);
        assert_true(test_get(t, &out, i) == want);
    }
}

OP_TEST(nan_and_large_numbers_pass_every_kind, 1)
{
    for (int kind = 0; kind < NUM_ACTIVATIONS; kind++) {
        const union op_params p = {.activation = {.kind = (enum activation)kind}};
        const struct operand in[] = {ELEMS(1, 3), ABSENT}, out = ELEMS(1, 3);
        const double large = t->elem == ELEM_F16 ? 128 : 1024; /* its square must be finite */
        test_set(t, in, 0, (double)NAN);
        test_set(t, in, 1, large);
        test_set(t, in, 2, -large);
        test_op(t, OP_ACTIVATION, &p, in, &out);
        assert_true(isnan(test_get(t, &out, 0)));
        test_near(t, &out, 1, kind == ACTIVATION_SQUARED_RELU ? large * large : large, 0);
        assert_true(test_get(t, &out, 2) == 0);
    }
}

OP_TEST(rows_are_scaled_by_the_sigmoid_of_their_gate, 6)
{
    const size_t n = test_between(t, 1, 90), h = test_between(t, 1, 300);
    const union op_params p = {0};
    const struct operand in[] = {ELEMS(n, h), ELEMS(n, 1)}, x = test_copy(t, in);
    test_op(t, OP_SIGMOID_SCALE, &p, in, in);
    for (size_t i = 0; i < n * h; i++)
        test_near(t, in, i, sigmoid(test_get(t, in + 1, i / h)) * test_get(t, &x, i), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_is_its_formula),
        cmocka_unit_test(rows_that_do_not_count_stay),
        cmocka_unit_test(nan_and_large_numbers_pass_every_kind),
        cmocka_unit_test(rows_are_scaled_by_the_sigmoid_of_their_gate),
    };
    return cmocka_run_group_tests_name("activation", tests, NULL, NULL);
}
