#include "convert/numbered.h"

#include "common/count.h"
#include "tests/testing.h"

enum { MOST = 8 };

/* Letters are shapes: parameters of the model "abab"; numbers of groups "ab|ab",
 * '?' without states. */
struct example {
    const char *model, *groups;
    const char *params; /* the numbers' parameters, by digits; NULL: refused */
    const char *why;
};

static size_t kind_of(char letter)
{
    return letter == '?' ? 0 : (size_t)(letter - 'a' + 1);
}

static void check(const struct example *x)
{
    struct arena a;
    size_t kinds[MOST], param_of[MOST], num_params = 0, count = 0, group = 0;
    struct numbered numbers[MOST];
    arena_init(&a);
    for (const char *p = x->model; *p; p++)
        kinds[num_params++] = kind_of(*p);
    for (const char *p = x->groups; *p; p++) {
        if (*p == '|')
            group++;
        else
            numbers[count++] = (struct numbered){group, kind_of(*p)};
    }
    const char *why = numbered_assign(&a, kinds, num_params, numbers, count, param_of);
    if (x->params && why) fail_msg("%s of %s: %s", x->groups, x->model, why);
    if (!x->params && (!why || !strstr(why, x->why)))
        fail_msg("%s of %s: %s", x->groups, x->model, why ? why : "assigned");
    for (size_t i = 0; i < count && x->params; i++)
        assert_int_equal(param_of[i], x->params[i] - '0');
    arena_release(&a);
}

static void numbers_are_assigned_only_where_one_order_fits(void **state)
{
    static const struct example examples[] = {
        {"abab", "abab", "0123", NULL},
        {"abab", "a?a?", "0123", NULL}, /* one group of all: the model's order */
        {"abab", "aa|bb", "0213", NULL},
        {"abab", "bb|aa", "1302", NULL},
        {"abab", "|aa||bb", "0213", NULL}, /* empty groups */
        {"abacab", "aaa|bcb", "024135", NULL},
        {"abab", "bb", "13", NULL}, /* a are frozen */
        {"", "", "", NULL},
        {"abab", "ab|ab", NULL, "parameters of one shape are in groups 0 and 1"},
        {"abab", "aab|b", NULL, "parameters of one shape are in groups 0 and 1"},
        {"abab", "ab", NULL, "1 parameters of number 0's shape are listed, but the model has 2"},
        {"abab", "aaa", NULL, "3 parameters of number 0's shape are listed, but the model has 2"},
        {"abab", "aa|b?", NULL, "parameter number 3 has no state that shows its shape"},
        {"abab", "baba", NULL, "group 0 has another order than the model"},
        {"abacab", "aaa|bbc", NULL, "group 1 has another order than the model"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(examples); i++)
        check(&examples[i]);
}

/* ---- files ---- */

static struct arena arena;

static int begin(void **state)
{
    (void)state;
    arena_init(&arena);
    return 0;
}

static int end(void **state)
{
    (void)state;
    arena_release(&arena);
    return 0;
}

/* A group that lists the numbers [first, first + count). */
static struct value *group_of(int64_t first, uint32_t count)
{
    struct value *list = value_list(&arena, VALUE_LIST, 0, NULL), *group = value_dict(&arena);
    for (uint32_t i = 0; i < count; i++)
        value_append(&arena, list, value_int(&arena, first + i));
    value_dict_add(&arena, group, "params", list);
    return group;
}

static void add_states(struct value *state, int64_t number, uint64_t rows)
{
    const uint64_t one[] = {1}, shape[] = {rows, 2};
    struct value *states = value_dict(&arena);
    value_dict_add(&arena, states, "step", value_tensor(&arena, "0", DT_F32, 1, one));
    value_dict_add(&arena, states, "exp_avg", value_tensor(&arena, "1", DT_F32, 2, shape));
    value_dict_put(&arena, state, value_int(&arena, number), states);
}

static const uint64_t wide[] = {3, 2}, tall[] = {5, 2};
static const struct numbered_param model[] = {
    {"a", 2, wide, NULL}, {"b", 2, tall, NULL}, {"c", 2, wide, NULL}};

static void numbers_are_those_of_the_groups(void **state)
{
    struct value *states = value_dict(&arena), *groups = value_list(&arena, VALUE_LIST, 0, NULL);
    const char **names;
    (void)state;
    add_states(states, 0, 5);
    add_states(states, 1, 3);
    add_states(states, 2, 3);
    value_append(&arena, groups, group_of(0, 1));
    value_append(&arena, groups, group_of(1, 0));
    value_append(&arena, groups, group_of(1, 2));
    assert_null(numbered_names(&arena, states, groups, NULL, model, COUNT(model), &names));
    assert_string_equal(names[0], "b");
    assert_string_equal(names[1], "a");
    assert_string_equal(names[2], "c");
}

/* A short pickle may have one long list in many groups. */
static void groups_list_no_more_than_the_model_has(void **state)
{
    struct value *groups = value_list(&arena, VALUE_LIST, 0, NULL), *group = group_of(0, 3);
    const char **names;
    (void)state;
    for (int i = 0; i < 1000; i++)
        value_append(&arena, groups, group);
    assert_string_equal(
        numbered_names(&arena, value_dict(&arena), groups, NULL, model, COUNT(model), &names),
        "groups list 3000 parameters, but the model has 3");
    groups = value_list(&arena, VALUE_LIST, 0, NULL);
    value_append(&arena, groups, group_of(1, 2));
    assert_string_equal(
        numbered_names(&arena, value_dict(&arena), groups, NULL, model, COUNT(model), &names),
        "groups do not list 0 to 1, each once");
}

/* Such as weights in pieces: then one group has all, in the model's order. */
static void unknown_shapes_leave_one_group_of_all(void **state)
{
    static const struct numbered_param pieces[] = {
        {"a", 2, wide, NULL}, {"b", 0, NULL, NULL}, {"c", 2, wide, NULL}};
    struct value *states = value_dict(&arena), *groups = value_list(&arena, VALUE_LIST, 0, NULL);
    const char **names;
    (void)state;
    add_states(states, 0, 7);
    value_append(&arena, groups, group_of(0, 3));
    assert_null(numbered_names(&arena, states, groups, NULL, pieces, COUNT(pieces), &names));
    assert_string_equal(names[2], "c");
    value_append(&arena, groups, group_of(3, 0));
    groups->items[0] = group_of(0, 2);
    groups->items[1] = group_of(2, 1);
    assert_non_null(numbered_names(&arena, states, groups, NULL, pieces, COUNT(pieces), &names));
}

/* Two groups with parameters of one shape, as of layers. */
static void values_of_masters_tell_parameters_of_one_shape_apart(void **state)
{
    static const struct numbered_param layers[] = {
        {"a", 2, wide, "1"}, {"b", 2, wide, "2"}, {"c", 2, wide, "3"}};
    static const struct numbered_param equal[] = {
        {"a", 2, wide, "1"}, {"b", 2, wide, "2"}, {"c", 2, wide, "2"}};
    static const char *const masters[] = {"2", "1", "3"}, *const unlike[] = {"2", "1", "4"};
    struct value *states = value_dict(&arena), *groups = value_list(&arena, VALUE_LIST, 0, NULL);
    const char **names;
    (void)state;
    for (int i = 0; i < 3; i++)
        add_states(states, i, 3);
    value_append(&arena, groups, group_of(0, 1));
    value_append(&arena, groups, group_of(1, 2));
    assert_non_null(numbered_names(&arena, states, groups, NULL, layers, COUNT(layers), &names));
    assert_null(numbered_names(&arena, states, groups, masters, layers, COUNT(layers), &names));
    assert_string_equal(names[0], "b");
    assert_string_equal(names[1], "a");
    assert_string_equal(names[2], "c");
    assert_non_null(numbered_names(&arena, states, groups, unlike, layers, COUNT(layers), &names));
    assert_non_null(numbered_names(&arena, states, groups, masters, equal, COUNT(equal), &names));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_assigned_only_where_one_order_fits),
        cmocka_unit_test_setup_teardown(numbers_are_those_of_the_groups, begin, end),
        cmocka_unit_test_setup_teardown(groups_list_no_more_than_the_model_has, begin, end),
        cmocka_unit_test_setup_teardown(values_of_masters_tell_parameters_of_one_shape_apart, begin,
                                        end),
        cmocka_unit_test_setup_teardown(unknown_shapes_leave_one_group_of_all, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
