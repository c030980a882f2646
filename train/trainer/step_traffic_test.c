/* Compares the bytes that a rank sends in a step with numbers counted by hand,
 * and the plans of all ranks of a pipeline stage with each other. */
#include "common/count.h"
#include "train/trainer/step_internal.h"
#include "train/trainer/testing_step.h"

/* Sizes of llama2 in tests/golden/hf, in f32, with 2 sequences of 16 tokens. */
enum {
    HIDDEN = 64,
    TOKENS = 32,
    STREAM = TOKENS * HIDDEN * 4,   /* bytes of the residual stream */
    HEAD = TOKENS * 4 + TOKENS * 8, /* of each token's largest logit, and of its two sums */
    NORMS = 5 * HIDDEN * 4,         /* of the weights of all norms */
    LAYER = 64 * 192 + 64 * 64 + 64 * 224 + 112 * 64, /* elements of the matrices of a layer */
    TABLES = 2 * 272 * HIDDEN,
    MICRO_BATCHES = 4
};

struct simulated {
    struct model model;
    struct step step;
    struct schedule plan;
};

static struct step_options options_of(void)
{
    struct step_options o = test_step_options(2, 16);
    o.shape.is_dealt = true;
    o.schedule = SCHEDULE_1F1B;
    o.micro_batches = MICRO_BATCHES;
    o.params_norm = false;
    return o;
}

static void simulate(struct simulated *x, const struct model_options *m,
                     const struct step_options *o, unsigned rank)
{
    assert_ok(model_simulate(&x->model, NULL, m, rank, &err));
    assert_ok(step_make(&x->step, &x->model, o, &err));
    assert_ok(step_schedule(&x->step, &x->plan, &err));
}

static void forget(struct simulated *x)
{
    schedule_release(&x->plan);
    step_release(&x->step);
    model_close(&x->model);
}

struct traffic_case {
    const char *name, *model;
    struct layout_options layout;
    bool sequence_parallel, shards_states;
    uint64_t num_layers; /* 0: the model's */
    unsigned rank;
    enum group_kind kind;
    uint64_t bytes;
};

/* Rings of two: a rank sends all bytes of an all-reduce, and half of those of
 * an all-gather or a reduce-scatter. */
static const struct traffic_case cases[] = {
    {.name = "one rank", .model = "llama2", .kind = GROUP_TP},
    /* Forward: the embedding, and the ends of attention and MLP of two layers.
     * Backward: the beginnings of these, and of the head. */
    {.name = "tp2",
     .model = "llama2",
     .layout = {.tp = 2},
     .kind = GROUP_TP,
     .bytes = MICRO_BATCHES * (10 * STREAM + HEAD)},
    /* Each of these sums is a scatter and a gather, one forward and one
     * backward. The input of a product is gathered again for the gradient of
     * its weights: four times in layers. The update sums the gradients of
     * norms. */
    {.name = "tp2 sp",
     .model = "llama2",
     .layout = {.tp = 2},
     .sequence_parallel = true,
     .kind = GROUP_TP,
     .bytes = MICRO_BATCHES * ((20 + 4) * STREAM / 2 + HEAD) + NORMS},
    {.name = "dp2",
     .model = "llama2",
     .layout = {.dp = 2},
     .kind = GROUP_DP,
     .bytes = (2 * LAYER + TABLES + 6 * HIDDEN) * 4}, /* 5 norms, and a gap */
    /* Gradients are scattered, parameters gathered. */
    {.name = "dp2, sharded states",
     .model = "llama2",
     .layout = {.dp = 2},
     .shards_states = true,
     .kind = GROUP_DP,
     .bytes = (2 * LAYER + TABLES + 6 * HIDDEN) * 4},
    {.name = "pp2, first stage",
     .model = "llama2",
     .layout = {.pp = 2},
     .kind = GROUP_PP,
     .bytes = MICRO_BATCHES * STREAM},
    {.name = "pp2, last stage",
     .model = "llama2",
     .layout = {.pp = 2},
     .rank = 1,
     .kind = GROUP_PP,
     .bytes = MICRO_BATCHES * STREAM},
    {.name = "pp4, in the middle",
     .model = "llama2",
     .layout = {.pp = 4},
     .num_layers = 4,
     .rank = 2,
     .kind = GROUP_PP,
     .bytes = MICRO_BATCHES * 2 * STREAM},
    /* Four chunks, three borders: a stage sends two ways over one, and one way
     * over the others. */
    {.name = "pp2 with two chunks",
     .model = "llama2",
     .layout = {.pp = 2, .virtual_stages = 2},
     .num_layers = 4,
     .kind = GROUP_PP,
     .bytes = MICRO_BATCHES * 3 * STREAM},
    {.name = "pp2, nothing is tied",
     .model = "llama2",
     .layout = {.pp = 2},
     .kind = GROUP_EMBEDDING},
    /* The gradients of the embedding and of the head: 268 rows, filled up. */
    {.name = "pp2, a tied embedding",
     .model = "gpt2",
     .layout = {.pp = 2},
     .num_layers = 2,
     .kind = GROUP_EMBEDDING,
     .bytes = 272 * 48 * 4},
    /* In each of two layers the rows of a token for two experts go there and
     * back, backward likewise. Counts of four experts go before. */
    {.name = "ep2",
     .model = "mixtral",
     .layout = {.ep = 2, .dp = 2},
     .kind = GROUP_EP,
     .bytes = MICRO_BATCHES * 2 * 4 * (2 * TOKENS * 48 * 4 + 4 * 4) / 2},
};

static void bytes_are_those_counted_by_hand(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct traffic_case *c = &cases[i];
        struct test_session s;
        struct simulated x;
        test_session_read(&s, c->model);
        if (c->num_layers) s.config.num_layers = c->num_layers;
        struct step_options o = options_of();
        o.shards_states = c->shards_states;
        const struct model_options m = {.elem = ELEM_F32,
                                        .layout = c->layout,
                                        .sequence_parallel = c->sequence_parallel,
                                        .config = &s.config};
        simulate(&x, &m, &o, c->rank);
        const uint64_t got = step_traffic(&x.step, &x.plan, c->kind);
        if (got != c->bytes)
            fail_msg("%s: %lu bytes, by hand %lu", c->name, (unsigned long)got,
                     (unsigned long)c->bytes);
        forget(&x);
        opened_close(&s.opened);
    }
}

static bool is_alike(const struct simulated *a, const struct simulated *b)
{
    bool alike = a->step.num_params == b->step.num_params;
    for (unsigned k = 0; k < NUM_VALUE_CLASSES; k++)
        alike &= a->step.region_bytes[k] == b->step.region_bytes[k];
    for (unsigned k = 0; k < NUM_GROUP_KINDS; k++)
        alike &= step_traffic(&a->step, &a->plan, (enum group_kind)k) ==
                 step_traffic(&b->step, &b->plan, (enum group_kind)k);
    return alike;
}

static void compare_stages(const char *model, const struct model_options *m,
                           const struct step_options *o)
{
    const struct group_sizes sizes = model_group_sizes(m);
    const unsigned stage_ranks = groups_world_size(&sizes) / sizes.pp;
    for (unsigned first = 0; first < groups_world_size(&sizes); first += stage_ranks) {
        struct simulated a, b;
        simulate(&a, m, o, first);
        for (unsigned r = first + 1; r < first + stage_ranks; r++) {
            simulate(&b, m, o, r);
            if (!is_alike(&a, &b)) fail_msg("%s: ranks %u and %u differ", model, first, r);
            forget(&b);
        }
        forget(&a);
    }
}

/* The vocabulary of 271 rows is filled up; 2 sequences of 15 tokens on three or
 * four ranks are, too. */
static void ranks_of_a_stage_are_alike(void **state)
{
    static const struct {
        const char *model;
        struct layout_options layout;
    } layouts[] = {
        {"llama2", {.tp = 4, .dp = 2}},
        {"llama2", {.tp = 2, .pp = 2, .dp = 3}},
        {"gpt2", {.tp = 2, .pp = 2, .dp = 2}},
        {"qwen3", {.tp = 2, .pp = 3, .dp = 2}},
        {"mixtral", {.tp = 2, .pp = 2, .ep = 2, .etp = 1, .dp = 2}},
        {"mixtral", {.tp = 2, .ep = 4, .etp = 2, .dp = 4}},
    };
    (void)state;
    for (size_t i = 0; i < 4 * COUNT(layouts); i++) {
        struct test_session s;
        struct step_options o = options_of();
        test_session_read(&s, layouts[i / 4].model);
        s.config.vocab_size = 271;
        s.config.num_layers = layouts[i / 4].layout.pp == 3 ? 3 : 2;
        const struct model_options m = {.elem = ELEM_BF16,
                                        .layout = layouts[i / 4].layout,
                                        .sequence_parallel = i % 2,
                                        .config = &s.config};
        o.shape.length = 15;
        o.shards_states = i % 4 > 1;
        o.bucket_numel = 3000;
        o.params_norm = true;
        compare_stages(layouts[i / 4].model, &m, &o);
        opened_close(&s.opened);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_those_counted_by_hand),
        cmocka_unit_test(ranks_of_a_stage_are_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
