#include "kernels/cpu/ops/gradient_testing.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double value_of(enum activation kind, double x)
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

static double slope_of(enum activation kind, double x)
{
    const double pi = 3.14159265358979323846, s = sigmoid(x), q = sigmoid(1.702 * x);
    const double u = sqrt(2 / pi) * (x + 0.044715 * x * x * x);
    switch (kind) {
    case ACTIVATION_SILU:
        return s * (1 + x * (1 - s));
    case ACTIVATION_GELU:
        return (1 + erf(x / sqrt(2))) / 2 + x * exp(-x * x / 2) / sqrt(2 * pi);
    case ACTIVATION_GELU_TANH:
        return (1 + tanh(u)) / 2 +
               x / 2 * (1 - tanh(u) * tanh(u)) * sqrt(2 / pi) * (1 + 3 * 0.044715 * x * x);
    case ACTIVATION_RELU:
        return x > 0;
    case ACTIVATION_SQUARED_RELU:
        return x > 0 ? 2 * x : 0;
    default:
        return q * (1 + 1.702 * x * (1 - q));
    }
}

/* Random numbers in [-8, 8), away from 0, so that no step passes
 * relu's kink. */
static struct operand make_x(struct op_test *t, size_t n, size_t columns)
{
    const struct operand x = ELEMS(n, columns);
    for (size_t i = 0; i < n * columns; i++) {
        const double of = 8 * test_uniform(t);
        test_set(t, &x, i, fabs(of) < 0.01 ? 0.5 : of);
    }
    return x;
}

OP_TEST(every_kind_is_its_derivative, 6)
{
    for (int kind = 0; kind < NUM_ACTIVATIONS; kind++) {
        const enum activation a = (enum activation)kind;
        const bool gated = test_coin(t);
        const union op_params p = {.activation = {.kind = a, .gated = gated}};
        const size_t n = test_between(t, 1, 20), h = test_between(t, 1, 150);
        const size_t columns = gated ? 2 * h : h;
        struct operand in[] = {make_x(t, n, columns), ELEMS(n, h), ABSENT};
        const struct operand x = test_copy(t, in), dx = test_coin(t) ? in[0] : ELEMS(n, columns);
        test_op(t, OP_ACTIVATION_BACKWARD, &p, in, &dx);
        for (size_t i = 0; i < n * h; i++) {
            const size_t at = i / h * columns + i % h;
            const double of = test_get(t, &x, at), dy = test_get(t, in + 1, i);
            const double up = gated ? test_get(t, &x, at + h) : 1;
            test_near(t, &dx, at, dy * up * slope_of(a, of), fabs(dy * up));
            if (gated) test_near(t, &dx, at + h, dy * value_of(a, of), fabs(dy));
        }
    }
}

OP_TEST(gradients_are_differences_of_the_activation, 2)
{
    if (t->elem != ELEM_F64) return;
    for (int kind = 0; kind < 2 * NUM_ACTIVATIONS; kind++) {
        const bool gated = kind % 2;
        const union op_params p = {
            .activation = {.kind = (enum activation)(kind / 2), .gated = gated}};
        const size_t n = 3, h = test_between(t, 1, 15), columns = gated ? 2 * h : h;
        struct forward f = {.op = OP_ACTIVATION,
                            .params = &p,
                            .in = {make_x(t, n, columns)},
                            .out = {ELEMS(n, h)},
                            .dout = {ELEMS(n, h)}};
        const struct operand in[] = {f.in[0], f.dout[0], ABSENT}, dx = ELEMS(n, columns);
        test_op(t, OP_ACTIVATION_BACKWARD, &p, in, &dx);
        test_forward_gradient(t, &f, 0, &dx);
    }
}

OP_TEST(rows_that_do_not_count_stay, 4)
{
    const union op_params p = {.activation = {.kind = ACTIVATION_SILU, .gated = true}};
    const size_t n = test_between(t, 1, 20), some = test_below(&t->seed, n + 1);
    const struct operand in[] = {ELEMS(n, 14), ELEMS(n, 7), INTS(2)}, dx = ELEMS(n, 14);
    const struct operand before = test_copy(t, &dx);
    test_set(t, in + 2, 0, (double)(some / 3));
    test_set(t, in + 2, 1, (double)(some - some / 3));
    test_op(t, OP_ACTIVATION_BACKWARD, &p, in, &dx);
    for (size_t i = 0; i < n * 14; i++) {
        const bool counts = i < some * 14;
        if (counts && i % 14 < 7)
            test_near(t, &dx, i,
                      test_get(t, in + 1, i / 14 * 7 + i % 14) * test_get(t, in, i + 7) *
                          slope_of(ACTIVATION_SILU, test_get(t, in, i)),
                      1);
        else if (!counts)
            assert_true(test_get(t, &dx, i) == test_get(t, &before, i));
    }
}

/* Far from 0 a slope is 0 or 1 (except relu squared), and nothing overflows.
 * NaN stays. */
OP_TEST(slopes_far_from_0_are_finite, 1)
{
    const bool half = t->elem == ELEM_F16; /* twice 3e4 must be finite */
    const double a_lot = half ? 1e4 : 1e19, most = half ? 3e4 : 1e30;
    const double far[] = {-most, -a_lot, -200, 200, a_lot, most, (double)NAN};
    for (int kind = 0; kind < NUM_ACTIVATIONS; kind++) {
        const enum activation a = (enum activation)kind;
        const union op_params p = {.activation = {.kind = a}};
        const struct operand in[] = {ELEMS(1, 7), ELEMS(1, 7), ABSENT}, dx = ELEMS(1, 7);
        for (size_t i = 0; i < 7; i++) {
            test_set(t, in, i, far[i]);
            test_set(t, in + 1, i, 1);
        }
        test_op(t, OP_ACTIVATION_BACKWARD, &p, in, &dx);
        for (size_t i = 0; i < 6; i++) {
            const double x = test_get(t, in, i);
            test_near(t, &dx, i, x < 0 ? 0 : a == ACTIVATION_SQUARED_RELU ? 2 * x : 1, 1);
        }
        assert_true(isnan(test_get(t, &dx, 6)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_is_its_derivative),
        cmocka_unit_test(gradients_are_differences_of_the_activation),
        cmocka_unit_test(rows_that_do_not_count_stay),
        cmocka_unit_test(slopes_far_from_0_are_finite),
    };
    return cmocka_run_group_tests_name("activation_backward", tests, NULL, NULL);
}
