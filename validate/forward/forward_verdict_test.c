/* Verdicts on results: the first that differs, the text, and the page. No model
 * runs here. */
#include "validate/forward/forward_internal.h"
#include "validate/report/report_html.h"

#include <math.h>

#include "common/count.h"
#include "validate/testing_validate.h"

static const int32_t ids[] = {11, 12, 13, 14};

/* A model of two layers, and two sequences of two tokens. */
static struct forward *made_forward(void)
{
    static const char *const names[] = {"hidden.0",   "hidden.1", "hidden.2",
                                        "final_norm", "logits",   "loss"};
    struct forward *f = arena_alloc(&scratch, sizeof *f);
    *f = (struct forward){.paths = {"a<", "b"},
                          .batch = {.num_sequences = 2, .length = 2, .ids = ids},
                          .ids = arena_copy(&scratch, ids, sizeof ids),
                          .ids_are = "at random",
                          .yardstick = yardstick_choose(
                              &(struct sides_rounding){.computed = ELEM_F32, .stored = DT_F64}),
                          .losses = {1, 1},
                          .divergence = {.layer = -1}};
    arena_init(&f->arena);
    for (size_t i = 0; i < COUNT(names); i++)
        *ARENA_PUSH(&f->arena, f->outputs.items, f->outputs.count, f->outputs.capacity) =
            (struct forward_output){.name = names[i],
                                    .a = {.rows = 4, .columns = 8},
                                    .b = {.largest = 1, .rms_a = 1},
                                    .rounding = {.max = 1e-6, .rms = 1e-6},
                                    .compared = true};
    return f;
}

static void differ_from(struct forward *f, size_t first)
{
    for (size_t i = first; i < f->outputs.count; i++) {
        f->outputs.items[i].agreement = DISAGREE;
        f->outputs.items[i].b.max = f->outputs.items[i].b.rms = 0.1;
    }
    f->agreement = DISAGREE;
}

static void add_op(struct forward *f, const char *name, enum agreement agreement)
{
    *ARENA_PUSH(&f->arena, f->ops.items, f->ops.count, f->ops.capacity) = (struct forward_output){
        .name = name, .a = {.rows = 4, .columns = 8}, .compared = true, .agreement = agreement};
}

static void assert_told(struct forward *f, int layer, const char *text)
{
    divergence_find(f);
    divergence_tell(f);
    assert_int_equal(f->divergence.layer, layer);
    assert_string_equal(f->divergence.text, text);
    arena_release(&f->arena);
}

static void nothing_is_told_of_what_agrees(void **state)
{
    (void)state;
    struct forward *f = made_forward();
    divergence_find(f);
    divergence_tell(f);
    assert_null(f->divergence.text);
    assert_int_equal(f->divergence.layer, -1);
    arena_release(&f->arena);
}

static void ends_of_the_model_are_named(void **state)
{
    (void)state;
    static const struct {
        size_t first;
        const char *text;
    } cases[] = {{0, "the embedding differs"},
                 {3, "the final norm differs"},
                 {4, "the output layer differs"},
                 {5, "the loss differs, and no logits do"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct forward *f = made_forward();
        differ_from(f, cases[i].first);
        assert_told(f, -1, cases[i].text);
    }
}

static void a_layer_and_its_first_op_are_named(void **state)
{
    (void)state;
    struct forward *f = made_forward();
    differ_from(f, 2);
    add_op(f, "layers.1.attention_norm", AGREE_BIT_FOR_BIT);
    add_op(f, "layers.1.qkv", DISAGREE);
    add_op(f, "layers.1.rotary", DISAGREE);
    assert_told(f, 1, "layer 1 diverges in qkv (the projection to queries, keys and values)");
    f = made_forward();
    differ_from(f, 1);
    add_op(f, "layers.0.mlp", AGREE_BUT_FOR_ROUNDING);
    assert_told(f, 0, "layer 0 diverges (in the residual sum after its MLP)");
}

static void tokens_are_named_where_not_all_differ(void **state)
{
    (void)state;
    struct forward *f = made_forward();
    differ_from(f, 0);
    f->outputs.items[0].b.rows_beyond = 2;
    f->outputs.items[0].b.first_row = 2;
    assert_told(f, -1,
                "the embedding differs, for 2 of 4 tokens: the first is 13, at position 0 of "
                "sequence 1");
}

static void results_with_gaps_name_no_layer(void **state)
{
    (void)state;
    struct forward *f = made_forward();
    differ_from(f, 2);
    f->outputs.items[1].compared = false;
    assert_told(f, -1, "hidden.2 differs, hidden.0 does not, and B has nothing between them");
    f = made_forward();
    differ_from(f, 4);
    for (size_t i = 0; i < 4; i++)
        f->outputs.items[i].compared = false;
    assert_told(f, -1, "logits differs, and B has nothing before it");
}

static void the_text_begins_where_they_begin_to_differ(void **state)
{
    (void)state;
    struct forward *f = made_forward();
    struct strbuf text = {0};
    differ_from(f, 2);
    divergence_find(f);
    divergence_tell(f);
    forward_text(&text, f, false, false);
    assert_non_null(strstr(text.data, "forward: DIFFERENT: layer 1 diverges"));
    assert_non_null(strstr(text.data, "1 before it does not differ (-v)\nhidden.1 "));
    assert_null(strstr(text.data, "\nhidden.0 "));
    strbuf_clear(&text);
    forward_text(&text, f, false, true);
    assert_non_null(strstr(text.data, "\nhidden.0 "));
    strbuf_release(&text);
    arena_release(&f->arena);
}

static void a_page_can_be_of_results_alone(void **state)
{
    (void)state;
    static const struct html_environment e = {"1", "host", "today", "ferry"};
    struct forward *f = made_forward();
    struct verdict v = {.forward = f};
    struct strbuf page = {0};
    f->num_points = 2;
    f->points[1][0] = f->points[1][1] = NAN;
    differ_from(f, 0);
    f->outputs.items[1].b.max = INFINITY;
    divergence_find(f);
    divergence_tell(f);
    report_html(&page, &v, &e);
    assert_non_null(strstr(page.data, "<b>DIFFERENT</b><span>forward: the embedding differs"));
    const char *banner = strstr(page.data, "class=\"verdict ");
    assert_non_null(banner);
    assert_null(strstr(banner + 1, "class=\"verdict "));
    assert_non_null(strstr(page.data, "aria-label=\"error by layer\""));
    assert_non_null(strstr(page.data, "aria-label=\"logits of A and B\""));
    assert_non_null(strstr(page.data, "<dd>a&lt;</dd>"));
    assert_null(strstr(page.data, "nan"));
    strbuf_release(&page);
    arena_release(&f->arena);
}

static void each_loading_is_told_from_the_others(void **state)
{
    (void)state;
    struct forward *f = made_forward();
    f->elem = ELEM_F32;
    assert_string_equal(forward_loading_text(f, FIRST_OF_A, false), "loading 1 of 3: A in f32");
    assert_string_equal(forward_loading_text(f, SECOND_OF_A, false), "loading 2 of 3: A in f64");
    assert_string_equal(forward_loading_text(f, RUN_OF_B, true),
                        "loading 3 of 3: B in f32, again for the ops");
    struct results results;
    f->results = &results;
    assert_string_equal(forward_loading_text(f, SECOND_OF_A, false), "loading 2 of 2: A in f64");
    arena_release(&f->arena);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(nothing_is_told_of_what_agrees),     TEST(ends_of_the_model_are_named),
        TEST(a_layer_and_its_first_op_are_named), TEST(tokens_are_named_where_not_all_differ),
        TEST(results_with_gaps_name_no_layer),    TEST(the_text_begins_where_they_begin_to_differ),
        TEST(a_page_can_be_of_results_alone),     TEST(each_loading_is_told_from_the_others),
    };
    return cmocka_run_group_tests_name("forward_verdict", tests, NULL, NULL);
}
