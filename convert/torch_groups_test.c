#include "convert/torch_groups.h"

#include <math.h>

#include "tests/testing.h"

static struct error err;
static struct checkpoint c;

/* ---- a checkpoint of a few parameters ---- */

static void add_native(const char *name, const char *logical, unsigned num_dims)
{
    const uint64_t shape[] = {2, 3};
    struct native_tensor *native;
    assert_ok(catalog_add_native(&c.catalog, name, NULL, DT_F32, num_dims, shape, &native, &err));
    native_add_logical(&c.catalog, native, logical);
}

static int begin(void **state)
{
    (void)state;
    checkpoint_init(&c, "ckpt");
    training_init(&c.training.run);
    add_native("embed", "embedding.word_embeddings.weight", 2);
    add_native("q", "decoder.layers.0.self_attention.linear_qkv.weight", 2);
    add_native("norm", "decoder.final_layernorm.weight", 1);
    add_native("bias", "decoder.layers.0.self_attention.linear_qkv.bias", 1);
    add_native("frozen", "decoder.layers.0.mlp.linear_fc1.weight", 2);
    return 0;
}

static int end(void **state)
{
    (void)state;
    checkpoint_release(&c);
    return 0;
}

static struct value *group_of(double lr, double decay)
{
    struct arena *a = &c.arena;
    struct value *dict = value_dict(a);
    struct value *betas[] = {value_float(a, 0.9), value_float(a, 0.95)};
    value_dict_add(a, dict, "lr", value_float(a, lr));
    value_dict_add(a, dict, "betas", value_list(a, VALUE_TUPLE, 2, betas));
    value_dict_add(a, dict, "eps", value_float(a, 1e-8));
    value_dict_add(a, dict, "weight_decay", value_float(a, decay));
    value_dict_add(a, dict, "maximize", value_bool(a, true));
    return dict;
}

static void add_group(const struct value *group, const char *const *names, double step)
{
    assert_ok(torch_groups_add(&c, group, NULL, NULL, &err));
    for (; *names; names++)
        torch_groups_add_param(&c, *names, step);
}

/* ---- tests ---- */

static void the_settings_of_a_group_are_read(void **state)
{
    (void)state;
    add_group(group_of(0.25, 0.5), (const char *const[]){"q", NULL}, 3);
    const struct param_group *g = &c.training.run.groups[0];
    assert_true(g->lr >= 0.25 && g->lr <= 0.25);
    assert_true(g->beta1 >= 0.9 && g->beta1 <= 0.9);
    assert_true(g->beta2 >= 0.95 && g->beta2 <= 0.95);
    assert_true(g->weight_decay >= 0.5 && g->weight_decay <= 0.5);
    assert_true(isnan(g->max_lr));
}

static void groups_that_a_rule_describes_are_given_it(void **state)
{
    (void)state;
    add_group(group_of(1, 0), (const char *const[]){"norm", "bias", NULL}, 3);
    add_group(group_of(1, 1), (const char *const[]){"q", "embed", NULL}, 3);
    torch_groups_find_rules(&c);
    assert_string_equal(c.training.run.groups[0].members, "vectors");
    assert_string_equal(c.training.run.groups[1].members, "matrices");
    assert_int_equal(c.training.run.step, 3);
    assert_int_equal(c.training.run.groups[1].step, 3);
    assert_int_equal(c.notes.count, 0);
}

static void one_group_has_all_whatever_they_are(void **state)
{
    (void)state;
    add_group(NULL, (const char *const[]){"q", "embed", NULL}, NAN);
    torch_groups_find_rules(&c);
    assert_string_equal(c.training.run.groups[0].members, "all");
    assert_int_equal(c.training.run.step, 0);
}

static void a_group_of_its_own_for_embeddings_leaves_the_other_matrices(void **state)
{
    (void)state;
    add_group(group_of(1, 1), (const char *const[]){"q", "frozen", NULL}, 1);
    add_group(group_of(2, 1), (const char *const[]){"embed", NULL}, 1);
    add_group(group_of(1, 0), (const char *const[]){"norm", "bias", NULL}, 1);
    torch_groups_find_rules(&c);
    assert_string_equal(c.training.run.groups[0].members, "matrices");
    assert_string_equal(c.training.run.groups[1].members, "embeddings");
    assert_string_equal(c.training.run.groups[2].members, "vectors");
}

static void groups_of_no_rule_are_noted(void **state)
{
    (void)state;
    add_group(group_of(1, 1), (const char *const[]){"q", "norm", NULL}, 1);
    add_group(group_of(1, 0), (const char *const[]){"embed", "bias", NULL}, 1);
    torch_groups_find_rules(&c);
    assert_null(c.training.run.groups[0].members);
    assert_null(c.training.run.groups[1].members);
    assert_string_equal(c.training.run.groups[0].listed, "2 listed parameters");
    assert_int_equal(c.notes.count, 1);
    assert_non_null(
        strstr(c.notes.lines[0], "2 of 2 parameter groups do not follow Megatron's rule"));
}

static void lists_of_groups_are_told_from_none(void **state)
{
    (void)state;
    struct value *empty = group_of(1, 1), *filled = group_of(1, 1), *param = value_int(&c.arena, 0);
    value_dict_add(&c.arena, empty, "params", value_list(&c.arena, VALUE_LIST, 0, NULL));
    value_dict_add(&c.arena, filled, "params", value_list(&c.arena, VALUE_LIST, 1, &param));
    add_group(group_of(1, 0), (const char *const[]){"q", "norm", NULL}, 1);
    add_group(group_of(1, 0), (const char *const[]){"embed", NULL}, 1);
    add_group(group_of(1, 0), (const char *const[]){"bias", NULL}, 1);
    add_group(empty, (const char *const[]){NULL}, 1);
    add_group(filled, (const char *const[]){NULL}, 1); /* its parameter is unknown */
    add_group(NULL, (const char *const[]){NULL}, 1);
    torch_groups_find_rules(&c);
    const char **lines;
    const size_t count = training_lines(&c.training.run, &c.arena, &lines);
    assert_true(count > 1);
    assert_string_equal(lines[1], "6 groups: 2 listed parameters (lr 1, weight decay 0), "
                                  "embeddings (lr 1, weight decay 0), "
                                  "1 listed parameter (lr 1, weight decay 0), "
                                  "no parameters (lr 1, weight decay 1), "
                                  "unknown members (lr 1, weight decay 1), unknown members");
}

static void steps_that_differ_are_named(void **state)
{
    (void)state;
    add_group(NULL, (const char *const[]){"q", NULL}, 4);
    torch_groups_add_param(&c, "embed", 3);
    torch_groups_find_rules(&c);
    assert_int_equal(c.training.run.step, 4);
    assert_non_null(strstr(c.notes.lines[0], "q 4, embed 3"));
}

static void too_many_groups_are_refused(void **state)
{
    (void)state;
    for (int i = 0; i < MAX_PARAM_GROUPS; i++)
        assert_ok(torch_groups_add(&c, NULL, NULL, NULL, &err));
    assert_int_equal(torch_groups_add(&c, NULL, NULL, NULL, &err), ERR_CORRUPT);
}

/* A dict is written as it was read, without its parameters, and with the
 * numbers that changed. */
static void a_dict_keeps_what_ferry_does_not_know(void **state)
{
    (void)state;
    struct arena *a = &c.arena;
    struct value *dict = group_of(0.25, 0.5);
    value_dict_add(a, dict, "params", value_list(a, VALUE_LIST, 0, NULL));
    add_group(dict, (const char *const[]){"q", NULL}, 3);
    struct param_group fields = c.training.run.groups[0];
    fields.lr = 0.125;
    const struct torch_out_group g = {.fields = &fields, .native = dict};
    const struct value *out = torch_group_value(a, &g);
    double lr;
    bool maximize = false;
    assert_true(value_as_float(value_get(out, "lr"), &lr) && lr >= 0.125 && lr <= 0.125);
    assert_true(value_as_bool(value_get(out, "maximize"), &maximize) && maximize);
    assert_null(value_get(out, "params"));
    assert_int_equal(out->count, dict->count - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_settings_of_a_group_are_read, begin, end),
        cmocka_unit_test_setup_teardown(groups_that_a_rule_describes_are_given_it, begin, end),
        cmocka_unit_test_setup_teardown(one_group_has_all_whatever_they_are, begin, end),
        cmocka_unit_test_setup_teardown(a_group_of_its_own_for_embeddings_leaves_the_other_matrices,
                                        begin, end),
        cmocka_unit_test_setup_teardown(groups_of_no_rule_are_noted, begin, end),
        cmocka_unit_test_setup_teardown(lists_of_groups_are_told_from_none, begin, end),
        cmocka_unit_test_setup_teardown(too_many_groups_are_refused, begin, end),
        cmocka_unit_test_setup_teardown(steps_that_differ_are_named, begin, end),
        cmocka_unit_test_setup_teardown(too_many_groups_are_refused, begin, end),
        cmocka_unit_test_setup_teardown(a_dict_keeps_what_ferry_does_not_know, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
