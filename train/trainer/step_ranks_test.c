/* Steps of several ranks beside those of one, in f64: losses, norms, and every
 * weight afterwards. And those of ranks that shard their states beside those of
 * ranks that do not, bit for bit. */
#include <stdlib.h>

#include "common/count.h"
#include "train/trainer/testing_reference.h"

enum { SEQUENCES = 6, LENGTH = 11, STEPS = 3, MICRO_BATCHES = 4 };

/* ---- what one rank computes ---- */

struct stream {
    struct test_session *s;
    struct test_tokens tokens;
    uint64_t first; /* micro-batch of the step */
};

/* The number of ranks whose balancing losses are averaged; a global loss is a
 * single one. */
static double balancing_ranks(const struct test_session *s)
{
    return s->step.options.training.balance_is_global ? 1 : s->model.groups.sizes.dp;
}

static enum status next_batch(void *context, uint64_t number, struct micro_batch *b,
                              struct error *ignored)
{
    struct stream *x = context;
    const double weight = 1.0 / (SEQUENCES * LENGTH * MICRO_BATCHES);
    (void)ignored;
    *b = (struct micro_batch){.batch = test_tokens_make(&x->tokens, x->s, SEQUENCES,
                                                        (x->first + number) * SEQUENCES, weight),
                              .loss_scale = 1,
                              .router_scale = 1.0 / (MICRO_BATCHES * balancing_ranks(x->s))};
    return OK;
}

static enum status run_steps(struct test_session *s, struct step_result results[STEPS])
{
    for (unsigned step = 0; step < STEPS; step++) {
        const struct step_control c = {
            .lr = 1e-2, .weight_decay = 0.1, .update = step + 1, .factor = 1, .clip = 0.5};
        struct stream x = {.s = s, .first = step * MICRO_BATCHES};
        TRY(step_run(&s->step, MICRO_BATCHES, false, next_batch, &x, &err));
        TRY(step_update(&s->step, &c, &err));
        TRY(step_wait(&s->step, &results[step], &err));
    }
    return OK;
}

/* Buffers are in no folder, and begin as 0. */
static void check_buffers_moved(const struct test_session *s)
{
    const struct parameters *p = &s->model.parameters;
    for (size_t i = 0; i < p->count; i++) {
        const struct parameter *x = &p->items[i];
        bool moved = !x->spec || !x->spec->buffer;
        for (uint64_t e = 0; e < x->numel && !moved; e++)
            moved = test_get(&s->step, VALUE_PARAMETER, test_first(&s->step, x) + e) != 0;
        assert_true(moved);
    }
}

/* The model with the folder's weights. change: of its config, or NULL. */
static enum status start_session(struct test_session *s, const struct model_options *options,
                                 const struct step_options *o, test_change *change)
{
    struct model_options own = *options;
    own.config = &s->config;
    if (change) change(&s->config);
    return test_session_start(s, &own, o, true);
}

static void make_reference(struct reference *r, const char *model, const struct step_options *o,
                           test_change *change)
{
    const struct model_options one_rank = {.elem = ELEM_F64};
    struct test_session s;
    r->count = 0;
    test_session_read(&s, model);
    assert_ok(comm_local_open(&s.comm, 1, &err));
    assert_ok(start_session(&s, &one_rank, o, change));
    assert_ok(run_steps(&s, r->results));
    reference_keep(r, &s);
    check_buffers_moved(&s);
    test_session_close(&s);
    assert_true(r->results[0].loss != r->results[STEPS - 1].loss);
}

/* ---- the comparison ---- */

/* Elements of rows that fill up the vocabulary, whose gradients are 0. */
static uint64_t padding_of(const struct model_config *c, uint64_t tp)
{
    const uint64_t rows = padded_vocab_size(c->vocab_size, 8, tp) - c->vocab_size;
    return rows * c->hidden_size * (c->untie_embeddings_and_output_weights ? 2 : 1);
}

/* Gradients of keys' biases are 0 but for rounding, and some are 0 by it. */
static bool same_zeros(uint64_t got, uint64_t want)
{
    return got + 8 >= want && got <= want + 8;
}

/* The losses of routers are means of each data parallel rank's tokens, or
 * sequences. */
static bool same_router_losses(const struct test_session *s, const struct step_result *got,
                               const struct step_result *want)
{
    return near(got->balance, want->balance * balancing_ranks(s)) &&
           near(got->z_loss, want->z_loss * s->model.groups.sizes.dp);
}

static enum status compare_results(const struct test_session *s, const struct step_result *got,
                                   const struct step_result *want)
{
    const struct model_config *c = &s->opened.checkpoint.config;
    const uint64_t more = padding_of(c, s->model.groups.sizes.tp) - padding_of(c, 1);
    for (unsigned i = 0; i < STEPS; i++) {
        if (!same_router_losses(s, &got[i], &want[i]))
            return fail(&err, DIFFERENT,
                        "step %u: losses of routers %.15g and %.15g; of one rank: %.15g, %.15g",
                        i + 1, got[i].balance, got[i].z_loss, want[i].balance, want[i].z_loss);
        if (!same_zeros(got[i].num_zeros, want[i].num_zeros + more))
            return fail(&err, DIFFERENT, "step %u: %lu zeros; of one rank: %lu", i + 1,
                        (unsigned long)got[i].num_zeros, (unsigned long)want[i].num_zeros);
    }
    return compare_steps(got, want, STEPS);
}

/* ---- sharded states ---- */

/* Results of a rank with unsharded states. */
struct unsharded {
    struct step_result results[STEPS];
    void *weights; /* the whole region, on the heap */
    uint64_t bytes, state_bytes;
};

/* A class of values that the step has. */
static enum value_class state_of(const struct test_session *s)
{
    return step_has_masters(&s->step) ? VALUE_MASTER : VALUE_MOMENT_2;
}

static void keep_unsharded(struct unsharded *u, const struct test_session *s)
{
    u->bytes = s->step.region_bytes[VALUE_PARAMETER];
    u->state_bytes = s->step.region_bytes[state_of(s)];
    u->weights = malloc(u->bytes);
    memcpy(u->weights, s->step.regions[VALUE_PARAMETER], u->bytes);
}

/* Where experts have as many data parallel ranks as other parameters, a state
 * is as large on each. */
static enum status compare_state_bytes(const struct unsharded *u, const struct test_session *s)
{
    const struct groups *g = &s->model.groups;
    const uint64_t dp = g->of[GROUP_DP].size, edp = g->of[GROUP_EDP].size;
    const uint64_t want = u->state_bytes / dp, got = s->step.region_bytes[state_of(s)];
    const bool is_even = dp == edp || !s->model.config.num_experts;
    if (is_even ? got == want : got < u->state_bytes) return OK;
    return fail(&err, DIFFERENT, "a state of %lu bytes, DP%lu EDP%lu, all together %lu",
                (unsigned long)got, (unsigned long)dp, (unsigned long)edp,
                (unsigned long)u->state_bytes);
}

static enum status compare_bits(const struct unsharded *u, const struct test_session *s,
                                const struct step_result *results)
{
    TRY(compare_state_bytes(u, s));
    for (unsigned i = 0; i < STEPS; i++) {
        const struct step_result *a = &results[i], *b = &u->results[i];
        if (a->loss != b->loss || a->grad_norm != b->grad_norm ||
            a->params_norm != b->params_norm || a->num_zeros != b->num_zeros)
            return fail(&err, DIFFERENT,
                        "step %u, sharded: loss %.17g, norm %.17g, of parameters %.17g; not "
                        "sharded: %.17g, %.17g, %.17g",
                        i + 1, a->loss, a->grad_norm, a->params_norm, b->loss, b->grad_norm,
                        b->params_norm);
    }
    if (memcmp(u->weights, s->step.regions[VALUE_PARAMETER], u->bytes) == 0) return OK;
    return fail(&err, DIFFERENT, "sharded: other weights");
}

/* The same steps again, with sharded states. */
static enum status train_sharded(struct test_session *s, const struct step_options *o,
                                 struct unsharded *u)
{
    struct step_options sharded = *o;
    struct step_result results[STEPS];
    const struct groups *g = &s->model.groups;
    if (g->of[GROUP_DP].size == 1 && g->of[GROUP_EDP].size == 1) return OK;
    keep_unsharded(u, s);
    sharded.shards_states = true;
    step_release(&s->step);
    enum status st = test_step_start(s, &sharded, true);
    if (!st) st = run_steps(s, results);
    if (!st) st = compare_bits(u, s, results);
    free(u->weights);
    return st;
}

/* ---- both ---- */

/* r: NULL where numbers are rounded. */
static enum status train_ranks(struct reference *r, const char *model, const struct step_options *o,
                               const struct model_options *options, test_change *change)
{
    const struct group_sizes sizes = model_group_sizes(options);
    struct unsharded u;
    struct test_session s;
    test_session_read(&s, model);
    assert_ok(comm_local_open(&s.comm, groups_world_size(&sizes), &err));
    enum status st = start_session(&s, options, o, change);
    if (!st) st = run_steps(&s, u.results);
    if (!st && r) st = compare_results(&s, u.results, r->results);
    if (!st && r) st = reference_compare(r, &s);
    if (!st) st = train_sharded(&s, o, &u);
    return test_session_end(&s, st);
}

/* ---- layouts ---- */

struct layout_case {
    const char *name;
    struct layout_options layout;
    bool sequence_parallel;
};

/* 6 sequences of 11 tokens: on two ranks a part of the tokens begins within a
 * sequence, and four data parallel ranks are filled up. */
static const struct layout_case dense[] = {
    {.name = "tp2", .layout = {.tp = 2}},
    {.name = "tp2 sp", .layout = {.tp = 2}, .sequence_parallel = true},
    {.name = "dp2", .layout = {.dp = 2}},
    {.name = "dp4", .layout = {.dp = 4}},
    {.name = "tp2 dp2", .layout = {.tp = 2, .dp = 2}},
    {.name = "tp2 sp dp2", .layout = {.tp = 2, .dp = 2}, .sequence_parallel = true},
    {.name = "tp2 sp dp4", .layout = {.tp = 2, .dp = 4}, .sequence_parallel = true},
    {.name = "pp2", .layout = {.pp = 2, .first_layers = 1}},
    {.name = "pp2 dp2", .layout = {.pp = 2, .dp = 2, .first_layers = 1}},
    {.name = "tp2 pp2", .layout = {.tp = 2, .pp = 2, .first_layers = 1}},
    {.name = "tp2 sp pp2 dp2",
     .layout = {.tp = 2, .pp = 2, .dp = 2, .first_layers = 1},
     .sequence_parallel = true},
};

static const struct layout_case of_four_groups[] = {
    {.name = "tp4", .layout = {.tp = 4}},
    {.name = "tp4 sp", .layout = {.tp = 4}, .sequence_parallel = true},
    {.name = "tp4 sp dp2", .layout = {.tp = 4, .dp = 2}, .sequence_parallel = true},
};

static const struct layout_case of_experts[] = {
    {.name = "ep2", .layout = {.ep = 2, .dp = 2}},
    {.name = "ep4", .layout = {.ep = 4, .dp = 4}},
    {.name = "ep2 dp4", .layout = {.ep = 2, .dp = 4}},
    {.name = "tp2 etp2", .layout = {.tp = 2, .etp = 2}},
    {.name = "tp2 sp etp2", .layout = {.tp = 2, .etp = 2}, .sequence_parallel = true},
    {.name = "tp2 etp1", .layout = {.tp = 2, .etp = 1}},
    {.name = "tp2 ep2 etp1", .layout = {.tp = 2, .ep = 2, .etp = 1}},
    {.name = "tp2 sp ep2 etp1", .layout = {.tp = 2, .ep = 2, .etp = 1}, .sequence_parallel = true},
    {.name = "tp2 ep2 etp2 dp2", .layout = {.tp = 2, .ep = 2, .etp = 2, .dp = 2}},
    {.name = "tp2 sp ep4 etp1 dp4",
     .layout = {.tp = 2, .ep = 4, .etp = 1, .dp = 4},
     .sequence_parallel = true},
    {.name = "etp2 dp2", .layout = {.etp = 2, .dp = 2}},
    {.name = "pp2 ep2 dp2", .layout = {.pp = 2, .ep = 2, .dp = 2}},
    {.name = "tp2 sp pp2 ep2 etp1",
     .layout = {.tp = 2, .pp = 2, .ep = 2, .etp = 1},
     .sequence_parallel = true},
};

/* Each rank has whole sequences, and nothing is filled up: what the losses of
 * routers are means of is the same at all of them. */
static const struct layout_case of_routers[] = {
    {.name = "ep2", .layout = {.ep = 2, .dp = 2}},
    {.name = "dp3", .layout = {.dp = 3}},
    {.name = "tp2 etp2", .layout = {.tp = 2, .etp = 2}},
    {.name = "tp2 sp etp2", .layout = {.tp = 2, .etp = 2}, .sequence_parallel = true},
    {.name = "tp2 ep2 etp1", .layout = {.tp = 2, .ep = 2, .etp = 1}},
    {.name = "tp2 sp ep2 etp1", .layout = {.tp = 2, .ep = 2, .etp = 1}, .sequence_parallel = true},
    {.name = "pp2 ep2 dp2", .layout = {.pp = 2, .ep = 2, .dp = 2}},
};

static const struct training_shape no_router_losses = {.balance_coefficient = 0};

/* routers: of the losses of routers and their bias alone. change: of the
 * config, or NULL. */
static void compare_layouts(const char *model, const struct layout_case *cases, size_t count,
                            const struct training_shape *routers, test_change *change)
{
    static const struct recompute_options policies[] = {
        {.granularity = RECOMPUTE_NONE},
        {.granularity = RECOMPUTE_FULL, .num_layers = 1},
        {.granularity = RECOMPUTE_SELECTIVE, .modules = RECOMPUTE_NORMS | RECOMPUTE_MLP},
    };
    struct step_options o = test_step_options(SEQUENCES, LENGTH);
    o.schedule = SCHEDULE_1F1B;
    o.micro_batches = MICRO_BATCHES;
    static struct reference r;
    o.training = *routers;
    o.training.hidden_dropout = o.training.attention_dropout = 0.1;
    make_reference(&r, model, &o, change);
    for (size_t i = 0; i < count; i++) {
        if (!test_takes(i, count)) continue;
        const struct model_options options = {.elem = ELEM_F64,
                                              .layout = cases[i].layout,
                                              .sequence_parallel = cases[i].sequence_parallel};
        o.recompute = policies[i % COUNT(policies)];
        o.head_rows = i % 2 ? 10 : 0;
        o.bucket_numel = i % 2 ? 0 : 3000; /* the smallest that go on behind a parameter */
        const enum status st = train_ranks(&r, model, &o, &options, change);
        if (st) fail_msg("%s, %s: %s", model, cases[i].name, err.text);
    }
    reference_release(&r);
}

static void dense_models_train_alike_at_any_layout(void **state)
{
    static const char *const models[] = {"gpt2", "llama3.1", "qwen2.5", "qwen3", "mistral"};
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++)
        compare_layouts(models[i], dense, COUNT(dense), &no_router_losses, NULL);
    compare_layouts("gpt2", of_four_groups, COUNT(of_four_groups), &no_router_losses, NULL);
    compare_layouts("llama2", of_four_groups, COUNT(of_four_groups), &no_router_losses, NULL);
}

static void experts_train_alike_at_any_layout(void **state)
{
    static const char *const models[] = {"mixtral", "qwen3-moe"};
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++)
        compare_layouts(models[i], of_experts, COUNT(of_experts), &no_router_losses, NULL);
}

static void losses_of_routers_are_alike_at_any_layout(void **state)
{
    static const struct training_shape routers = {
        .balance_coefficient = 0.3, .balance_length = LENGTH, .z_coefficient = 0.1};
    (void)state;
    compare_layouts("mixtral", of_routers, COUNT(of_routers), &routers, NULL);
    compare_layouts("qwen3-moe", of_routers, COUNT(of_routers), &routers, NULL);
}

static void losses_of_all_ranks_are_alike_at_any_layout(void **state)
{
    static const struct training_shape routers = {.balance_coefficient = 0.3,
                                                  .balance_is_global = true};
    (void)state;
    compare_layouts("mixtral", of_routers, COUNT(of_routers), &routers, NULL);
    compare_layouts("qwen3-moe", of_routers, COUNT(of_routers), &routers, NULL);
}

static void have_biased_sigmoid_routers(struct model_config *c)
{
    c->moe_router_score_function = "sigmoid";
    c->moe_router_enable_expert_bias = true;
    c->moe_router_topk_scaling_factor = 2.5;
}

static void biases_of_experts_are_alike_at_any_layout(void **state)
{
    static const struct training_shape routers = {
        .balance_coefficient = 0.3, .balance_length = LENGTH, .bias_update_rate = 0.05};
    (void)state;
    compare_layouts("mixtral", of_routers, COUNT(of_routers), &routers,
                    have_biased_sigmoid_routers);
    compare_layouts("qwen3-moe", of_routers, COUNT(of_routers), &routers,
                    have_biased_sigmoid_routers);
}

/* Masters are sharded, too; plain SGD has none of the moments. */
static void rounded_parameters_train_alike_with_sharded_states(void **state)
{
    static const struct {
        const char *model;
        enum elem_type elem;
        bool gradients_are_elem;
        enum optimizer_kind optimizer;
        struct layout_options layout;
    } cases[] = {
        {"llama3.1", ELEM_BF16, false, OPTIMIZER_ADAM, {.dp = 2}},
        {"llama3.1", ELEM_F16, true, OPTIMIZER_ADAM, {.tp = 2, .dp = 2}},
        {"gpt2", ELEM_BF16, false, OPTIMIZER_SGD, {.dp = 3}},
        {"mixtral", ELEM_BF16, false, OPTIMIZER_ADAM, {.tp = 2, .ep = 2, .etp = 1, .dp = 3}},
    };
    struct step_options o = test_step_options(SEQUENCES, LENGTH);
    (void)state;
    o.schedule = SCHEDULE_1F1B;
    o.micro_batches = MICRO_BATCHES;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct model_options options = {.elem = cases[i].elem, .layout = cases[i].layout};
        o.gradients_are_elem = cases[i].gradients_are_elem;
        o.optimizer = cases[i].optimizer;
        o.bucket_numel = i % 2 ? 0 : 3000;
        if (train_ranks(NULL, cases[i].model, &o, &options, NULL))
            fail_msg("%s, case %zu: %s", cases[i].model, i, err.text);
    }
}

int main(void)
{
    cpu_use_threads(1); /* ranks are forked */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_models_train_alike_at_any_layout),
        cmocka_unit_test(experts_train_alike_at_any_layout),
        cmocka_unit_test(rounded_parameters_train_alike_with_sharded_states),
        cmocka_unit_test(losses_of_routers_are_alike_at_any_layout),
        cmocka_unit_test(losses_of_all_ranks_are_alike_at_any_layout),
        cmocka_unit_test(biases_of_experts_are_alike_at_any_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
