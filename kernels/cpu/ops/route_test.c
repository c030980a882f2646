#include "kernels/cpu/ops/ops_testing.h"

enum { MAX_EXPERTS = 64 };

static union op_params random_params(struct op_test *t, size_t num_experts)
{
    union op_params p = {.route = {.scaling = 2.5, .num_groups = 1, .topk_groups = 1}};
    p.route.sigmoid = test_coin(t);
    p.route.after_choice = !p.route.sigmoid && test_coin(t);
    p.route.normalize = test_coin(t);
    if (test_coin(t)) p.route.num_groups = 4, p.route.topk_groups = 2;
    p.route.topk =
        (uint32_t)test_between(t, 1, num_experts / p.route.num_groups * p.route.topk_groups);
    return p;
}

static void softmax(double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] = exp(x[i]);
    for (size_t i = 0; i < n; i++)
        x[i] /= sum;
}

/* How many of [0, n) come before i: larger ones, and equal ones before it. */
static size_t place_of(const double *x, size_t n, size_t i)
{
    size_t place = 0;
    for (size_t j = 0; j < n; j++)
        place += x[j] > x[i] || (x[j] == x[i] && j < i);
    return place;
}

static double two_best(const double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        if (place_of(x, n, i) < 2) sum += x[i];
    return sum;
}

static void leave_best_groups(const union op_params *p, double *choice, size_t num_experts)
{
    double groups[4];
    const size_t num_groups = p->route.num_groups, size = num_experts / num_groups;
    for (size_t g = 0; g < num_groups; g++)
        groups[g] = two_best(choice + g * size, size);
    for (size_t e = 0; e < num_experts; e++)
        if (place_of(groups, num_groups, e / size) >= p->route.topk_groups) choice[e] = -INFINITY;
}

/* Which experts a token gets, and with which weights. */
static void formula(const struct op_test *t, const union op_params *p, const struct operand *in,
                    size_t token, size_t *experts, double *weights)
{
    const size_t num_experts = in[0].shape[1], topk = p->route.topk;
    double scores[MAX_EXPERTS], choice[MAX_EXPERTS], sum = 0;
    for (size_t e = 0; e < num_experts; e++) {
        scores[e] = test_get(t, in, token * num_experts + e);
        if (p->route.sigmoid) scores[e] = 1 / (1 + exp(-scores[e]));
    }
    if (!p->route.sigmoid && !p->route.after_choice) softmax(scores, num_experts);
    for (size_t e = 0; e < num_experts; e++)
        choice[e] = scores[e] + (in[1].data ? test_get(t, in + 1, e) : 0);
    if (p->route.num_groups > 1) leave_best_groups(p, choice, num_experts);
    for (size_t e = 0; e < num_experts; e++) {
        const size_t place = place_of(choice, num_experts, e);
        if (place < topk) experts[place] = e, weights[place] = scores[e];
    }
    if (p->route.after_choice) softmax(weights, topk);
    for (size_t j = 0; j < topk; j++)
        sum += weights[j];
    for (size_t j = 0; j < topk; j++)
        weights[j] *= p->route.scaling / (p->route.normalize ? sum + 1e-20 : 1);
}

static void check_tokens(const struct op_test *t, const union op_params *p,
                         const struct operand *in, const struct operand *out)
{
    for (size_t i = 0; i < in[0].shape[0]; i++) {
        size_t experts[MAX_EXPERTS];
        double weights[MAX_EXPERTS];
        formula(t, p, in, i, experts, weights);
        for (size_t j = 0; j < p->route.topk; j++) {
            assert_true(test_get(t, out + 1, i * p->route.topk + j) == (double)experts[j]);
            test_near(t, out, i * p->route.topk + j, weights[j], 1);
        }
    }
}

OP_TEST(tokens_go_to_their_best_experts, 25)
{
    const size_t n = test_between(t, 1, 60), num_experts = 4 * test_between(t, 1, 16);
    const union op_params p = random_params(t, num_experts);
    struct operand in[] = {REALS(n, num_experts), test_coin(t) ? REALS(num_experts) : ABSENT};
    const struct operand out[] = {REALS(n, p.route.topk), INTS(n, p.route.topk)};
    test_op(t, OP_ROUTE, &p, in, out);
    check_tokens(t, &p, in, out);
}

OP_TEST(of_equals_the_lower_number_comes_first, 1)
{
    const union op_params p = {.route = {.topk = 3, .num_groups = 1, .scaling = 1}};
    const struct operand in[] = {REALS(1, 8), ABSENT}, out[] = {REALS(1, 3), INTS(1, 3)};
    for (size_t e = 0; e < 8; e++)
        test_set(t, in, e, e == 5 ? 1 : 0.25);
    test_op(t, OP_ROUTE, &p, in, out);
    check_tokens(t, &p, in, out);
}

OP_TEST(nan_is_chosen_and_seen, 6)
{
    union op_params p = random_params(t, 8);
    const struct operand in[] = {REALS(1, 8), ABSENT};
    const struct operand out[] = {REALS(1, p.route.topk), INTS(1, p.route.topk)};
    bool seen = false, chosen[8] = {false};
    test_set(t, in, 6, (double)NAN);
    test_op(t, OP_ROUTE, &p, in, out);
    for (size_t j = 0; j < p.route.topk; j++) {
        const size_t e = (size_t)test_get(t, out + 1, j);
        assert_true(e < 8 && !chosen[e]);
        chosen[e] = true;
        seen |= isnan(test_get(t, out, j));
    }
    assert_true(seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_go_to_their_best_experts),
        cmocka_unit_test(of_equals_the_lower_number_comes_first),
        cmocka_unit_test(nan_is_chosen_and_seen),
    };
    return cmocka_run_group_tests_name("route", tests, NULL, NULL);
}
