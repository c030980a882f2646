/* Evaluations between training steps, micro-batches that wait for their
 * backward part, logits of some tokens at a time, updates that are skipped, and
 * what no step can be made of. */
#include "train/trainer/step.h"

#include <math.h>
#include <stdlib.h>

#include "train/trainer/testing_step.h"

enum { SEQUENCES = 2, LENGTH = 12 };

static struct step_options options_of(double dropout)
{
    struct step_options o = test_step_options(SEQUENCES, LENGTH);
    o.training.hidden_dropout = o.training.attention_dropout = dropout;
    return o;
}

static struct micro_batch make_micro_batch(struct test_tokens *t, const struct test_session *s,
                                           uint64_t number, bool first, bool evaluates)
{
    return (struct micro_batch){
        .batch = test_tokens_make(t, s, SEQUENCES, number * SEQUENCES, 1.0 / LENGTH),
        .loss_scale = 1,
        .router_scale = 1,
        .first = first,
        .evaluates = evaluates};
}

static void run_micro_batch(struct test_session *s, uint64_t number, bool first, bool evaluates)
{
    struct test_tokens t;
    const struct micro_batch b = make_micro_batch(&t, s, number, first, evaluates);
    test_micro_batch(&s->step, &b);
}

static struct step_result update(struct test_session *s, uint64_t number)
{
    const struct step_control c = {.lr = 1e-2, .update = number, .factor = 1, .clip = 1};
    struct step_result r;
    assert_ok(step_update(&s->step, &c, &err));
    assert_ok(step_wait(&s->step, &r, &err));
    return r;
}

static double evaluate(struct test_session *s)
{
    double loss;
    run_micro_batch(s, 5, true, true);
    run_micro_batch(s, 6, false, true);
    assert_ok(step_wait_loss(&s->step, &loss, &err));
    return loss;
}

static void evaluations_have_no_dropout(void **state)
{
    const struct step_options with = options_of(0.4), without = options_of(0);
    static const char *const models[] = {"gpt2", "qwen3"}; /* with and without constant inputs */
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        struct test_session a, b;
        test_session_open(&a, models[k], ELEM_F32, &with, NULL);
        test_session_open(&b, models[k], ELEM_F32, &without, NULL);
        const double loss = evaluate(&a);
        assert_true(loss == evaluate(&b));
        run_micro_batch(&a, 0, true, false);
        run_micro_batch(&b, 0, true, false);
        assert_true(update(&a, 1).loss != update(&b, 1).loss);
        test_session_close(&a);
        test_session_close(&b);
    }
}

static void evaluations_change_no_training(void **state)
{
    const double dropout[] = {0, 0.2};
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        const struct step_options o = options_of(dropout[k]);
        struct test_session a, b;
        test_session_open(&a, "qwen3", ELEM_F32, &o, NULL);
        test_session_open(&b, "qwen3", ELEM_F32, &o, NULL);
        for (uint64_t i = 1; i < 4; i++) {
            run_micro_batch(&a, 2 * i, true, false);
            run_micro_batch(&a, 2 * i + 1, false, false);
            run_micro_batch(&b, 2 * i, true, false);
            run_micro_batch(&b, 2 * i + 1, false, false);
            assert_true(update(&a, i).loss == update(&b, i).loss);
            const double loss = evaluate(&a);
            assert_true(loss > 0 && loss == evaluate(&a));
        }
        assert_memory_equal(a.step.regions[VALUE_PARAMETER], b.step.regions[VALUE_PARAMETER],
                            a.step.region_bytes[VALUE_PARAMETER] - 256 /* the sum of losses */);
        test_session_close(&a);
        test_session_close(&b);
    }
}

/* ---- slots ---- */

enum { MICRO_BATCHES = 5 };

/* The schedule of a stage with `under_way` micro-batches between forward and
 * backward part. */
static void run_schedule(struct test_session *s, unsigned under_way)
{
    for (unsigned i = 0; i < MICRO_BATCHES + under_way; i++) {
        struct test_tokens t;
        const struct micro_batch b = make_micro_batch(&t, s, i, i == 0, false);
        if (i >= under_way)
            assert_ok(step_backward(&s->step, 0, i - under_way, i == under_way, &err));
        if (i < MICRO_BATCHES) assert_ok(step_forward(&s->step, 0, i, &b, &err));
    }
}

/* Micro-batches in turn, each with its backward part at once, and in slots: the
 * same bits. */
static void compare_schedules(const char *model, const struct step_options *o, unsigned slots)
{
    struct test_session a, b;
    struct step_options in_slots = *o;
    in_slots.num_slots = slots;
    test_session_open(&a, model, ELEM_F32, o, NULL);
    test_session_open(&b, model, ELEM_F32, &in_slots, NULL);
    assert_int_equal(a.step.region_bytes[VALUE_SAVED], 0);
    assert_true(b.step.region_bytes[VALUE_SAVED] > 0);
    for (uint64_t i = 1; i < 3; i++) {
        for (unsigned k = 0; k < MICRO_BATCHES; k++)
            run_micro_batch(&a, k, k == 0, false);
        run_schedule(&b, slots);
        if (memcmp(a.step.regions[VALUE_GRADIENT], b.step.regions[VALUE_GRADIENT],
                   a.step.region_bytes[VALUE_GRADIENT]))
            fail_msg("%s in %u slots: gradients differ", model, slots);
        const struct step_result x = update(&a, i), y = update(&b, i);
        assert_true(x.loss == y.loss && x.balance == y.balance && x.z_loss == y.z_loss &&
                    x.grad_norm == y.grad_norm);
    }
    test_session_close(&a);
    test_session_close(&b);
}

static void micro_batches_may_wait_for_their_backward_part(void **state)
{
    static const char *const models[] = {"gpt2", "qwen3-moe"};
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        struct step_options o = options_of(0.2);
        o.training.balance_coefficient = o.training.z_coefficient = 0.1;
        o.head_rows = 7;
        compare_schedules(models[k], &o, 2);
        o.recompute = (struct recompute_options){.granularity = RECOMPUTE_FULL, .num_layers = 1};
        compare_schedules(models[k], &o, 4);
    }
}

/* ---- the head ---- */

static void many_tokens(struct model_config *c)
{
    c->vocab_size = 5000;
    c->num_layers = 1;
}

/* The result of two micro-batches; gradients are on the heap. */
static double *gradients_by_rows(const char *model, uint64_t rows, struct step_result *r,
                                 uint64_t *count, uint64_t *activations)
{
    struct step_options o = options_of(0);
    struct test_session s;
    o.head_rows = rows;
    test_session_open(&s, model, ELEM_F64, &o, many_tokens);
    run_micro_batch(&s, 0, true, false);
    run_micro_batch(&s, 1, false, false);
    *count = s.step.numel;
    *activations = s.step.region_bytes[VALUE_SCRATCH];
    double *gradients = malloc(*count * sizeof *gradients);
    memcpy(gradients, s.step.regions[VALUE_GRADIENT], *count * sizeof *gradients);
    *r = update(&s, 1);
    const double loss = evaluate(&s);
    assert_true(fabs(loss - evaluate(&s)) == 0 && loss > 0);
    test_session_close(&s);
    return gradients;
}

static void logits_of_some_tokens_at_a_time_give_the_same(void **state)
{
    static const char *const models[] = {"gpt2", "llama3.1"}; /* tied, and not */
    static const uint64_t rows[] = {12, 7, 1};                /* of 24: the last chunk is smaller */
    (void)state;
    for (size_t m = 0; m < 2; m++) {
        struct step_result all, some;
        uint64_t count, bytes, fewer;
        double *want = gradients_by_rows(models[m], 0, &all, &count, &bytes);
        for (size_t k = 0; k < 3; k++) {
            double *got = gradients_by_rows(models[m], rows[k], &some, &count, &fewer);
            if (k == 0) assert_true(fewer < bytes * 3 / 4); /* else attention needs most */
            assert_true(fabs(all.loss - some.loss) <= 1e-12 * all.loss);
            assert_true(fabs(all.grad_norm - some.grad_norm) <= 1e-12 * all.grad_norm);
            for (uint64_t i = 0; i < count; i++)
                if (!(fabs(got[i] - want[i]) <= 1e-12 * all.grad_norm))
                    fail_msg("%s, %u rows: element %u is %g, not %g", models[m], (unsigned)rows[k],
                             (unsigned)i, got[i], want[i]);
            free(got);
        }
        free(want);
    }
}

/* A step of a model of one layer, planned: chunks of its head, and bytes of
 * activations. */
static void plan_head(uint64_t vocab_size, uint64_t num_sequences, unsigned *chunks,
                      uint64_t *bytes)
{
    const struct source_options native_source = {0};
    const struct step_options o = test_step_options(num_sequences, 100);
    struct model_options options = {.elem = ELEM_F32};
    struct model_config config;
    struct opened opened;
    struct model m;
    struct step s;
    assert_ok(
        opened_open(&opened, "tests/golden/hf/gpt2", &native_source, NULL, false, true, &err));
    config = opened.checkpoint.config;
    config.max_position_embeddings = 128;
    config.vocab_size = vocab_size;
    config.num_layers = 1;
    options.config = &config;
    assert_ok(model_simulate(&m, NULL, &options, 0, &err));
    assert_ok(step_make(&s, &m, &o, &err));
    *chunks = s.chunks[0].micro[0].train.head_chunks;
    *bytes = s.region_bytes[VALUE_SCRATCH];
    step_release(&s);
    model_close(&m);
    opened_close(&opened);
}

static void logits_are_limited_in_memory(void **state)
{
    unsigned chunks;
    uint64_t bytes;
    (void)state;
    plan_head(1 << 20, 5, &chunks, &bytes); /* 2 GiB of logits: 256 rows are 1 GiB */
    assert_int_equal(chunks, 2);
    assert_true(bytes >= (uint64_t)STEP_LOGIT_BYTES * 9 / 10);
    assert_true(bytes < (uint64_t)STEP_LOGIT_BYTES * 11 / 10);
}

/* Squares of 10^9 rows do not fit 64 bits. */
static void heads_of_many_tokens_have_few_chunks(void **state)
{
    unsigned chunks;
    uint64_t bytes;
    (void)state;
    plan_head(1 << 20, 10000000, &chunks, &bytes);
    assert_int_equal(chunks, STEP_HEAD_CHUNKS);
    plan_head(128, 10000000, &chunks, &bytes);
    assert_in_range(chunks, STEP_HEAD_CHUNKS / 2, STEP_HEAD_CHUNKS);
}

/* ---- what is no number ---- */

/* Where a weight is not a number, the update changes nothing, and the op is
 * found. */
static void an_update_of_nan_is_skipped(void **state)
{
    const struct step_options o = options_of(0);
    struct test_session s;
    size_t i;
    (void)state;
    test_session_open(&s, "llama3.1", ELEM_F32, &o, NULL);
    assert_true(map_get(&s.model.parameters.names, "decoder.layers.1.mlp.linear_fc2.weight", &i));
    const uint64_t at = test_first(&s.step, &s.model.parameters.items[i]) + 7;
    const double weight = test_get(&s.step, VALUE_PARAMETER, at);
    test_set_weight(&s.step, at, (double)NAN);
    const uint64_t bytes = s.step.numel * sizeof(float);
    char *before = malloc(bytes);
    memcpy(before, s.step.regions[VALUE_PARAMETER], bytes);
    run_micro_batch(&s, 0, true, false);
    assert_true(update(&s, 1).skipped);
    assert_memory_equal(before, s.step.regions[VALUE_PARAMETER], bytes);
    assert_fails(step_find_nan(&s.step, &err), ERR_NUMERIC,
                 "decoder.layers.1.mlp.linear_fc2.weight");
    test_set_weight(&s.step, at, weight);
    run_micro_batch(&s, 0, true, false);
    assert_false(update(&s, 1).skipped);
    assert_ok(step_find_nan(&s.step, &err));
    free(before);
    test_session_close(&s);
}

/* ---- the bias of experts ---- */

enum { EXPERTS = 4, TOPK = 2 };
#define BIAS "decoder.layers.1.mlp.router.expert_bias"

static void have_biased_sigmoid_routers(struct model_config *c)
{
    assert_int_equal(c->num_experts, EXPERTS);
    assert_int_equal(c->moe_router_topk, TOPK);
    c->moe_router_score_function = "sigmoid";
    c->moe_router_enable_expert_bias = true;
}

static void *held(const struct test_session *s, const char *name)
{
    size_t i;
    assert_true(map_get(&s->model.parameters.names, name, &i));
    return (char *)s->step.regions[VALUE_STATE] + s->model.parameters.items[i].offset;
}

/* Once a step, by the tokens of all its micro-batches, whether the optimizer
 * skips it or not; of evaluations no token counts. */
static void a_step_moves_the_bias_of_experts(void **state)
{
    struct step_options o = options_of(0);
    struct test_session s;
    (void)state;
    o.training.bias_update_rate = 0.25;
    o.recompute = (struct recompute_options){.granularity = RECOMPUTE_FULL, .num_layers = 1};
    test_session_open(&s, "mixtral", ELEM_F64, &o, have_biased_sigmoid_routers);
    const double *bias = held(&s, BIAS), whole = *(double *)held(&s, "output_layer.weight");
    const int32_t *counts = held(&s, BIAS EXPERT_COUNTS);
    for (uint64_t i = 1; i < 4; i++) {
        double before[EXPERTS];
        int32_t sum = 0;
        memcpy(before, bias, sizeof before);
        (void)evaluate(&s);
        *(double *)held(&s, "output_layer.weight") = i == 1 ? (double)NAN : whole;
        run_micro_batch(&s, 2 * i, true, false);
        run_micro_batch(&s, 2 * i + 1, false, false);
        assert_true(update(&s, i).skipped == (i == 1));
        for (unsigned e = 0; e < EXPERTS; e++) {
            const int32_t missing = 2 * SEQUENCES * LENGTH * TOPK / EXPERTS - counts[e];
            const double moved = 0.25 * ((missing > 0) - (missing < 0));
            assert_true(fabs(bias[e] - before[e] - moved) < 1e-12);
            sum += counts[e];
        }
        assert_int_equal(sum, 2 * SEQUENCES * LENGTH * TOPK);
        memcpy(before, bias, sizeof before);
        (void)evaluate(&s);
        assert_memory_equal(before, bias, sizeof before);
    }
    test_session_close(&s);
}

static void layouts_without_steps_are_refused(void **state)
{
    static const struct {
        const char *model;
        struct layout_options layout;
        const char *message;
    } cases[] = {
        {"llama3.1", {.tp = 4}, "tensor parallel size 4 exceeds num_query_groups 2"},
        {"llama3.1", {.cp = 2}, "layers.2.cache: cache_write has no gradient"},
    };
    const struct source_options native_source = {0};
    struct step_options o = options_of(0);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct model_options options = {.elem = ELEM_F32, .layout = cases[i].layout};
        struct opened opened;
        char path[128];
        struct model m;
        struct step s;
        snprintf(path, sizeof path, "tests/golden/hf/%s", cases[i].model);
        assert_ok(opened_open(&opened, path, &native_source, NULL, false, true, &err));
        assert_ok(model_simulate(&m, &opened.checkpoint, &options, 0, &err));
        assert_fails(step_make(&s, &m, &o, &err), ERR_UNSUPPORTED, cases[i].message);
        step_release(&s);
        model_close(&m);
        opened_close(&opened);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluations_have_no_dropout),
        cmocka_unit_test(evaluations_change_no_training),
        cmocka_unit_test(micro_batches_may_wait_for_their_backward_part),
        cmocka_unit_test(logits_of_some_tokens_at_a_time_give_the_same),
        cmocka_unit_test(logits_are_limited_in_memory),
        cmocka_unit_test(heads_of_many_tokens_have_few_chunks),
        cmocka_unit_test(an_update_of_nan_is_skipped),
        cmocka_unit_test(a_step_moves_the_bias_of_experts),
        cmocka_unit_test(layouts_without_steps_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
