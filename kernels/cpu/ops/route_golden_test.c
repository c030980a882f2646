/* Routers against Megatron-LM's TopKRouter: weights, losses and gradients
 * of tests/golden/route. */
#include "common/json.h"
#include "kernels/cpu/ops/ops_testing.h"

#define GOLDEN "tests/golden/route/routers.json"

struct golden {
    cJSON *file;
    size_t sequences, length, num_experts, tokens;
    double scale;
};

static double number(const cJSON *object, const char *name, double otherwise)
{
    double x;
    return json_as_double(json_get(object, name), &x) ? x : otherwise;
}

static bool says(const cJSON *options, const char *name, const char *text)
{
    const char *said = json_as_text(json_get(options, name));
    return said && strcmp(said, text) == 0;
}

static struct golden golden_read(void)
{
    struct error err;
    struct golden g;
    assert_ok(json_read_file(GOLDEN, 1 << 20, JSON_STRICT, &g.file, &err));
    g.sequences = (size_t)number(g.file, "sequences", 0);
    g.length = (size_t)number(g.file, "length", 0);
    g.num_experts = (size_t)number(g.file, "experts", 0);
    g.tokens = g.sequences * g.length;
    g.scale = number(g.file, "scale", 0);
    return g;
}

/* The `count` numbers of a list, as an array. */
static const double *list(struct op_test *t, const cJSON *c, const char *name, size_t count)
{
    const cJSON *item = json_get(c, name)->child;
    double *x = test_alloc(t, count * sizeof *x);
    for (size_t i = 0; i < count; i++, item = item->next)
        assert_true(item && json_as_double(item, &x[i]));
    assert_null(item);
    return x;
}

static struct operand reals(struct op_test *t, const double *x, size_t rows, size_t columns)
{
    const struct operand o = columns ? REALS(rows, columns) : REALS(rows);
    for (size_t i = 0; i < test_count(&o); i++)
        test_set(t, &o, i, x[i]);
    return o;
}

/* Factors of losses are those of the coefficients. */
static union op_params params_of(const struct golden *g, const cJSON *options)
{
    const bool by_sequence = says(options, "moe_router_load_balancing_type", "seq_aux_loss");
    union op_params p = {.route = {.num_groups = 1, .topk_groups = 1}};
    p.route.topk = (uint32_t)number(options, "moe_router_topk", 0);
    p.route.scaling = number(options, "moe_router_topk_scaling_factor", 1);
    p.route.sigmoid = says(options, "moe_router_score_function", "sigmoid");
    p.route.normalize = p.route.sigmoid && p.route.topk > 1;
    p.route.after_choice =
        !p.route.sigmoid && !cJSON_IsTrue(json_get(options, "moe_router_pre_softmax"));
    p.route.sequence_length = by_sequence ? g->length : 0;
    p.route.balance = number(options, "moe_aux_loss_coeff", 0) * (double)g->num_experts /
                      (double)(p.route.topk * g->tokens * (by_sequence ? g->length : g->tokens));
    p.route.z = number(options, "moe_z_loss_coeff", 0) / (double)g->tokens;
    return p;
}

/* Checks the chosen experts' weights; dweights become those of the choice. */
static void check_choice(struct op_test *t, const struct golden *g, const cJSON *c,
                         const struct operand *weights, const struct operand *experts,
                         struct operand *dweights)
{
    const size_t n = g->num_experts, topk = experts->shape[1], all = g->tokens * n;
    const double *want = list(t, c, "weights", all), *chosen = list(t, c, "chosen", all),
                 *gradient = list(t, c, "dweights", all);
    *dweights = REALS(g->tokens, topk);
    for (size_t i = 0; i < g->tokens * topk; i++) {
        const size_t at = i / topk * n + (size_t)test_get(t, experts, i);
        assert_true(chosen[at] > 0);
        test_near(t, weights, i, want[at], 1);
        test_set(t, dweights, i, gradient[at]);
    }
}

/* The loss without its coefficient. */
static void check_loss(struct op_test *t, enum op op, union op_params p, const struct operand *in,
                       double want)
{
    const struct operand loss = REALS(1);
    test_op(t, op, &p, in, &loss);
    test_near(t, &loss, 0, want, 1);
}

static void check_losses(struct op_test *t, const cJSON *c, union op_params p,
                         const struct operand *logits, const struct operand *counts)
{
    const cJSON *options = json_get(c, "options"), *losses = json_get(c, "losses");
    const struct operand balance_in[] = {*logits, *counts, ABSENT}, z_in[] = {*logits, ABSENT};
    const char *name = p.route.sequence_length ? "seq_load_balancing_loss" : "load_balancing_loss";
    if (p.route.balance > 0) p.route.balance /= number(options, "moe_aux_loss_coeff", 0);
    if (p.route.z > 0) p.route.z /= number(options, "moe_z_loss_coeff", 0);
    if (p.route.balance > 0)
        check_loss(t, OP_BALANCE_LOSS, p, balance_in, number(losses, name, NAN));
    if (p.route.z > 0) check_loss(t, OP_Z_LOSS, p, z_in, number(losses, "z_loss", NAN));
}

static void check_case(struct op_test *t, const struct golden *g, const cJSON *c)
{
    const size_t n = g->num_experts, all = g->tokens * n;
    const union op_params p = params_of(g, json_get(c, "options"));
    const bool biased = cJSON_IsArray(json_get(c, "expert_bias"));
    struct operand in[] = {reals(t, list(t, c, "logits", all), g->tokens, n), ABSENT}, dweights;
    const struct operand out[] = {REALS(g->tokens, p.route.topk), INTS(g->tokens, p.route.topk)};
    const struct operand counts = INTS(p.route.sequence_length ? g->sequences : 1, n);
    if (biased) in[1] = reals(t, list(t, c, "expert_bias", n), n, 0);
    test_op(t, OP_ROUTE, &p, in, out);
    check_choice(t, g, c, &out[0], &out[1], &dweights);

    /* Losses count the choice without the bias. */
    const struct operand plain[] = {in[0], ABSENT};
    const struct operand plain_out[] = {REALS(g->tokens, p.route.topk),
                                        INTS(g->tokens, p.route.topk)};
    const struct operand count_in[] = {plain_out[1], ABSENT};
    test_op(t, OP_ROUTE, &p, plain, plain_out);
    test_op(t, OP_COUNT_EXPERTS, &p, count_in, &counts);
    check_losses(t, c, p, &in[0], &counts);

    const double *want = list(t, c, "dlogits", all);
    const struct operand dlogits = ELEMS(g->tokens, n), scale = reals(t, &g->scale, 1, 0);
    const struct operand back[] = {in[0], out[1], dweights, p.route.balance > 0 ? counts : ABSENT,
                                   scale};
    test_op(t, OP_ROUTE_BACKWARD, &p, back, &dlogits);
    for (size_t i = 0; i < all; i++)
        test_near(t, &dlogits, i, want[i], 1);
}

OP_TEST(routers_are_those_of_megatron, 1)
{
    const struct golden g = golden_read();
    size_t n = 0;
    for (const cJSON *c = json_get(g.file, "cases")->child; c; c = c->next, n++)
        check_case(t, &g, c);
    assert_int_equal(n, 8);
    cJSON_Delete(g.file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routers_are_those_of_megatron),
    };
    return cmocka_run_group_tests_name("route_golden", tests, NULL, NULL);
}
