#include "kernels/cpu/ops/ops_testing.h"
#include "kernels/cpu/random.h"

static bool precedes(const struct op_test *t, const struct operand *logits, size_t a, size_t b)
{
    const double x = test_get(t, logits, a), y = test_get(t, logits, b);
    return x > y || (x == y && a < b);
}

/* Weights of one row's ids; 0 for excluded ones. Returns their sum. */
static double weights_of(const struct op_test *t, const union op_params *p,
                         const struct operand *logits, size_t row, double *weights)
{
    const size_t n = logits->shape[1], most = p->sample.top_k ? p->sample.top_k : n;
    double of_top_k = 0, before = 0, sum = 0;
    size_t order[300];
    for (size_t i = 0; i < n; i++) {
        size_t place = 0;
        for (size_t j = 0; j < n; j++)
            place += precedes(t, logits, row * n + j, row * n + i);
        order[place] = i;
        weights[i] = exp(test_get(t, logits, row * n + i) / p->sample.temperature);
    }
    for (size_t place = 0; place < n && place < most; place++)
        of_top_k += weights[order[place]];
    for (size_t place = 0; place < n; place++) {
        const size_t id = order[place];
        const bool kept = place == 0 || (place < most && before < p->sample.top_p * of_top_k);
        before += weights[id];
        weights[id] *= kept;
        sum += weights[id];
    }
    return sum;
}

OP_TEST(ids_are_drawn_by_their_weights, 30)
{
    const size_t n = test_between(t, 1, 20), num_ids = test_between(t, 1, 300);
    union op_params p = {.sample = {.temperature = 0.7, .top_p = 1, .seed = t->seed}};
    if (test_coin(t)) p.sample.top_k = (uint32_t)test_between(t, 1, 310);
    if (test_coin(t)) p.sample.top_p = 0.05 + 0.9 * fabs(test_uniform(t));
    const struct operand in[3] = {REALS(n, num_ids), INTS(1)}, out = INTS(n);
    for (size_t i = 0; i < n * num_ids; i++) /* with ties */
        test_set(t, in, i, (double)test_below(&t->seed, 40) / 8);
    test_set(t, in + 1, 0, 1000);
    test_op(t, OP_SAMPLE, &p, in, &out);
    for (size_t row = 0; row < n; row++) {
        double weights[300], reached = 0;
        const double sum = weights_of(t, &p, in, row, weights);
        const double target = random_uniform(p.sample.seed, 1000 + row) * sum;
        size_t id = 0;
        while ((reached += weights[id]) <= target)
            id++;
        assert_true(test_get(t, &out, row) == (double)id);
    }
}

OP_TEST(without_temperature_the_largest_is_taken, 4)
{
    const size_t n = test_between(t, 1, 9), num_ids = test_between(t, 1, 300);
    const union op_params p = {.sample = {.temperature = 0, .top_p = 1}};
    const struct operand in[3] = {REALS(n, num_ids), INTS(1)}, out = INTS(n);
    for (size_t i = 0; i < n * num_ids; i++)
        test_set(t, in, i, (double)test_below(&t->seed, 40));
    test_op(t, OP_SAMPLE, &p, in, &out);
    for (size_t row = 0; row < n; row++)
        for (size_t i = 0; i < num_ids; i++)
            assert_false(
                precedes(t, in, row * num_ids + i, row * num_ids + (size_t)test_get(t, &out, row)));
}

OP_TEST(what_is_masked_is_never_drawn, 4)
{
    const union op_params p = {.sample = {.temperature = 1, .top_p = 1, .seed = t->seed}};
    const struct operand in[3] = {REALS(50, 9), INTS(1)}, out = INTS(50);
    for (size_t i = 0; i < 50 * 9; i++)
        if (i % 9 != 4) test_set(t, in, i, -INFINITY);
    test_op(t, OP_SAMPLE, &p, in, &out);
    for (size_t i = 0; i < 50; i++)
        assert_true(test_get(t, &out, i) == 4);
}

OP_TEST(from_nan_and_infinity_nothing_is_drawn, 2)
{
    const union op_params p = {.sample = {.temperature = 1, .top_p = 1}};
    struct operand in[3] = {REALS(3, 9), INTS(1), INTS(1)}, out = INTS(3);
    test_set(t, in, 13, t->seed % 2 ? (double)NAN : INFINITY);
    test_op(t, OP_SAMPLE, &p, in, &out);
    for (size_t i = 0; i < 3; i++)
        assert_true((test_get(t, &out, i) < 0) == (i == 1));
    test_set(t, in + 2, 0, 1);
    test_op(t, OP_SAMPLE, &p, in, &out);
    for (size_t i = 0; i < 3; i++)
        assert_true(test_get(t, &out, i) == -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_drawn_by_their_weights),
        cmocka_unit_test(without_temperature_the_largest_is_taken),
        cmocka_unit_test(what_is_masked_is_never_drawn),
        cmocka_unit_test(from_nan_and_infinity_nothing_is_drawn),
    };
    return cmocka_run_group_tests_name("sample", tests, NULL, NULL);
}
