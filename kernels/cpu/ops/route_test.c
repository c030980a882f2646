#include "kernels/cpu/ops/gradient_testing.h"

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

/* Rank of i in [0, n): larger ones precede it, and equal ones of
 * lower index. */
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

/* A token's experts and their weights. */
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

/* Operands of route_backward, from route's results. */
struct backward {
    union op_params p;
    struct operand in[5], out[1], weights;
};

/* Tokens of sequences, the first possibly begun before. Returns
 * their number. */
static size_t random_sequences(struct op_test *t, union op_params *p, size_t num_tokens)
{
    if (test_coin(t)) return 1;
    p->route.sequence_length = test_between(t, 1, num_tokens);
    p->route.first_token = test_between(t, 0, 2 * p->route.sequence_length);
    return (size_t)((p->route.first_token + num_tokens - 1) / p->route.sequence_length) + 1;
}

/* Index of the counts of a token's sequence. */
static size_t counts_of(const union op_params *p, size_t token, size_t num_experts)
{
    if (!p->route.sequence_length) return 0;
    return (size_t)((p->route.first_token + token) / p->route.sequence_length) * num_experts;
}

/* Counts of sequences, each below `most`; or shares of all tokens. */
static struct operand random_counts(struct op_test *t, union op_params *p, size_t num_tokens,
                                    size_t num_experts, uint64_t most)
{
    p->route.of_share = test_coin(t);
    const struct operand counts =
        INTS(p->route.of_share ? 1 : random_sequences(t, p, num_tokens), num_experts);
    for (size_t e = 0; e < test_count(&counts); e++)
        test_set(t, &counts, e, (double)test_below(&t->seed, most));
    if (p->route.of_share) test_set(t, &counts, 0, 1);
    return counts;
}

/* Count of an expert for a token's sequence, or its share. */
static double weight_of_count(const struct op_test *t, const union op_params *p,
                              const struct operand *counts, size_t token, size_t expert)
{
    const size_t num_experts = counts->shape[1];
    double sum = 0;
    for (size_t e = 0; e < num_experts; e++)
        sum += test_get(t, counts, e);
    return test_get(t, counts, counts_of(p, token, num_experts) + expert) /
           (p->route.of_share ? sum : 1);
}

/* A token's logits are far apart: small changes do not change the choice. */
static struct backward backward_of(struct op_test *t, size_t n, size_t num_experts)
{
    struct backward b = {.p = random_params(t, num_experts)};
    b.p.route.num_groups = b.p.route.topk_groups = 1;
    b.p.route.balance = 0.75;
    b.p.route.z = test_coin(t) ? 0.5 : 0;
    b.in[0] = REALS(n, num_experts);
    for (size_t i = 0; i < n * num_experts; i++) {
        const size_t step = (i + i / num_experts * 7) % num_experts;
        const double place = (double)step + 0.5 * test_uniform(t);
        test_set(t, b.in, i, 4 * place / (double)num_experts - 2);
    }
    b.in[1] = INTS(n, b.p.route.topk), b.in[2] = REALS(n, b.p.route.topk);
    b.out[0] = ELEMS(n, num_experts), b.weights = REALS(n, b.p.route.topk);
    if (test_coin(t)) b.in[3] = random_counts(t, &b.p, n, num_experts, 9);
    if (test_coin(t)) b.in[4] = REALS(1);
    const struct operand in[] = {b.in[0], ABSENT}, out[] = {b.weights, b.in[1]};
    test_op(t, OP_ROUTE, &b.p, in, out);
    return b;
}

/* Slope of v of chosen expert `chosen` by the logit of expert e. softmax: over
 * all experts or the chosen ones, 0 for others. */
static double slope_of_score(const union op_params *p, const double *softmax, double score,
                             size_t chosen, size_t e)
{
    if (p->route.sigmoid) return chosen == e ? score * (1 - score) : 0;
    return softmax[chosen] * ((chosen == e ? 1 : 0) - softmax[e]);
}

struct token {
    double all[MAX_EXPERTS];  /* softmax over all experts */
    double z;                 /* logsumexp */
    double some[MAX_EXPERTS]; /* softmax over the experts that get weights */
    double v[MAX_EXPERTS];    /* of the chosen ones, before normalizing */
    double divisor;           /* of v; 1 without normalizing */
    size_t experts[MAX_EXPERTS];
};

/* Slope of chosen weight j by v of i. */
static double slope_of_weight(const union op_params *p, const struct token *x, size_t j, size_t i)
{
    const double own = j == i ? 1 : 0, others = x->v[j] / x->divisor;
    return p->route.scaling / x->divisor * (own - (p->route.normalize ? others : 0));
}

static struct token token_of(const struct op_test *t, const struct backward *b, size_t i)
{
    struct token x = {.divisor = b->p.route.normalize ? 1e-20 : 1};
    const size_t num_experts = b->in[0].shape[1], topk = b->p.route.topk;
    double sum = 0;
    for (size_t e = 0; e < num_experts; e++)
        x.all[e] = test_get(t, b->in, i * num_experts + e);
    for (size_t e = 0; e < num_experts; e++)
        x.z += exp(x.all[e]);
    x.z = log(x.z);
    softmax(x.all, num_experts);
    for (size_t j = 0; j < topk; j++) {
        x.experts[j] = (size_t)test_get(t, b->in + 1, i * topk + j);
        sum += x.all[x.experts[j]];
    }
    for (size_t e = 0; !b->p.route.after_choice && e < num_experts; e++)
        x.some[e] = x.all[e];
    for (size_t j = 0; b->p.route.after_choice && j < topk; j++)
        x.some[x.experts[j]] = x.all[x.experts[j]] / sum;
    for (size_t j = 0; j < topk; j++) {
        const double logit = test_get(t, b->in, i * num_experts + x.experts[j]);
        x.v[j] = b->p.route.sigmoid ? 1 / (1 + exp(-logit)) : x.some[x.experts[j]];
        x.divisor += b->p.route.normalize ? x.v[j] : 0;
    }
    return x;
}

/* Probabilities in balance losses. */
static void probabilities(const struct op_test *t, const union op_params *p,
                          const struct operand *logits, size_t token, double *x)
{
    const size_t num_experts = logits->shape[1];
    double sum = 0;
    for (size_t e = 0; e < num_experts; e++)
        x[e] = test_get(t, logits, token * num_experts + e);
    if (!p->route.sigmoid) {
        softmax(x, num_experts);
        return;
    }
    for (size_t e = 0; e < num_experts; e++)
        sum += x[e] = 1 / (1 + exp(-x[e]));
    for (size_t e = 0; e < num_experts; e++)
        x[e] /= sum;
}

/* Slope of the probability of expert `of` by the logit of expert e. */
static double slope_of_probability(const struct op_test *t, const struct backward *b, size_t token,
                                   const double *x, size_t of, size_t e)
{
    const double logit = test_get(t, b->in, token * b->in[0].shape[1] + e);
    const double slope = b->p.route.sigmoid ? 1 - 1 / (1 + exp(-logit)) : 1;
    return slope * x[e] * ((of == e ? 1 : 0) - x[of]);
}

static void check_token(struct op_test *t, const struct backward *b, size_t i)
{
    const size_t num_experts = b->in[0].shape[1], topk = b->p.route.topk;
    const struct token x = token_of(t, b, i);
    const double scale = b->in[4].data ? test_get(t, b->in + 4, 0) : 1;
    double balanced[MAX_EXPERTS];
    probabilities(t, &b->p, b->in, i, balanced);
    for (size_t e = 0; e < num_experts; e++) {
        double sum = b->p.route.z * scale * 2 * x.z * x.all[e], size = fabs(sum);
        for (size_t n = 0; n < topk * topk; n++) {
            const double dw = test_get(t, b->in + 2, i * topk + n / topk), v = x.v[n % topk];
            sum += dw * slope_of_weight(&b->p, &x, n / topk, n % topk) *
                   slope_of_score(&b->p, x.some, v, x.experts[n % topk], e);
            size += fabs(dw) * b->p.route.scaling / x.divisor * v;
        }
        for (size_t other = 0; b->in[3].data && other < num_experts; other++) {
            const double part = b->p.route.balance * scale *
                                weight_of_count(t, &b->p, b->in + 3, i, other) *
                                slope_of_probability(t, b, i, balanced, other, e);
            sum += part;
            size += fabs(part);
        }
        test_near(t, b->out, i * num_experts + e, sum, size);
    }
}

struct losses {
    struct forward route, balance, z;
};

static double all_losses(struct op_test *t, void *context)
{
    struct losses *l = context;
    return forward_loss(t, &l->route) + forward_loss(t, &l->z) +
           (l->balance.in[1].data ? forward_loss(t, &l->balance) : 0);
}

OP_TEST(gradients_of_weights_and_losses, 60)
{
    const size_t n = test_between(t, 1, 12);
    const struct backward b = backward_of(t, n, 4 * test_between(t, 1, 16));
    test_op(t, OP_ROUTE_BACKWARD, &b.p, b.in, b.out);
    for (size_t i = 0; i < n; i++)
        check_token(t, &b, i);
    struct losses l = {.route = {.op = OP_ROUTE, .params = &b.p, .in = {b.in[0]}},
                       .balance = {.op = OP_BALANCE_LOSS, .params = &b.p, .in = {b.in[0]}},
                       .z = {.op = OP_Z_LOSS, .params = &b.p, .in = {b.in[0]}}};
    l.route.out[0] = b.weights, l.route.out[1] = test_copy(t, b.in + 1), l.route.dout[0] = b.in[2];
    l.balance.in[1] = b.in[3], l.balance.out[0] = REALS(1), l.balance.dout[0] = REALS(1);
    test_set(t, l.balance.dout, 0, b.in[4].data ? test_get(t, b.in + 4, 0) : 1);
    l.z.out[0] = REALS(1), l.z.dout[0] = l.balance.dout[0];
    test_gradient(t, all_losses, &l, b.in, b.out);
}

OP_TEST(balance_is_lost_over_all_tokens, 20)
{
    const size_t n = test_between(t, 1, 700), num_experts = test_between(t, 1, 40);
    union op_params p = {.route = {.balance = 0.01, .sigmoid = test_coin(t)}};
    struct operand loss = REALS(1), before;
    const struct operand in[] = {REALS(n, num_experts), random_counts(t, &p, n, num_experts, 50),
                                 test_sum(t, &loss, &before)};
    double want = 0;
    for (size_t i = 0; i < n; i++) {
        double x[MAX_EXPERTS];
        probabilities(t, &p, in, i, x);
        for (size_t e = 0; e < num_experts; e++)
            want += p.route.balance * x[e] * weight_of_count(t, &p, in + 1, i, e);
    }
    test_op(t, OP_BALANCE_LOSS, &p, in, &loss);
    test_near(t, &loss, 0, want + test_get(t, &before, 0), want);
}

OP_TEST(z_is_lost_over_all_tokens, 10)
{
    const size_t n = test_between(t, 1, 700), num_experts = test_between(t, 1, 40);
    const union op_params p = {.route = {.z = 0.01}};
    struct operand loss = REALS(1), before;
    const struct operand in[] = {REALS(n, num_experts), test_sum(t, &loss, &before)};
    double want = 0;
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (size_t e = 0; e < num_experts; e++)
            sum += exp(test_get(t, in, i * num_experts + e));
        want += p.route.z * log(sum) * log(sum);
    }
    test_op(t, OP_Z_LOSS, &p, in, &loss);
    test_near(t, &loss, 0, want + test_get(t, &before, 0), want);
}

/* Large logits must not overflow exponentials. */
OP_TEST(z_of_large_logits, 1)
{
    const union op_params p = {.route = {.z = 1}};
    const struct operand in[] = {REALS(1, 2), ABSENT}, loss = REALS(1);
    test_set(t, in, 0, 1000);
    test_set(t, in, 1, -1000);
    test_op(t, OP_Z_LOSS, &p, in, &loss);
    test_near(t, &loss, 0, 1e6, 0);
}

OP_TEST(tokens_of_experts_are_counted_by_sequence, 20)
{
    const size_t n = test_between(t, 1, 60), num_experts = test_between(t, 3, 40);
    union op_params p = {.route = {.topk = (uint32_t)test_between(t, 1, 3)}};
    const struct operand experts = INTS(n, p.route.topk);
    struct operand counts = INTS(random_sequences(t, &p, n), num_experts), want;
    for (size_t i = 0; i < n * p.route.topk; i++)
        test_set(t, &experts, i, (double)test_below(&t->seed, num_experts));
    for (size_t i = 0; i < test_count(&counts); i++)
        test_set(t, &counts, i, (double)test_below(&t->seed, 50));
    const struct operand in[] = {experts, test_sum(t, &counts, &want)};
    for (size_t i = 0; i < n * p.route.topk; i++) {
        const size_t at =
            counts_of(&p, i / p.route.topk, num_experts) + (size_t)test_get(t, &experts, i);
        test_set(t, &want, at, test_get(t, &want, at) + 1);
    }
    test_op(t, OP_COUNT_EXPERTS, &p, in, &counts);
    for (size_t i = 0; i < test_count(&counts); i++)
        assert_true(test_get(t, &counts, i) == test_get(t, &want, i));
}

/* Three experts have the mean. */
OP_TEST(bias_of_experts_moves_towards_the_mean, 10)
{
    static const double all[] = {3, 5, 0, 3, 4, 3}, signs[] = {0, -1, 1, 0, -1, 0};
    const union op_params p = {.expert_bias = {.rate = 0.125}};
    const struct operand in[] = {INTS(1, 6), REALS(6)};
    struct operand new = REALS(6);
    for (size_t e = 0; e < 6; e++)
        test_set(t, &in[0], e, all[e]);
    test_op(t, OP_UPDATE_EXPERT_BIAS, &p, in, &new);
    for (size_t e = 0; e < 6; e++)
        test_near(t, &new, e, test_get(t, &in[1], e) + 0.125 * signs[e], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_go_to_their_best_experts),
        cmocka_unit_test(of_equals_the_lower_number_comes_first),
        cmocka_unit_test(nan_is_chosen_and_seen),
        cmocka_unit_test(gradients_of_weights_and_losses),
        cmocka_unit_test(balance_is_lost_over_all_tokens),
        cmocka_unit_test(z_is_lost_over_all_tokens),
        cmocka_unit_test(z_of_large_logits),
        cmocka_unit_test(tokens_of_experts_are_counted_by_sequence),
        cmocka_unit_test(bias_of_experts_moves_towards_the_mean),
    };
    return cmocka_run_group_tests_name("route", tests, NULL, NULL);
}
