#include "validate/compare/compare.h"

#include "common/count.h"
#include "validate/compare/stored_names.h"
#include "validate/report/verdict.h"
#include "validate/testing_validate.h"

static void print_json(struct strbuf *out, const struct verdict *v)
{
    cJSON *o = verdict_json(v);
    json_print(out, o, 2);
    cJSON_Delete(o);
}

static struct compare_options options;

static int begin(void **state)
{
    options = plain_options();
    return scratch_begin(state);
}

/* Two tensors that are alike, a norm and a scalar. */
static struct made *some(uint64_t *seed)
{
    struct made *m = arena_alloc(&scratch, sizeof *m);
    made_fill(made_add(m, "model.layers.0.w", DT_F32, SHAPE(300, 100)), seed);
    made_fill(made_add(m, "model.layers.1.w", DT_F32, SHAPE(300, 100)), seed);
    made_fill(made_add(m, "model.norm.weight", DT_BF16, SHAPE(100)), seed);
    made_fill(made_add(m, "scale", DT_F32, 0, NULL), seed);
    return m;
}

static enum outcome outcome_of(const struct comparison *c, const char *name)
{
    return compared_find(c, name)->outcome;
}

static void equal_sides_are_identical_and_nothing_is_counted(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = some(&seed);
    struct compared_sides x;
    struct comparison *c = compare_sides(&x, a, a, &options);
    assert_true(compare_tensors_pass(c));
    assert_int_equal(c->counts[IDENTICAL], 4);
    assert_int_equal(c->bytes[0], 2 * 300 * 100 * 4 + 200 + 4);
    assert_int_equal(c->read_bytes, 2 * c->bytes[0]);
    assert_string_equal(verdict_word(c), "identical");
    release_sides(&x);
}

static void each_bit_of_each_element_matters(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    struct made *a = some(&seed);
    for (int i = 0; i < 30; i++) {
        struct made *b = made_copy(a);
        struct made_tensor *t = &b->tensors[test_below(&seed, b->count)];
        uint64_t byte = test_below(&seed, t->bytes), element = byte / dtype_bytes(t->dtype);
        ((unsigned char *)t->elements)[byte] ^= (unsigned char)(1u << test_below(&seed, 8));
        struct compared_sides x;
        struct comparison *c = compare_sides(&x, a, b, &options);
        assert_int_equal(compare_num_different(c), 1);
        const struct compared *found = compared_find(c, t->name);
        assert_int_equal(found->outcome, VALUES_DIFFER);
        assert_int_equal(statistics_different(&found->statistics), 1);
        assert_int_equal(found->statistics.first, element);
        release_sides(&x);
    }
}

static void what_only_one_side_has_fails_as_do_dtypes_and_shapes(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = some(&seed), *b = made_copy(a);
    made_find(b, "scale")->name = "scales";
    struct made_tensor *norm = made_find(b, "model.norm.weight");
    norm->num_dims = 2;
    norm->shape[0] = 10;
    norm->shape[1] = 10;
    struct made_tensor *w = made_find(b, "model.layers.1.w");
    w->dtype = DT_I32;
    struct compared_sides x;
    struct comparison *c = compare_sides(&x, a, b, &options);
    assert_int_equal(outcome_of(c, "scale"), ONLY_IN_A);
    assert_int_equal(outcome_of(c, "scales"), ONLY_IN_B);
    assert_int_equal(outcome_of(c, "model.norm.weight"), SHAPE_DIFFERS);
    assert_int_equal(outcome_of(c, "model.layers.1.w"), DTYPE_DIFFERS);
    assert_false(compared_find(c, "model.layers.1.w")->counted);
    assert_int_equal(outcome_of(c, "model.layers.0.w"), IDENTICAL);
    assert_int_equal(compare_num_different(c), 4);
    release_sides(&x);
}

static void within_a_tolerance_a_tensor_passes_and_is_counted(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = some(&seed), *b = made_copy(a);
    struct made_tensor *w = made_find(b, "model.layers.1.w"),
                       *n = made_find(b, "model.norm.weight");
    for (uint64_t i = 0; i < w->numel; i++)
        made_set(w, i, made_get(w, i) * (1 + 1e-6));
    for (uint64_t i = 0; i < n->numel; i++)
        made_set(n, i, made_get(n, i) * 1.01);
    const struct {
        struct tolerance tolerance;
        size_t within, different;
    } rows[] = {
        {{0}, 0, 2},
        {{.by_ulps = true, .max_ulp = 0}, 0, 2},
        {{.by_ulps = true, .max_ulp = 20}, 2, 0},
        {{.by_bounds = true, .rtol = 1e-5}, 1, 1},
        {{.by_bounds = true, .rtol = 0.02}, 2, 0},
        {{.by_bounds = true, .atol = 1}, 2, 0},
        {{.by_bounds = true, .by_ulps = true, .rtol = 1e-5, .max_ulp = 4}, 2, 0},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct compared_sides x;
        options.tolerance = rows[i].tolerance;
        struct comparison *c = compare_sides(&x, a, b, &options);
        assert_int_equal(c->counts[WITHIN], rows[i].within);
        assert_int_equal(compare_num_different(c), rows[i].different);
        release_sides(&x);
    }
}

static void two_dtypes_pass_within_bounds_only(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = arena_alloc(&scratch, sizeof *a), *b = arena_alloc(&scratch, sizeof *b);
    struct made_tensor *x = made_fill(made_add(a, "w", DT_F32, SHAPE(50, 50)), &seed),
                       *y = made_add(b, "w", DT_BF16, SHAPE(50, 50));
    for (uint64_t i = 0; i < x->numel; i++)
        made_set(y, i, made_get(x, i));
    const struct {
        struct tolerance tolerance;
        enum outcome outcome;
    } rows[] = {
        {{0}, DTYPE_DIFFERS},
        {{.by_ulps = true, .max_ulp = 100000}, DTYPE_DIFFERS},
        {{.by_bounds = true, .rtol = 0.001}, DTYPE_DIFFERS},
        {{.by_bounds = true, .rtol = 0.01}, WITHIN},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct compared_sides sides;
        options.tolerance = rows[i].tolerance;
        struct comparison *c = compare_sides(&sides, a, b, &options);
        assert_int_equal(outcome_of(c, "w"), rows[i].outcome);
        assert_true(compared_find(c, "w")->counted);
        release_sides(&sides);
    }
}

/* A distance of 0 steps is known, too. */
static void the_same_values_in_two_dtypes_are_no_steps_apart(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = arena_alloc(&scratch, sizeof *a), *b = arena_alloc(&scratch, sizeof *b);
    struct made_tensor *y = made_fill(made_add(b, "w", DT_BF16, SHAPE(50, 50)), &seed),
                       *x = made_add(a, "w", DT_F32, SHAPE(50, 50));
    for (uint64_t i = 0; i < x->numel; i++)
        made_set(x, i, made_get(y, i));
    const struct {
        struct tolerance tolerance;
        enum outcome outcome;
    } rows[] = {
        {{0}, DTYPE_DIFFERS},
        {{.by_ulps = true, .max_ulp = 100000}, DTYPE_DIFFERS},
        {{.by_bounds = true}, WITHIN},
        {{.by_bounds = true, .by_ulps = true}, WITHIN},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct compared_sides sides;
        options.tolerance = rows[i].tolerance;
        struct comparison *c = compare_sides(&sides, a, b, &options);
        assert_int_equal(outcome_of(c, "w"), rows[i].outcome);
        release_sides(&sides);
    }
}

static void integers_have_no_tolerance(void **state)
{
    (void)state;
    struct made *a = arena_alloc(&scratch, sizeof *a), *b;
    made_add(a, "ids", DT_I64, SHAPE(20));
    made_add(a, "mask", DT_BOOL, SHAPE(20));
    b = made_copy(a);
    ((char *)b->tensors[0].elements)[3 * 8] = 1;
    ((char *)b->tensors[1].elements)[7] = 1;
    options.tolerance = (struct tolerance){true, true, UINT64_MAX, 1e9, 1e9};
    struct compared_sides x;
    struct comparison *c = compare_sides(&x, a, b, &options);
    assert_int_equal(outcome_of(c, "ids"), VALUES_DIFFER);
    assert_int_equal(outcome_of(c, "mask"), VALUES_DIFFER);
    assert_int_equal(compared_find(c, "ids")->statistics.first, 3);
    assert_int_equal(statistics_different(&compared_find(c, "mask")->statistics), 1);
    release_sides(&x);
}

static void small_floats_are_compared_by_their_bytes(void **state)
{
    static const enum dtype dtypes[] = {DT_F8_E4M3, DT_F8_E5M2, DT_F8_E8M0, DT_F4};
    (void)state;
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        struct made *a = arena_alloc(&scratch, sizeof *a), *b;
        made_add(a, "w", dtypes[i], SHAPE(6, 32));
        made_add(a, "same", dtypes[i], SHAPE(8));
        b = made_copy(a);
        ((unsigned char *)b->tensors[0].elements)[40] = 0x11;
        struct compared_sides x;
        struct comparison *c = compare_sides(&x, a, b, &options);
        const struct compared *t = compared_find(c, "w");
        assert_int_equal(t->outcome, VALUES_DIFFER);
        assert_int_equal(statistics_different(&t->statistics), 1);
        assert_int_equal(t->statistics.first, 40);
        assert_int_equal(outcome_of(c, "same"), IDENTICAL);
        assert_null(t->hint);
        release_sides(&x);
    }
}

static void tensors_without_elements_and_of_one_are_no_trouble(void **state)
{
    (void)state;
    struct made *a = arena_alloc(&scratch, sizeof *a), *b;
    made_add(a, "empty", DT_F32, SHAPE(0, 5));
    made_add(a, "none", DT_F32, SHAPE(0));
    made_add(a, "scalar", DT_F32, 0, NULL);
    made_add(a, "one", DT_BF16, SHAPE(1, 1, 1));
    b = made_copy(a);
    made_find(b, "none")->dtype = DT_BF16;
    made_find(b, "empty")->shape[1] = 7;
    made_set(made_find(b, "scalar"), 0, NAN);
    made_set(made_find(b, "one"), 0, 1);
    struct compared_sides x;
    struct comparison *c = compare_sides(&x, a, b, &options);
    assert_int_equal(outcome_of(c, "empty"), SHAPE_DIFFERS);
    assert_int_equal(outcome_of(c, "none"), DTYPE_DIFFERS);
    assert_int_equal(outcome_of(c, "scalar"), VALUES_DIFFER);
    assert_int_equal(compared_find(c, "scalar")->statistics.unpaired, 1);
    assert_int_equal(outcome_of(c, "one"), VALUES_DIFFER);
    for (size_t i = 0; i < c->num_tensors; i++)
        assert_null(c->tensors[i].hint);
    release_sides(&x);
}

static void beside_nan_on_one_side_no_distance_is_said(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = some(&seed), *b = made_copy(a);
    struct strbuf text = {0};
    for (int i = 0; i < 2; i++) {
        made_set(made_find(b, "model.layers.1.w"), 17, i ? INFINITY : NAN);
        struct compared_sides x;
        struct verdict v = {.c = compare_sides(&x, a, b, &options)};
        verdict_text(&text, &v, false);
        assert_non_null(strstr(text.data, "1 of 30000        nan         nan      nan  [0, 17]"
                                          "     nan\n    NaN or Inf on one side: 1\n"));
        text.length = 0;
        print_json(&text, &v);
        static const char *const members[] = {"max_difference", "max_ulp", "relative_error",
                                              "cosine"};
        for (size_t k = 0; k < COUNT(members); k++)
            assert_non_null(strstr(text.data, arena_printf(&scratch, "\"%s\": null", members[k])));
        text.length = 0;
        release_sides(&x);
    }
    strbuf_release(&text);
}

static void shapes_that_nearly_overflow_are_no_trouble(void **state)
{
    static const uint64_t shapes[][4] = {
        {0, UINT64_C(1) << 62, 4, 1}, {UINT64_C(1) << 40, 0, UINT64_C(1) << 20, 1}, {1, 1, 1, 0}};
    (void)state;
    struct made *a = arena_alloc(&scratch, sizeof *a), *b;
    made_add(a, "x", DT_F32, 4, shapes[0]);
    made_add(a, "y", DT_F32, 4, shapes[1]);
    made_add(a, "z", DT_F32, 4, shapes[2]);
    b = made_copy(a);
    made_find(b, "x")->shape[2] = 2;
    made_find(b, "z")->shape[0] = UINT64_C(1) << 60;
    struct compared_sides x;
    struct comparison *c = compare_sides(&x, a, b, &options);
    assert_int_equal(outcome_of(c, "x"), SHAPE_DIFFERS);
    assert_int_equal(outcome_of(c, "y"), IDENTICAL);
    assert_int_equal(outcome_of(c, "z"), SHAPE_DIFFERS);
    release_sides(&x);
}

static void globs_choose_what_is_compared(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = some(&seed), *b = made_copy(a);
    made_set(made_find(b, "scale"), 0, 9);
    const char *layers[] = {"*.layers.*"}, *scale[] = {"scale", "*norm*"}, *nothing[] = {"x"};
    struct arg_list only = {layers, 1}, ignore = {scale, 2}, none = {nothing, 1};
    struct compared_sides x;
    options.only = &only;
    struct comparison *c = compare_sides(&x, a, b, &options);
    assert_true(compare_tensors_pass(c));
    assert_int_equal(c->num_tensors, 2);
    assert_int_equal(c->num_left_out, 2);
    release_sides(&x);
    options.only = NULL;
    options.ignore = &ignore;
    c = compare_sides(&x, a, b, &options);
    assert_true(compare_tensors_pass(c));
    assert_int_equal(c->num_tensors, 2);
    compare_release(c);
    options.only = &none;
    assert_fails(compare_run(c, x.sides, &options, &err), ERR_USAGE,
                 "--only and --ignore leave out all 4 tensors");
    release_sides(&x);
}

static void the_worst_come_first(void **state)
{
    static const char *const order[] = {"scale", "scales", "model.norm.weight", "model.layers.1.w",
                                        "model.layers.0.w"};
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = some(&seed), *b = made_copy(a);
    made_find(b, "scale")->name = "scales";
    made_find(b, "model.norm.weight")->shape[0] = 99;
    made_find(b, "model.norm.weight")->bytes = 198;
    made_set(made_find(b, "model.layers.0.w"), 5, 1);
    made_set(made_find(b, "model.layers.1.w"), 5, 1000);
    struct compared_sides x;
    struct comparison *c = compare_sides(&x, a, b, &options);
    size_t count;
    const struct compared **worst = compare_worst(c, &count);
    assert_int_equal(count, 5);
    for (size_t i = 0; i < 5; i++)
        if (strcmp(worst[i]->name, order[i])) fail_msg("%zu: %s", i, worst[i]->name);
    release_sides(&x);
}

/* ---- what is said ---- */

static void coordinates_are_those_of_the_element(void **state)
{
    (void)state;
    const uint64_t shape[] = {3, 4, 5}, zero[] = {3, 0, 5};
    struct tensor t = {.num_dims = 3, .shape = shape, .numel = 60};
    assert_string_equal(coordinates_text(&scratch, t.num_dims, t.shape, 0), "[0, 0, 0]");
    assert_string_equal(coordinates_text(&scratch, t.num_dims, t.shape, 59), "[2, 3, 4]");
    assert_string_equal(coordinates_text(&scratch, t.num_dims, t.shape, 26), "[1, 1, 1]");
    t = (struct tensor){.num_dims = 3, .shape = zero};
    assert_string_equal(coordinates_text(&scratch, t.num_dims, t.shape, 0), "[0, 0, 0]");
    t = (struct tensor){.numel = 1};
    assert_string_equal(coordinates_text(&scratch, t.num_dims, t.shape, 0), "[]");
}

static void the_text_begins_with_the_verdict(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = some(&seed), *b = made_copy(a);
    made_set(made_find(b, "model.layers.1.w"), 123, 7.25);
    struct compared_sides x;
    struct verdict v = {.c = compare_sides(&x, a, b, &options), .seconds = 1.5};
    struct strbuf text = {0};
    verdict_text(&text, &v, false);
    const char *begin = "DIFFERENT: 1 of 4 tensors, 240 kB, 1.50 s\nA  ";
    assert_int_equal(strncmp(text.data, begin, strlen(begin)), 0);
    assert_non_null(strstr(text.data, "\nlayer 1 "));
    assert_null(strstr(text.data, "\nlayer 0 "));
    assert_non_null(strstr(text.data, "1 of 30000"));
    assert_non_null(strstr(text.data, "[1, 23]"));
    assert_non_null(strstr(text.data, "no hint holds for 1 tensor: model.layers.1.w\n"));
    strbuf_release(&text);
    release_sides(&x);
}

static void json_is_strict_and_has_every_tensor(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = some(&seed), *b = made_copy(a);
    made_find(b, "scale")->name = "\"scale\"\n";
    made_set(made_find(b, "model.layers.1.w"), 0, NAN);
    for (uint64_t i = 0; i < 30000; i++)
        made_set(made_find(b, "model.layers.0.w"), i, 0);
    struct compared_sides x;
    struct verdict v = {.c = compare_sides(&x, a, b, &options), .seconds = 1.5};
    struct strbuf text = {0};
    cJSON *tree;
    print_json(&text, &v);
    assert_ok(json_parse(text.data, text.length, JSON_STRICT, &tree, &err));
    assert_string_equal(json_as_text(json_get(tree, "verdict")), "different");
    assert_int_equal(cJSON_GetArraySize(json_get(tree, "tensors")), 5);
    assert_int_equal(cJSON_GetArraySize(json_get(tree, "hints")), 1);
    cJSON_Delete(tree);
    strbuf_release(&text);
    release_sides(&x);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(equal_sides_are_identical_and_nothing_is_counted),
        TEST(each_bit_of_each_element_matters),
        TEST(what_only_one_side_has_fails_as_do_dtypes_and_shapes),
        TEST(within_a_tolerance_a_tensor_passes_and_is_counted),
        TEST(two_dtypes_pass_within_bounds_only),
        TEST(the_same_values_in_two_dtypes_are_no_steps_apart),
        TEST(integers_have_no_tolerance),
        TEST(small_floats_are_compared_by_their_bytes),
        TEST(tensors_without_elements_and_of_one_are_no_trouble),
        TEST(beside_nan_on_one_side_no_distance_is_said),
        TEST(shapes_that_nearly_overflow_are_no_trouble),
        TEST(globs_choose_what_is_compared),
        TEST(the_worst_come_first),
        TEST(coordinates_are_those_of_the_element),
        TEST(the_text_begins_with_the_verdict),
        TEST(json_is_strict_and_has_every_tensor),
    };
    return cmocka_run_group_tests_name("compare", tests, NULL, NULL);
}
