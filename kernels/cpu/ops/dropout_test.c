#include "kernels/cpu/ops/gradient_testing.h"
#include "kernels/op_dropout.h"

static union op_params random_params(struct op_test *t)
{
    union op_params p = {.dropout = {.first_column = test_below(&t->seed, 1000)}};
    p.dropout.dropout = (struct dropout){.probability = test_coin(t) ? 0.1 : 0.5,
                                         .seed = test_random(&t->seed),
                                         .stream = (uint32_t)test_below(&t->seed, 50)};
    return p;
}

/* Numbers of tokens in a run, some with a negative low word. */
static struct operand make_tokens(struct op_test *t, size_t n)
{
    const struct operand tokens = INTS(n, 2);
    for (size_t i = 0; i < 2 * n; i++)
        ((int32_t *)tokens.data)[i] = (int32_t)test_random(&t->seed);
    return tokens;
}

static bool kept(const union op_params *p, const struct operand *tokens, size_t row, size_t column)
{
    const struct dropout *d = &p->dropout.dropout;
    const uint64_t begin = dropout_token(d, (const int32_t *)tokens->data + 2 * row);
    return dropout_keeps(begin, p->dropout.first_column + column, dropout_limit(d));
}

OP_TEST(elements_are_scaled_or_dropped, 15)
{
    const size_t n = test_between(t, 1, 60), h = test_between(t, 1, 400);
    const union op_params p = random_params(t);
    struct operand in[] = {ELEMS(n, h), test_coin(t) ? ELEMS(h) : ABSENT, make_tokens(t, n)};
    const struct operand x = test_copy(t, in), y = test_coin(t) ? in[0] : ELEMS(n, h);
    test_op(t, OP_DROPOUT, &p, in, &y);
    for (size_t i = 0; i < n * h; i++) {
        const double bias = in[1].data ? test_get(t, in + 1, i % h) : 0;
        const double sum = test_get(t, &x, i) + bias;
        const double scale = 1 / (1 - p.dropout.dropout.probability);
        test_near(t, &y, i, kept(&p, in + 2, i / h, i % h) ? sum * scale : 0, fabs(bias) / 2);
    }
}

/* Columns are numbered over all ranks: a rank drops what one rank with all
 * columns would. */
OP_TEST(a_part_of_the_columns_drops_the_same, 4)
{
    const size_t n = 7, h = 64, first = 40, part = h - first;
    union op_params p = random_params(t);
    const struct operand whole[] = {ELEMS(n, h), ABSENT, make_tokens(t, n)};
    const struct operand some[] = {ELEMS(n, part), ABSENT, whole[2]};
    for (size_t i = 0; i < n * part; i++)
        test_set(t, some, i, test_get(t, whole, i / part * h + first + i % part));
    test_op(t, OP_DROPOUT, &p, whole, whole);
    p.dropout.first_column += first;
    test_op(t, OP_DROPOUT, &p, some, some);
    for (size_t i = 0; i < n * part; i++)
        assert_true(test_get(t, some, i) == test_get(t, whole, i / part * h + first + i % part));
}

OP_TEST(as_many_are_dropped_as_are_to_be, 4)
{
    const size_t n = 100, h = 1000;
    const union op_params p = random_params(t);
    const struct operand in[] = {ELEMS(n, h), ABSENT, make_tokens(t, n)};
    double dropped = 0;
    for (size_t i = 0; i < n * h; i++)
        test_set(t, in, i, 1);
    test_op(t, OP_DROPOUT, &p, in, in);
    for (size_t i = 0; i < n * h; i++)
        dropped += test_get(t, in, i) == 0;
    const double probability = p.dropout.dropout.probability, all = (double)(n * h);
    const double deviation = sqrt(all * probability * (1 - probability));
    assert_true(fabs(dropped - probability * all) < 5 * deviation);
}

OP_TEST(probability_0_keeps_all, 2)
{
    const struct operand in[] = {ELEMS(5, 40), ABSENT, make_tokens(t, 5)}, y = ELEMS(5, 40);
    const union op_params p = {0};
    test_op(t, OP_DROPOUT, &p, in, &y);
    assert_memory_equal(in[0].data, y.data, test_bytes(t, &y));
}

/* The op is its own backward. */
OP_TEST(gradients_are_differences_of_dropout, 4)
{
    const size_t n = 4, h = test_between(t, 1, 30);
    const union op_params p = random_params(t);
    struct forward f = {.op = OP_DROPOUT,
                        .params = &p,
                        .in = {ELEMS(n, h), ELEMS(h), make_tokens(t, n)},
                        .out = {ELEMS(n, h)},
                        .dout = {ELEMS(n, h)}};
    const struct operand in[] = {f.dout[0], ABSENT, f.in[2]}, dx = ELEMS(n, h);
    test_op(t, OP_DROPOUT, &p, in, &dx);
    test_forward_gradient(t, &f, 0, &dx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_are_scaled_or_dropped),
        cmocka_unit_test(a_part_of_the_columns_drops_the_same),
        cmocka_unit_test(as_many_are_dropped_as_are_to_be),
        cmocka_unit_test(probability_0_keeps_all),
        cmocka_unit_test(gradients_are_differences_of_dropout),
    };
    return cmocka_run_group_tests_name("dropout", tests, NULL, NULL);
}
