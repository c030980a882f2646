#include "ckpt/training.h"

#include <math.h>

#include "common/count.h"
#include "common/json.h"
#include "tests/testing.h"

static struct error err;
static struct arena arena;

static int make_arena(void **state)
{
    (void)state;
    arena_init(&arena);
    return 0;
}

static int release_arena(void **state)
{
    (void)state;
    arena_release(&arena);
    return 0;
}

static const char *printed(const struct training *t)
{
    struct strbuf text = {0};
    cJSON *tree = training_json(t);
    json_print(&text, tree, -1);
    const char *out = arena_text(&arena, text.data, text.length);
    strbuf_release(&text);
    cJSON_Delete(tree);
    return out;
}

/* Reads JSON with ' in place of ". */
static enum status read_json(const char *quoted, struct training *t, const char **unknown)
{
    char *text = arena_copy_text(&arena, quoted);
    for (char *p = text; *p; p++)
        if (*p == '\'') *p = '"';
    cJSON *tree;
    assert_ok(json_parse(text, strlen(text), JSON_NAN, &tree, &err));
    enum status st = training_from_json(t, tree, &arena, unknown, &err);
    cJSON_Delete(tree);
    return st;
}

static struct training state_of(const char *quoted)
{
    struct training t;
    const char *unknown;
    assert_ok(read_json(quoted, &t, &unknown));
    assert_null(unknown);
    return t;
}

/* A field's value, another one for each i. */
static struct scalar some_value(enum field_kind kind, size_t i)
{
    struct scalar s = {.kind = kind, .number = 0};
    if (kind == FIELD_UINT) s.number = UINT64_MAX - i;
    if (kind == FIELD_REAL) s.real = 0.1 + (double)i;
    if (kind == FIELD_BOOL) s.truth = i % 2;
    if (kind == FIELD_TEXT) s.text = "all";
    return s;
}

static void full_state(struct training *t)
{
    training_init(t);
    struct param_group *g = training_add_group(t, &arena);
    for (size_t i = 0; i < num_training_fields; i++)
        field_set(&training_fields[i].field, t, some_value(training_fields[i].field.kind, i));
    for (size_t i = 0; i < num_group_fields; i++)
        field_set(&group_fields[i], g, some_value(group_fields[i].kind, i));
}

/* ---- what is given ---- */

static void nothing_of_a_new_state_is_given(void **state)
{
    (void)state;
    struct training t;
    training_init(&t);
    for (size_t i = 0; i < num_training_fields; i++)
        assert_false(training_field_given(&training_fields[i].field, &t));
    for (unsigned part = 0; part < NUM_TRAINING_PARTS; part++)
        assert_false(training_has(&t, part));
    const struct param_group *g = training_add_group(&t, &arena);
    for (size_t i = 0; i < num_group_fields; i++)
        assert_int_equal(training_field_given(&group_fields[i], g),
                         group_fields[i].kind == FIELD_BOOL);
    assert_true(training_has(&t, TRAINING_GROUPS));
    assert_true(g->decoupled_weight_decay);
}

static void each_field_is_of_a_part(void **state)
{
    (void)state;
    for (size_t i = 0; i < num_training_fields; i++) {
        struct training t;
        training_init(&t);
        field_set(&training_fields[i].field, &t, some_value(training_fields[i].field.kind, i));
        for (unsigned part = 0; part < NUM_TRAINING_PARTS; part++)
            assert_int_equal(training_has(&t, part), part == training_fields[i].part);
    }
    struct training t;
    training_init(&t);
    t.has_rng = true;
    assert_true(training_has(&t, TRAINING_RNG));
    for (unsigned part = 0; part < NUM_TRAINING_PARTS; part++)
        assert_non_null(training_part_names[part]);
}

static void a_real_of_0_is_given_and_no_number_is_not(void **state)
{
    (void)state;
    struct training t;
    training_init(&t);
    t.min_lr = 0;
    t.max_lr = INFINITY;
    assert_string_equal(printed(&t), "{\"min_lr\":0.0}");
}

/* ---- members ---- */

static void members_follow_megatrons_rule(void **state)
{
    (void)state;
    static const struct {
        const char *logical;
        unsigned num_dims;
        bool embeddings, matrices, vectors, matrices_and_qk, vectors_without_qk, hidden;
    } cases[] = {
        {"embedding.word_embeddings.weight", 2, true, true, false, true, false, false},
        {"output_layer.weight", 2, true, true, false, true, false, false},
        {"embedding.position_embeddings.weight", 2, false, true, false, true, false, true},
        {"decoder.layers.3.self_attention.linear_qkv.weight", 2, false, true, false, true, false,
         true},
        {"decoder.layers.3.self_attention.linear_qkv.bias", 1, false, false, true, false, true,
         false},
        {"decoder.layers.3.self_attention.q_layernorm.weight", 1, false, false, true, true, false,
         false},
        {"decoder.layers.3.self_attention.k_layernorm.bias", 1, false, false, true, true, false,
         false},
        {"decoder.final_layernorm.weight", 1, false, false, true, false, true, false},
        {"some.stack.bias", 2, false, false, true, false, true, false},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *name = cases[i].logical;
        const unsigned n = cases[i].num_dims;
        assert_int_equal(group_members_find("embeddings")->has(name, n), cases[i].embeddings);
        assert_int_equal(group_members_find("matrices")->has(name, n), cases[i].matrices);
        assert_int_equal(group_members_find("hidden_matrices")->has(name, n), cases[i].hidden);
        assert_int_equal(group_members_find("vectors")->has(name, n), cases[i].vectors);
        assert_int_equal(group_members_find("matrices_and_qk_norms")->has(name, n),
                         cases[i].matrices_and_qk);
        assert_int_equal(group_members_find("vectors_without_qk_norms")->has(name, n),
                         cases[i].vectors_without_qk);
        assert_true(group_members_find("all")->has(name, n));
    }
    assert_null(group_members_find("rows"));
    assert_null(group_members_find(NULL));
}

static void a_parameter_belongs_to_the_first_rule_that_has_it(void **state)
{
    (void)state;
    struct training t = state_of("{'groups': [{'members': 'vectors'}, {'members': 'matrices'},"
                                 "{'members': 'embeddings'}, {'lr': 1},"
                                 "{'members': 'all', 'is_expert_parallel': true}]}");
    const char *head = "output_layer.weight", *norm = "decoder.final_layernorm.weight";
    assert_ptr_equal(training_group_of(&t, head, 2, false), &t.groups[2]);
    assert_ptr_equal(training_group_of(&t, norm, 1, false), &t.groups[0]);
    assert_ptr_equal(training_group_of(&t, "x.weight", 2, false), &t.groups[1]);
    assert_ptr_equal(training_group_of(&t, "x.weight", 2, true), &t.groups[4]);
    t.num_groups = 1;
    assert_null(training_group_of(&t, head, 2, false));
}

/* ---- JSON ---- */

static void what_is_written_is_what_is_read(void **state)
{
    (void)state;
    struct training full, read;
    const char *unknown;
    full_state(&full);
    cJSON *tree = training_json(&full);
    assert_ok(training_from_json(&read, tree, &arena, &unknown, &err));
    assert_null(unknown);
    for (size_t i = 0; i < num_training_fields; i++)
        assert_true(field_equal(&training_fields[i].field, &full, &read));
    assert_int_equal(read.num_groups, 1);
    for (size_t i = 0; i < num_group_fields; i++)
        assert_true(field_equal(&group_fields[i], full.groups, read.groups));
    cJSON_Delete(tree);
}

static void json_has_what_is_given(void **state)
{
    (void)state;
    struct training t;
    training_init(&t);
    assert_string_equal(printed(&t), "{}");
    t.iteration = 10;
    t.max_lr = 0.01;
    struct param_group *g = training_add_group(&t, &arena);
    g->members = "matrices";
    g->lr = 0.005;
    assert_string_equal(printed(&t),
                        "{\"iteration\":10,\"max_lr\":0.01,\"groups\":[{\"members\":\"matrices\","
                        "\"is_expert_parallel\":false,\"lr\":0.005,\"decoupled_weight_decay\":true,"
                        "\"amsgrad\":false,\"is_decoupled_lr\":false}]}");
}

static void unknown_members_are_named(void **state)
{
    (void)state;
    struct training t;
    const char *unknown;
    assert_ok(
        read_json("{'a': {}, 'step': 2, 'groups': [{}, {'b\\n': 1, 'lr': 1}]}", &t, &unknown));
    assert_string_equal(unknown, "a, groups[1].b\\x0a");
    assert_int_equal(t.step, 2);
    assert_true(t.groups[1].lr == 1);
}

static void json_of_another_kind_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *json, *message;
    } cases[] = {
        {"[]", "the training state is not an object"},
        {"{'step': -1}", "step is not a whole number from 0"},
        {"{'step': 1.5}", "step is not a whole number from 0"},
        {"{'max_lr': '1'}", "max_lr is not a finite number"},
        {"{'max_lr': NaN}", "max_lr is not a finite number"},
        {"{'max_lr': Infinity}", "max_lr is not a finite number"},
        {"{'optimizer': null}", "optimizer is not a text"},
        {"{'groups': {}}", "groups is not a list"},
        {"{'groups': [{}, 1]}", "groups[1] is not an object"},
        {"{'groups': [{'amsgrad': 0}]}", "groups[0].amsgrad is not true or false"},
        {"{'groups': [{'members': 'rows'}]}",
         "groups[0].members \"rows\" is not a known set of parameters"},
    };
    struct training t;
    const char *unknown;
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_fails(read_json(cases[i].json, &t, &unknown), ERR_CORRUPT, cases[i].message);
}

static void too_many_groups_are_refused(void **state)
{
    (void)state;
    struct training t;
    const char *unknown;
    cJSON *tree = cJSON_CreateObject(), *groups = cJSON_AddArrayToObject(tree, "groups");
    for (size_t i = 0; i < MAX_PARAM_GROUPS; i++)
        cJSON_AddItemToArray(groups, cJSON_CreateObject());
    assert_ok(training_from_json(&t, tree, &arena, &unknown, &err));
    cJSON_AddItemToArray(groups, cJSON_CreateObject());
    assert_fails(training_from_json(&t, tree, &arena, &unknown, &err), ERR_CORRUPT,
                 "groups has more than 1000 items");
    cJSON_Delete(tree);
}

/* ---- two states ---- */

static void check_differences(const char *x, const char *y, size_t count,
                              const struct training_difference *expected)
{
    struct training_difference *found;
    struct training a = state_of(x), b = state_of(y);
    assert_int_equal(training_differences(&a, &b, &arena, &found), count);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(found[i].field, expected[i].field);
        assert_string_equal(found[i].values[0], expected[i].values[0]);
        assert_string_equal(found[i].values[1], expected[i].values[1]);
    }
}

static void fields_of_both_states_are_compared(void **state)
{
    (void)state;
    static const struct training_difference two[] = {{"step", {"2", "3"}},
                                                     {"max_lr", {"0.1", "0.10000000000000002"}}};
    check_differences("{'step': 2, 'iteration': 4, 'max_lr': 0.1}",
                      "{'step': 3, 'max_lr': 0.10000000000000002, 'min_lr': 0}", 2, two);
    check_differences("{'step': 2}", "{'groups': [{'members': 'all'}]}", 0, NULL);
}

static void groups_are_matched_by_members(void **state)
{
    (void)state;
    static const struct training_difference found[] = {
        {"groups[0].lr", {"1.0", "2.0"}},
        {"groups[1]", {"vectors", "no such group"}},
        {"groups[3].eps", {"3.0", "4.0"}},
        {"groups[0]", {"no such group", "all of experts"}},
    };
    check_differences("{'groups': [{'members': 'matrices', 'lr': 1}, {'members': 'vectors'},"
                      "{'eps': 1}, {'eps': 3}]}",
                      "{'groups': [{'members': 'all', 'is_expert_parallel': true}, {'eps': 1},"
                      "{'members': 'matrices', 'lr': 2}, {'eps': 4}]}",
                      COUNT(found), found);
}

/* ---- lines ---- */

static void check_lines(const struct training *t, size_t count, const char *const *expected)
{
    const char **lines;
    assert_int_equal(training_lines(t, &arena, &lines), count);
    for (size_t i = 0; i < count; i++)
        assert_string_equal(lines[i], expected[i]);
}

static void a_line_tells_each_part(void **state)
{
    (void)state;
    static const char *const expected[] = {
        "step 2, iteration 10, 40 samples",
        "adam, 2 groups: matrices (lr 0.01, weight decay 0.1), all of experts",
        "schedule: cosine, lr 0.005 to 0.0005, warmup of 32 samples, decay over 160, at sample 80",
        "loss scale 65536, 3 good steps, hysteresis 2",
        "states of random number generators",
    };
    struct training t = state_of(
        "{'step': 2, 'iteration': 10, 'consumed_train_samples': 40, 'optimizer': 'adam',"
        "'groups': [{'members': 'matrices', 'lr': 0.01, 'weight_decay': 0.1},"
        "{'members': 'all', 'is_expert_parallel': true}], 'lr_decay_style': 'cosine',"
        "'max_lr': 0.005, 'min_lr': 0.0005, 'lr_warmup_steps': 32, 'lr_decay_steps': 160,"
        "'num_steps': 80, 'loss_scale': 65536, 'growth_tracker': 3, 'hysteresis_tracker': 2}");
    t.has_rng = true;
    check_lines(&t, COUNT(expected), expected);
}

static void what_is_not_given_has_no_line(void **state)
{
    (void)state;
    struct training t;
    training_init(&t);
    check_lines(&t, 0, NULL);
    t.wd_incr_steps = 1;
    check_lines(&t, 0, NULL);
    t.max_lr = 1;
    check_lines(&t, 1, (const char *const[]){"schedule: lr 1"});
}

static void a_line_shows_eight_groups(void **state)
{
    (void)state;
    const char **lines;
    struct training t;
    training_init(&t);
    for (int i = 0; i < 10; i++)
        training_add_group(&t, &arena)->members = "all";
    assert_int_equal(training_lines(&t, &arena, &lines), 1);
    assert_string_equal(lines[0], "10 groups: all, all, all, all, all, all, all, all, 2 more");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_of_a_new_state_is_given),
        cmocka_unit_test(each_field_is_of_a_part),
        cmocka_unit_test(a_real_of_0_is_given_and_no_number_is_not),
        cmocka_unit_test(members_follow_megatrons_rule),
        cmocka_unit_test(a_parameter_belongs_to_the_first_rule_that_has_it),
        cmocka_unit_test(what_is_written_is_what_is_read),
        cmocka_unit_test(json_has_what_is_given),
        cmocka_unit_test(unknown_members_are_named),
        cmocka_unit_test(json_of_another_kind_is_refused_by_name),
        cmocka_unit_test(too_many_groups_are_refused),
        cmocka_unit_test(fields_of_both_states_are_compared),
        cmocka_unit_test(groups_are_matched_by_members),
        cmocka_unit_test(a_line_tells_each_part),
        cmocka_unit_test(what_is_not_given_has_no_line),
        cmocka_unit_test(a_line_shows_eight_groups),
    };
    return cmocka_run_group_tests_name("training", tests, make_arena, release_arena);
}
