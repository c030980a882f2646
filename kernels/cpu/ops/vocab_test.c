#include "kernels/cpu/ops/gradient_testing.h"

/* Random logits of a rank with columns 100 .. 100 + valid, then padding
 * of NaN. */
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

/* A forward pass over columns 100 .. 100 + valid, and its backward. in: inputs
 * of vocab_backward. */
struct vocab {
    union op_params p;
    size_t n, columns, valid;
    struct operand in[6], loss, logits;
};

static void run_forward(struct op_test *t, struct vocab *v)
{
    const struct operand *in = v->in, sum_in[] = {in[0], in[1], in[3]}, loss_in[] = {in[2], in[3]};
    struct error err = {0};
    assert_ok(test_try(t, OP_VOCAB_MAX, &v->p, in, in + 1, &err));
    assert_ok(test_try(t, OP_VOCAB_SUM, &v->p, sum_in, in + 2, &err));
    assert_ok(test_try(t, OP_TOKEN_LOSS, &v->p, loss_in, &v->loss, &err));
}

/* Some targets are negative, or on another rank if `others`; dloss is 0 where
 * they are negative. */
static struct vocab make_vocab(struct op_test *t, size_t valid, bool others)
{
    struct vocab v = {.n = test_between(t, 1, 30), .valid = valid};
    v.columns = valid + test_below(&t->seed, 5);
    v.p = (union op_params){.vocab = {.first_column = 100, .valid = valid}};
    v.in[0] = make_logits(t, v.n, v.columns, valid);
    v.in[1] = REALS(v.n);
    v.in[2] = REALS(v.n, 2);
    v.in[3] = INTS(v.n);
    v.in[4] = REALS(v.n);
    v.in[5] = REALS(1);
    v.loss = REALS(v.n);
    for (size_t i = 0; i < v.n; i++) {
        const size_t first = others ? 0 : 100, all = others ? 200 + valid : valid;
        const bool ignored = test_below(&t->seed, 4) == 0;
        test_set(t, v.in + 3, i, ignored ? -1 : (double)(first + test_below(&t->seed, all)));
        if (ignored) test_set(t, v.in + 4, i, 0);
    }
    v.logits = test_copy(t, v.in);
    run_forward(t, &v);
    return v;
}

OP_TEST(gradients_are_softmax_minus_target, 12)
{
    struct vocab v = make_vocab(t, test_between(t, 1, 1500), true);
    const bool in_place = operand_bytes_of(OPERAND_ELEM, t->elem) != 2 && test_coin(t);
    const struct operand place = {
        .data = v.in[0].data, .type = OPERAND_ELEM, .num_dims = 2, .shape = {v.n, v.columns}};
    const struct operand dlogits = in_place ? place : ELEMS(v.n, v.columns);
    test_op(t, OP_VOCAB_BACKWARD, &v.p, v.in, &dlogits);
    for (size_t i = 0; i < v.n * v.columns; i++) {
        const size_t row = i / v.columns, column = i % v.columns;
        const double target = test_get(t, v.in + 3, row);
        const double by = test_get(t, v.in + 4, row) * test_get(t, v.in + 5, 0);
        const double softmax = exp(test_get(t, &v.logits, i) - test_get(t, v.in + 1, row)) /
                               test_get(t, v.in + 2, 2 * row);
        const double want = by * (softmax - (target == (double)(100 + column)));
        const bool zero = column >= v.valid || target < 0;
        test_near(t, &dlogits, i, zero ? 0 : want, zero ? 0 : 0x1p-20 * fabs(by));
        if (zero) assert_true(test_get(t, &dlogits, i) == 0);
    }
}

static double vocab_loss(struct op_test *t, void *context)
{
    struct vocab *v = context;
    double loss = 0;
    run_forward(t, v);
    for (size_t i = 0; i < v->n; i++)
        loss += test_get(t, v->in + 4, i) * test_get(t, v->in + 5, 0) * test_get(t, &v->loss, i);
    return loss;
}

OP_TEST(gradients_are_differences_of_the_loss, 6)
{
    if (t->elem != ELEM_F64) return;
    struct vocab v = make_vocab(t, test_between(t, 1, 20), false);
    const struct operand dlogits = ELEMS(v.n, v.columns);
    test_op(t, OP_VOCAB_BACKWARD, &v.p, v.in, &dlogits);
    test_gradient(t, vocab_loss, &v, v.in, &dlogits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_loss_are_those_of_the_columns),
        cmocka_unit_test(nan_reaches_the_loss),
        cmocka_unit_test(gradients_are_softmax_minus_target),
        cmocka_unit_test(gradients_are_differences_of_the_loss),
    };
    return cmocka_run_group_tests_name("vocab", tests, NULL, NULL);
}
