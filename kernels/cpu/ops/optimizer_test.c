#include "kernels/cpu/ops/gradient_testing.h"

/* ---- scalars of a step ---- */

/* Learning rate, weight decay, two corrections, factor, largest norm. */
static struct operand make_control(struct op_test *t, double factor, double largest)
{
    const struct operand control = REALS(6);
    const double values[] = {1e-3, 0.1, 1 / (1 - 0.729), 1 / (1 - 0.857375), factor, largest};
    for (size_t i = 0; i < 6; i++)
        test_set(t, &control, i, values[i]);
    return control;
}

static struct operand make_sums(struct op_test *t, double squares, double not_finite, double zeros)
{
    const struct operand sums = REALS(3);
    test_set(t, &sums, 0, squares);
    test_set(t, &sums, 1, not_finite);
    test_set(t, &sums, 2, zeros);
    return sums;
}

OP_TEST(large_gradients_are_clipped, 6)
{
    const double squares = pow(2 + test_uniform(t), 2), factor = 0.5 + 0.25 * test_uniform(t);
    const double largest = test_coin(t) ? 0 : test_coin(t) ? 0.125 : 100;
    const double bad = test_coin(t) ? 3 : 0;
    const struct operand in[] = {make_sums(t, squares, bad, 17), make_control(t, factor, largest)};
    const struct operand out = REALS(8);
    const union op_params p = {0};
    test_op(t, OP_STEP_SCALARS, &p, in, &out);
    const double norm = test_get(t, in + 1, 4) * sqrt(test_get(t, in, 0));
    const double clip = largest == 0.125 ? 0.125 / (norm + 1e-6) : 1;
    for (size_t i = 0; i < 4; i++)
        assert_true(test_get(t, &out, i) == test_get(t, in + 1, i));
    test_near(t, &out, 4, test_get(t, in + 1, 4) * clip, 0);
    assert_true(test_get(t, &out, 5) == (bad > 0));
    test_near(t, &out, 6, norm, 0);
    assert_true(test_get(t, &out, 7) == 17);
}

/* ---- steps ---- */

enum { LR, DECAY, C1, C2, FACTOR, NOT_FINITE };

static struct operand make_scalars(struct op_test *t, bool skipped)
{
    const struct operand scalars = REALS(8);
    const double values[] = {1e-2, 0.1, 1 / (1 - 0.729), 1 / (1 - 0.857375), 0.25, skipped, 1, 0};
    for (size_t i = 0; i < 8; i++)
        test_set(t, &scalars, i, values[i]);
    return scalars;
}

static union op_params random_params(struct op_test *t)
{
    union op_params p = {.optimizer = {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8}};
    p.optimizer.momentum = 0.875;
    p.optimizer.lr_mult = test_coin(t) ? 1 : 0.5;
    p.optimizer.wd_mult = test_coin(t) ? 1 : 0;
    return p;
}

/* A step of either op; states are m, v and master, in this order. `before`:
 * weight and states before it. */
struct step {
    enum op op;
    union op_params p;
    size_t n, num_states, master; /* operand 3 + i is state i; index of the master */
    struct operand in[6], out[4], before[4];
};

static struct step make_step(struct op_test *t, enum op op, bool skipped)
{
    const size_t n = test_between(t, 1, test_coin(t) ? 40 : 40000);
    struct step s = {.op = op, .p = random_params(t), .n = n};
    s.num_states = op == OP_ADAM ? 3 : 2;
    s.master = s.num_states - 1;
    s.in[0] = FLOATS(n);
    s.in[1] = make_scalars(t, skipped);
    s.in[2] = ELEMS(n);
    for (size_t i = 0; i < s.num_states; i++)
        if ((op == OP_ADAM && i < 2) || test_coin(t)) s.in[3 + i] = REALS(n);
    for (size_t i = 0; op == OP_ADAM && i < n; i++) /* v must not be negative */
        test_set(t, s.in + 4, i, pow(test_get(t, s.in + 4, i), 2));
    const bool in_place = test_coin(t);
    for (size_t i = 0; i <= s.num_states; i++)
        if (s.in[2 + i].data) {
            s.before[i] = test_copy(t, s.in + 2 + i);
            s.out[i] = in_place ? s.in[2 + i] : test_copy(t, s.in + 2 + i);
        }
    for (size_t i = 0; !in_place && i <= s.num_states; i++)
        if (s.out[i].data) memset(s.out[i].data, 0xFF, test_bytes(t, &s.out[i]));
    test_op(t, op, &s.p, s.in, s.out);
    return s;
}

static double weight_of(const struct op_test *t, const struct step *s, size_t i)
{
    const struct operand *master = &s->before[1 + s->master];
    return test_get(t, master->data ? master : s->before, i);
}

static void check_weight(const struct op_test *t, const struct step *s, size_t i, double w)
{
    test_near(t, s->out, i, w, 0.1);
    if (s->out[1 + s->master].data) test_near(t, s->out + 1 + s->master, i, w, 0.1);
}

/* torch.optim.AdamW */
OP_TEST(adam_is_its_formula, 12)
{
    const struct step s = make_step(t, OP_ADAM, false);
    double x[6];
    for (size_t i = 0; i < 6; i++)
        x[i] = test_get(t, s.in + 1, i);
    const double lr = x[LR] * s.p.optimizer.lr_mult, decay = x[DECAY] * s.p.optimizer.wd_mult;
    for (size_t i = 0; i < s.n; i++) {
        const double g = x[FACTOR] * test_get(t, s.in, i);
        const double m = 0.9 * test_get(t, s.before + 1, i) + 0.1 * g;
        const double v = 0.95 * test_get(t, s.before + 2, i) + 0.05 * g * g;
        const double step = lr * m * x[C1] / (sqrt(v * x[C2]) + 1e-8);
        test_near(t, s.out + 1, i, m, 0.1);
        test_near(t, s.out + 2, i, v, 0);
        check_weight(t, &s, i, weight_of(t, &s, i) * (1 - lr * decay) - step);
    }
}

/* torch.optim.SGD */
OP_TEST(sgd_is_its_formula, 12)
{
    const struct step s = make_step(t, OP_SGD, false);
    const double factor = test_get(t, s.in + 1, FACTOR);
    const double lr = test_get(t, s.in + 1, LR) * s.p.optimizer.lr_mult;
    const double decay = test_get(t, s.in + 1, DECAY) * s.p.optimizer.wd_mult;
    for (size_t i = 0; i < s.n; i++) {
        const double w = weight_of(t, &s, i);
        double m = factor * test_get(t, s.in, i) + decay * w;
        if (s.before[1].data) m += 0.875 * test_get(t, s.before + 1, i);
        if (s.out[1].data) test_near(t, s.out + 1, i, m, 0.5);
        check_weight(t, &s, i, w - lr * m);
    }
}

OP_TEST(a_step_with_gradients_that_are_not_finite_is_skipped, 8)
{
    const struct step s = make_step(t, test_coin(t) ? OP_ADAM : OP_SGD, true);
    for (size_t i = 0; i <= s.num_states; i++)
        if (s.out[i].data)
            assert_memory_equal(s.out[i].data, s.before[i].data, test_bytes(t, &s.out[i]));
}

/* The master keeps updates too small for bf16, step after step. */
OP_TEST(small_steps_add_up_in_the_master, 2)
{
    union op_params p = {.optimizer = {.lr_mult = 1}};
    const struct operand weight = ELEMS(1), master = REALS(1);
    const struct operand in[] = {REALS(1), make_scalars(t, false), weight, ABSENT, master};
    const struct operand out[] = {weight, ABSENT, master};
    struct error err = {0};
    test_set(t, in, 0, 1);
    test_set(t, in + 1, FACTOR, 1);
    test_set(t, in + 1, LR, 0x1p-12);
    test_set(t, &weight, 0, 1);
    test_set(t, &master, 0, 1);
    for (int i = 0; i < 64; i++)
        assert_ok(test_try(t, OP_SGD, &p, in, out, &err));
    assert_true(test_get(t, &weight, 0) == 1 - 0x1p-6);
}

/* Three steps of torch.optim.AdamW([1.0, -2.0], lr=0.1, betas=(0.9, 0.999),
 * eps=1e-8, weight_decay=0.01) with gradients [0.5, -1], [0.25, 2] and [-1,
 * 0.125], by its documentation. */
OP_TEST(steps_of_adam_follow_one_another, 1)
{
    const union op_params p = {.optimizer = {0.9, 0.999, 1e-8, 0, 1, 1}};
    const double grads[3][2] = {{0.5, -1}, {0.25, 2}, {-1, 0.125}};
    struct operand weight = ELEMS(2), m = REALS(2), v = REALS(2), master = REALS(2);
    const struct operand in[] = {REALS(2), make_scalars(t, false), weight, m, v, master};
    const struct operand out[] = {weight, m, v, master};
    double w[] = {1, -2}, mean[2] = {0}, square[2] = {0};
    struct error err = {0};
    for (size_t i = 0; i < 2; i++) {
        test_set(t, &master, i, w[i]);
        test_set(t, &m, i, 0);
        test_set(t, &v, i, 0);
    }
    test_set(t, in + 1, LR, 0.1);
    test_set(t, in + 1, DECAY, 0.01);
    test_set(t, in + 1, FACTOR, 1);
    for (size_t k = 0; k < 3; k++) {
        const double c1 = 1 / (1 - pow(0.9, (double)k + 1)),
                     c2 = 1 / (1 - pow(0.999, (double)k + 1));
        test_set(t, in + 1, C1, c1);
        test_set(t, in + 1, C2, c2);
        for (size_t i = 0; i < 2; i++) {
            const double g = grads[k][i];
            test_set(t, in, i, g);
            w[i] -= 0.1 * 0.01 * w[i];
            mean[i] += (g - mean[i]) * (1 - 0.9);
            square[i] = 0.999 * square[i] + (1 - 0.999) * g * g;
            w[i] -= 0.1 * (mean[i] * c1) / (sqrt(square[i] * c2) + 1e-8);
        }
        assert_ok(test_try(t, OP_ADAM, &p, in, out, &err));
    }
    for (size_t i = 0; i < 2; i++)
        test_near(t, &master, i, w[i], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_gradients_are_clipped),
        cmocka_unit_test(adam_is_its_formula),
        cmocka_unit_test(sgd_is_its_formula),
        cmocka_unit_test(a_step_with_gradients_that_are_not_finite_is_skipped),
        cmocka_unit_test(small_steps_add_up_in_the_master),
        cmocka_unit_test(steps_of_adam_follow_one_another),
    };
    return cmocka_run_group_tests_name("optimizer", tests, NULL, NULL);
}
