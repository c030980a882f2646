#include "kernels/cpu/ops/gradient_testing.h"

/* A forward pass and its backward. `before`: dweight and dbias before it. */
struct norms {
    union op_params p;
    size_t n, h;
    struct forward forward;
    struct operand in[7], out[3], dy, before[2];
};

static void run_forward(struct op_test *t, struct norms *x)
{
    struct error err = {0};
    x->p = (union op_params){.norm = {.layer_norm = test_coin(t), .epsilon = 0.01}};
    x->p.norm.shift = test_coin(t) ? 1 : 0;
    x->dy = ELEMS(x->n, x->h);
    x->forward = (struct forward){.op = OP_NORM,
                                  .params = &x->p,
                                  .in = {ELEMS(x->n, x->h), ELEMS(x->h), ELEMS(x->h)},
                                  .out = {ELEMS(x->n, x->h), REALS(x->n, 2)},
                                  .dout = {x->dy}};
    assert_ok(test_try(t, OP_NORM, &x->p, x->forward.in, x->forward.out, &err));
}

static void run_backward(struct op_test *t, struct norms *x)
{
    x->in[0] = x->forward.in[0];
    x->in[1] = x->forward.in[1];
    x->in[2] = x->forward.out[1];
    x->in[3] = test_copy(t, &x->dy);
    if (test_coin(t)) x->in[4] = ELEMS(x->n, x->h);
    x->out[0] = test_coin(t) ? x->in[3] : ELEMS(x->n, x->h);
    x->out[1] = FLOATS(x->h);
    x->in[5] = test_sum(t, &x->out[1], &x->before[0]);
    if (test_coin(t)) {
        x->out[2] = FLOATS(x->h);
        x->in[6] = test_sum(t, &x->out[2], &x->before[1]);
    }
    test_op(t, OP_NORM_BACKWARD, &x->p, x->in, x->out);
}

/* z and g of the formula in norm_backward.c */
static double z_of(const struct op_test *t, const struct norms *x, size_t row, size_t i)
{
    return (test_get(t, x->in, row * x->h + i) - test_get(t, x->in + 2, 2 * row)) *
           test_get(t, x->in + 2, 2 * row + 1);
}

static double g_of(const struct op_test *t, const struct norms *x, size_t row, size_t i)
{
    return test_get(t, &x->dy, row * x->h + i) * (test_get(t, x->in + 1, i) + x->p.norm.shift);
}

static void check_dx(const struct op_test *t, const struct norms *x, size_t row)
{
    const double scale = test_get(t, x->in + 2, 2 * row + 1);
    double g = 0, gz = 0;
    for (size_t i = 0; i < x->h; i++) {
        g += x->p.norm.layer_norm ? g_of(t, x, row, i) / (double)x->h : 0;
        gz += g_of(t, x, row, i) * z_of(t, x, row, i) / (double)x->h;
    }
    for (size_t i = 0; i < x->h; i++) {
        const double z = z_of(t, x, row, i);
        const double other = x->in[4].data ? test_get(t, x->in + 4, row * x->h + i) : 0;
        test_near(t, x->out, row * x->h + i, scale * (g_of(t, x, row, i) - g - z * gz) + other,
                  fabs(other) + scale * (1 + fabs(z)));
    }
}

static void check_parameters(const struct op_test *t, const struct norms *x)
{
    for (size_t i = 0; i < x->h; i++) {
        double weight = test_get(t, &x->before[0], i);
        double bias = x->out[2].data ? test_get(t, &x->before[1], i) : 0, size = 1;
        for (size_t row = 0; row < x->n; row++) {
            const double dy = test_get(t, &x->dy, row * x->h + i), z = z_of(t, x, row, i);
            weight += dy * z;
            bias += dy;
            size += fabs(dy * z) / 8;
        }
        test_near(t, x->out + 1, i, weight, size);
        if (x->out[2].data) test_near(t, x->out + 2, i, bias, sqrt((double)x->n));
    }
}

OP_TEST(gradients_are_their_formula, 20)
{
    struct norms x = {.n = test_between(t, 1, test_coin(t) ? 10 : 100),
                      .h = test_between(t, 2, test_coin(t) ? 20 : 900)};
    run_forward(t, &x);
    run_backward(t, &x);
    for (size_t row = 0; row < x.n; row++)
        check_dx(t, &x, row);
    check_parameters(t, &x);
}

/* Subtracts the initial values of the gradients. */
static void subtract(struct op_test *t, const struct operand *from, const struct operand *what)
{
    for (size_t i = 0; what->data && i < test_count(from); i++)
        test_set(t, from, i, test_get(t, from, i) - test_get(t, what, i));
}

OP_TEST(gradients_are_differences_of_the_norm, 20)
{
    struct norms x = {.n = test_between(t, 1, 9), .h = test_between(t, 2, 40)};
    if (t->elem != ELEM_F64) return;
    run_forward(t, &x);
    run_backward(t, &x);
    subtract(t, &x.out[0], &x.in[4]);
    subtract(t, &x.out[1], &x.before[0]);
    test_forward_gradient(t, &x.forward, 0, &x.out[0]);
    test_forward_gradient(t, &x.forward, 1, &x.out[1]);
    if (!x.out[2].data) return;
    subtract(t, &x.out[2], &x.before[1]);
    test_forward_gradient(t, &x.forward, 2, &x.out[2]);
}

OP_TEST(nan_reaches_its_row_and_its_column, 2)
{
    struct norms x = {.n = 40, .h = 9};
    run_forward(t, &x);
    test_set(t, &x.dy, 9 * 35 + 4, (double)NAN);
    run_backward(t, &x);
    for (size_t i = 0; i < 40 * 9; i++)
        assert_int_equal(isnan(test_get(t, x.out, i)) != 0, i / 9 == 35);
    for (size_t i = 0; i < 9; i++)
        assert_int_equal(isnan(test_get(t, x.out + 1, i)) != 0, i == 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_their_formula),
        cmocka_unit_test(gradients_are_differences_of_the_norm),
        cmocka_unit_test(nan_reaches_its_row_and_its_column),
    };
    return cmocka_run_group_tests_name("norm_backward", tests, NULL, NULL);
}
