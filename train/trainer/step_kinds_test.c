/* Evaluations between training steps, updates that are skipped, and what no step can be made of. */
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

static void run_micro_batch(struct test_session *s, uint64_t number, bool first, bool evaluates)
{
    struct test_tokens t;
    const struct micro_batch b = {
        .batch = test_tokens_make(&t, s, SEQUENCES, number * SEQUENCES, 1.0 / LENGTH),
        .loss_scale = 1,
        .first = first,
        .evaluates = evaluates};
    assert_ok(step_micro_batch(&s->step, &b, &err));
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

/* Where a weight is not a number, the update changes nothing, and the op is found. */
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

static void several_ranks_are_refused(void **state)
{
    const struct source_options own_source = {0};
    const struct model_options two = {.elem = ELEM_F32, .layout = {.dp = 2}};
    const struct step_options o = options_of(0);
    struct opened opened;
    struct model m;
    struct step s;
    (void)state;
    assert_ok(opened_open(&opened, "tests/golden/hf/gpt2", &own_source, NULL, false, true, &err));
    assert_ok(model_imagine(&m, &opened.checkpoint, &two, 0, &err));
    assert_fails(step_make(&s, &m, &o, &err), ERR_UNSUPPORTED, "2 ranks");
    step_release(&s);
    model_close(&m);
    opened_close(&opened);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluations_have_no_dropout),
        cmocka_unit_test(evaluations_change_no_training),
        cmocka_unit_test(an_update_of_nan_is_skipped),
        cmocka_unit_test(several_ranks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
