/* trained_test.c - the verdict of two runs, from their steps and weights. The
 * runs themselves: tests/cli/verify_train_test.sh. */
#include "validate/trained/trained.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "convert/format.h"

#include <cmocka.h>

static const char *const paths[2] = {"one", "two\n"};
static struct side sides[2];

/* Two steps and two weights; those with `differs` are VALUES_DIFFER. */
struct example {
    struct trained t;
    struct trained_step steps[2];
    struct trained_weight weights[2];
};

static void example_init(struct example *x)
{
    for (unsigned i = 0; i < 2; i++)
        sides[i].checkpoint.format = &format_hf;
    *x = (struct example){.steps = {{.loss = {6.5, 6.5}, .grad_norm = {1, 1}},
                                    {.loss = {6.25, 6.25}, .grad_norm = {2, 2}}},
                          .weights = {{.name = "first", .numel = 4}, {.name = "second"}}};
    x->t = (struct trained){
        .options = {.num_sequences = 2, .length = 64, .lr = 1e-4, .dtype = "f32", .steps = 2},
        .paths = paths,
        .sides = sides,
        .steps = x->steps,
        .num_steps = 2,
        .weights = x->weights,
        .num_weights = 2};
    arena_init(&x->t.arena);
}

static void second_step_differs(struct example *x)
{
    x->steps[1].loss[1] = 6.75;
    x->steps[1].outcome = VALUES_DIFFER;
    x->t.step = &x->steps[1];
    x->weights[0].outcome = VALUES_DIFFER;
    x->t.trained = &x->weights[0];
}

static void text_has(const struct trained *t, const char *part)
{
    struct strbuf text = {0};
    trained_text(&text, t, false, false);
    if (!strstr(text.data, part)) print_error("no %s in:\n%s", part, text.data);
    assert_non_null(strstr(text.data, part));
    strbuf_release(&text);
}

static void the_worst_outcome_counts(void **state)
{
    struct example x;
    (void)state;
    example_init(&x);
    assert_int_equal(trained_outcome(&x.t), IDENTICAL);
    x.weights[1].outcome = WITHIN;
    assert_int_equal(trained_outcome(&x.t), WITHIN);
    text_has(&x.t, "within tolerance: training: 2 steps, and 2 tensors after them");
    x.steps[0].outcome = VALUES_DIFFER;
    assert_int_equal(trained_outcome(&x.t), VALUES_DIFFER);
    assert_int_equal(trained_steps_differ(&x.t), 1);
    assert_int_equal(trained_weights_differ(&x.t), 0);
    trained_release(&x.t);
}

static void the_first_step_and_tensor_that_differ_are_named(void **state)
{
    struct example x;
    (void)state;
    example_init(&x);
    second_step_differs(&x);
    text_has(&x.t, "DIFFERENT: training: 1 of 2 steps, 1 of 2 tensors after them");
    text_has(&x.t, "  loaded    all weights are the same before step 1\n");
    text_has(&x.t, "  step      the first that differs is step 2\n");
    text_has(&x.t, "  tensor    the first that differs after step 2 is first\n");
    x.weights[1].differs_as_loaded = true;
    x.t.loaded = &x.weights[1];
    text_has(&x.t, "  loaded    1 tensor differs before step 1, first second\n");
    trained_release(&x.t);
}

static void paths_are_escaped(void **state)
{
    struct example x;
    (void)state;
    example_init(&x);
    text_has(&x.t, "B  two\\x0a  (hf)\n");
    trained_release(&x.t);
}

static void json_has_all_steps_and_tensors(void **state)
{
    struct example x;
    (void)state;
    example_init(&x);
    second_step_differs(&x);
    cJSON *o = trained_json(&x.t), *t = cJSON_GetObjectItem(o, "training");
    assert_string_equal(cJSON_GetObjectItem(o, "verdict")->valuestring, "different");
    char *text = cJSON_PrintUnformatted(t);
    assert_non_null(strstr(text, "\"first_step\":2,"));
    cJSON_free(text);
    assert_string_equal(cJSON_GetObjectItem(t, "first_tensor")->valuestring, "first");
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(t, "first_as_loaded")));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(t, "steps")), 2);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(t, "tensors")), 2);
    cJSON_Delete(o);
    trained_release(&x.t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_worst_outcome_counts),
        cmocka_unit_test(the_first_step_and_tensor_that_differ_are_named),
        cmocka_unit_test(paths_are_escaped),
        cmocka_unit_test(json_has_all_steps_and_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
