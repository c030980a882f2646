#include "convert/megatron/legacy/rank_states.h"

#include "common/count.h"
#include "convert/megatron/optim/testing_values.h"

static struct checkpoint c;
static struct rank_states states;

static int begin(void **state)
{
    if (scratch_begin(state)) return -1;
    checkpoint_init(&c, "test");
    states = (struct rank_states){0};
    return 0;
}

static int end(void **state)
{
    checkpoint_release(&c);
    return scratch_end(state);
}

/* Adds the states of the rank's value `optimizer`, in a file of its own. */
static void add_value(const struct value *optimizer, size_t rank)
{
    struct torch_file t;
    assert_ok(torch_open(&t, &c.catalog.stored,
                         write_value(arena_printf(&scratch, "%zu.pt", rank), optimizer), 0,
                         UINT64_MAX, &err));
    assert_ok(rank_states_add(&states, &c, &t, t.root, rank, 0,
                              arena_printf(&scratch, "rank %zu", rank), &err));
    torch_close(&t);
}

static void add(const char *optimizer, size_t rank)
{
    add_value(python(optimizer), rank);
}

static void restart(void)
{
    checkpoint_release(&c);
    checkpoint_init(&c, "test");
    states = (struct rank_states){0};
}

/* ---- the parameters of a rank ---- */

static const uint64_t matrix[] = {2, 3}, vector[] = {3}, square[] = {2, 2};

#define EMBEDDING                                                                                  \
    {                                                                                              \
        "model.embedding.word_embeddings.weight", false, DT_BF16, 2, matrix                        \
    }
#define NORM                                                                                       \
    {                                                                                              \
        "model.decoder.layers.0.input_layernorm.weight", false, DT_BF16, 1, vector                 \
    }
#define ROUTER                                                                                     \
    {                                                                                              \
        "model.decoder.layers.0.mlp.router.weight", false, DT_F32, 2, square                       \
    }
#define EXPERT                                                                                     \
    {                                                                                              \
        "model.decoder.layers.0.mlp.experts.linear_fc2.weight", true, DT_BF16, 2, matrix           \
    }
#define HEAD                                                                                       \
    {                                                                                              \
        "model.output_layer.weight", false, DT_BF16, 2, matrix                                     \
    }
static const struct rank_param params[] = {EMBEDDING, NORM, ROUTER, EXPERT, HEAD};

/* "exp_avg of 0; param of 4", or why they cannot be told. */
static const char *resolved(size_t rank)
{
    size_t numbers[64];
    const char *out = "";
    assert_true(states.count <= COUNT(numbers));
    for (size_t i = 0; i < COUNT(numbers); i++)
        numbers[i] = 77;
    const char *why =
        rank_states_resolve(&states, &c, rank, params, COUNT(params), numbers, &scratch);
    if (why) return why;
    for (size_t i = 0; i < states.count; i++)
        if (states.items[i].rank != rank)
            assert_int_equal(numbers[i], 77);
        else
            out = arena_printf(&scratch, "%s%s%s of %zu", out, *out ? "; " : "",
                               states.items[i].state, numbers[i]);
    return out;
}

static const char *resolved_of(const char *optimizer)
{
    restart();
    add(optimizer, 0);
    assert_null(c.training.optimizer.unread);
    return resolved(0);
}

static const char *unread_of(const char *optimizer)
{
    restart();
    add(optimizer, 0);
    return c.training.optimizer.unread ? c.training.optimizer.unread : "read";
}

/* ---- which parameter is which ---- */

/* By weight decay: matrices are 0, 2, 3, 4 and the vector is 1. */
static void groups_are_told_by_weight_decay(void **state)
{
    (void)state;
    assert_string_equal(resolved_of("{'state': {0: {'exp_avg': T[2,3]}, 1: {'exp_avg': T[2,2]},"
                                    "3: {'exp_avg': T[2,3]}, 4: {'exp_avg': T[3], 'step': T}},"
                                    "'param_groups': [{'wd_mult': 1.0, 'params': [0,1,2,3]},"
                                    "{'wd_mult': 0.0, 'params': [4]}]}"),
                        "exp_avg of 0; exp_avg of 2; exp_avg of 4; exp_avg of 1");
    assert_string_equal(resolved_of("{'state': {9: {'exp_avg': T[3]}},"
                                    "'param_groups': [{'weight_decay': 0.0, 'params': [9]},"
                                    "{'weight_decay': 0.1, 'params': [0,1,2,3]}]}"),
                        "exp_avg of 1");
    assert_string_equal(resolved_of("{'state': {9: {'exp_avg': T[3]}}, 'param_groups':"
                                    "[{'wd_mult': 1.0, 'params': [0,9,2,3,4]}]}"),
                        "exp_avg of 1");
}

static void numbers_of_states_may_be_in_any_order(void **state)
{
    (void)state;
    assert_string_equal(
        resolved_of("{'state': {4: {'a': T[2,3]}, 1: {'b': T[3]}, 0: {'c': T[2,3]}},"
                    "'param_groups': [{'params': [0,1,2,3,4]}]}"),
        "c of 0; b of 1; a of 4");
}

/* With a learning rate of their own, embeddings and the head are a group: 0 and
 * 4. */
static void groups_are_told_by_their_learning_rate(void **state)
{
    (void)state;
    assert_string_equal(
        resolved_of("{'state': {0: {'m': T[2,2]}, 1: {'m': T[2,3]}, 3: {'m': T[2,3]}},"
                    "'param_groups': ["
                    "{'wd_mult': 1.0, 'is_decoupled_lr': False, 'params': [0,1]},"
                    "{'wd_mult': 1.0, 'is_decoupled_lr': True, 'params': [2,3]},"
                    "{'wd_mult': 0.0, 'is_decoupled_lr': False, 'params': [4]}]}"),
        "m of 2; m of 3; m of 4");
}

/* Masters are those of low precision alone: the router, F32, has none. */
static void masters_are_counted_without_parameters_of_full_precision(void **state)
{
    (void)state;
    static const char text[] =
        "{'%s': {'state': {}, 'param_groups': [{'wd_mult': 1.0, 'params': [0,1,2,3]},"
        "{'wd_mult': 0.0, 'params': [4]}]}, '%s': [[T[2,3],T[2,3],T[2,3]],[T[3]]]}";
    const char *expected = "param of 0; param of 3; param of 4; param of 1";
    assert_string_equal(
        resolved_of(arena_printf(&scratch, text, "optimizer", "fp32_from_fp16_params")), expected);
    assert_string_equal(
        resolved_of(arena_printf(&scratch, text, "optimizer_state_dict", "fp32_from_fp16")),
        expected);
    assert_string_equal(resolved_of("{'state': {0: {'master_param': T[2,3]}},"
                                    "'param_groups': [{'params': [0,1,2,3,4]}]}"),
                        "param of 0");
}

/* The last of a chain has the experts; another rank may have one of them. */
static void experts_are_of_the_last_optimizer_of_a_chain(void **state)
{
    (void)state;
    static const char dense[] = "{'state': {3: {'m': T[2,3]}}, 'param_groups':"
                                "[{'params': [0,1,2,3]}]}",
                      experts[] = "{'state': {0: {'m': T[2,3]}}, 'param_groups':"
                                  "[{'params': [0]}]}";
    assert_string_equal(resolved_of(arena_printf(&scratch, "[%s,%s]", dense, experts)),
                        "m of 4; m of 3");
    assert_string_equal(resolved_of(arena_printf(&scratch, "{0: %s, 1: %s}", dense, experts)),
                        "m of 4; m of 3");
    assert_string_equal(resolved_of(arena_printf(&scratch, "[None,%s]", experts)), "m of 3");
}

static void ranks_do_not_mix(void **state)
{
    (void)state;
    add("{'state': {0: {'a': T[2,3]}}, 'param_groups': [{'wd_mult': 0.0, 'params': [0,1,2,3,4]}]}",
        0);
    add("{'state': {1: {'b': T[2,2]}, 4: {'c': T[3]}}, 'param_groups': ["
        "{'wd_mult': 1.0, 'params': [0,1,2,3]}, {'wd_mult': 0.0, 'params': [4]}]}",
        1);
    assert_string_equal(resolved(0), "a of 0");
    assert_string_equal(resolved(1), "b of 2; c of 1");
    assert_non_null(stored_find(&c.catalog.stored, "rank 0.0.0.0.a"));
    assert_non_null(stored_find(&c.catalog.stored, "rank 1.0.0.1.b"));
}

static void what_contradicts_the_rule_is_named(void **state)
{
    (void)state;
    assert_string_equal(resolved_of("{'state': {0: {'m': T[2,3]}}, 'param_groups':"
                                    "[{'params': [0,1,2,3]}]}"),
                        "rank 0.0.0.0.m: its group has 4 parameters, but Megatron's rule gives 5, "
                        "4 of low precision (optimizers with frozen parameters cannot be read, "
                        "since rank files do not name them)");
    assert_string_equal(resolved_of("{'state': {0: {'m': T[3,2]}}, 'param_groups':"
                                    "[{'params': [0,1,2,3,4]}]}"),
                        "rank 0.0.0.0.m has shape [3, 2], but by Megatron's order it belongs to "
                        "model.embedding.word_embeddings.weight of shape [2, 3]");
    assert_string_equal(
        resolved_of("{'optimizer': {'param_groups': [{'params': [0,1,2,3,4]}]},"
                    "'fp32_from_fp16_params': [[T[2,3],T[3],T[2,3],T[2,3],T[2,3]]]}"),
        "rank 0.0.0.0.param: its group has 5 master weights, but 4 parameters of low "
        "precision");
    assert_string_equal(
        resolved_of("{'optimizer': {'param_groups': [{'params': [0,1,2,3,4]}]},"
                    "'fp32_from_fp16_params': [[T[2,3],T[3],T[2,3]]]}"),
        "rank 0.0.0.0.param: its group has 3 master weights, but 4 parameters of low "
        "precision");
}

/* ---- steps ---- */

static void steps_that_differ_are_noted(void **state)
{
    (void)state;
    static const struct {
        const char *states, *note;
    } cases[] = {
        {"{0: {'step': 3}, 1: {'step': 3.0}}", NULL},
        {"{0: {'step': T}, 1: {'step': T}, 2: {'step': 0}}", NULL},
        {"{0: {'step': 3}, 1: {'step': 4}, 2: {'step': 5}}",
         "2 parameters have made a different number of steps than the first, such as 4 instead of "
         "3"},
        {"{0: {'step': 3}, 1: {'step': T}}",
         "1 parameter has made a different number of steps than the first, such as 0 instead of 3"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        restart();
        add(arena_printf(&scratch, "{'state': %s, 'param_groups': [{'params': [0,1,2]}]}",
                         cases[i].states),
            0);
        assert_null(c.training.optimizer.unread);
        assert_int_equal(c.notes.count, cases[i].note != NULL);
        if (cases[i].note) assert_non_null(strstr(c.notes.lines[0], cases[i].note));
    }
    restart();
    add("{'state': {0: {'step': T[2]}}, 'param_groups': [{'params': [0]}]}", 0);
    assert_non_null(strstr(c.training.optimizer.unread, "found 2 elements of F32"));
}

/* ---- what is no such optimizer ---- */

static void other_optimizers_are_unread(void **state)
{
    (void)state;
    static const struct {
        const char *optimizer, *why;
    } cases[] = {
        {"{'state': {}}", "the optimizer lacks a list of parameter groups"},
        {"{'param_groups': {}}", "the optimizer lacks a list of parameter groups"},
        {"{'param_groups': [{'step': 1}]}", "its optimizer lists no parameters"},
        {"{'optimizer': {'param_groups': [{'params': []}]}, 'fp32_from_fp16_params': []}",
         "master weights of 0 groups, but the optimizer has 1"},
        {"{'optimizer': {'param_groups': []}, 'fp32_from_fp16_params': {}}",
         "master weights of 0 groups"},
        {"{'state': {0: {'m': 1}}, 'param_groups': [{'params': [0]}]}",
         "m of a parameter is not a valid tensor"},
        {"{'state': {0: {'m.v': T[2]}}, 'param_groups': [{'params': [0]}]}",
         "m.v of a parameter is not a valid state name"},
        {"{'state': {0: {'': T[2]}}, 'param_groups': [{'params': [0]}]}",
         "is not a valid state name"},
        {"{'state': {-1: {'m': T[2]}}, 'param_groups': [{'params': [-1,-1]}]}",
         "parameter -1 is in the groups twice"},
        {"{'state': {5: {'m': T[2]}}, 'param_groups': [{'params': [5]},{'params': [0,5]}]}",
         "parameter 5 is in the groups twice"},
        {"[{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]", "17 optimizers"},
        {"{'state': {0: T}, 'param_groups': [{'params': [0]}]}", "parameter 0 has no dict"},
        {"{'state': {0: {}, 'x': {}}, 'param_groups': [{'params': [0,'x']}]}",
         "states without a parameter number: 1"},
        {"{'state': {0: {}, 7: {}}, 'param_groups': [{'params': [0]}]}",
         "the groups lack parameter 7, which has states"},
        {"{'state': {0: {'m': None}, 1: {}}, 'param_groups': [{'params': [0,1,'x']}]}", "read"},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        if (!strstr(unread_of(cases[i].optimizer), cases[i].why))
            fail_msg("%s: %s", cases[i].optimizer, unread_of(cases[i].optimizer));
}

/* ---- values that are in many places ---- */

static struct value *shared_list(struct value *item, size_t count)
{
    struct value **items = arena_array(&scratch, count, sizeof *items);
    for (size_t i = 0; i < count; i++)
        items[i] = item;
    return value_list(&scratch, VALUE_LIST, count, items);
}

/* A small file must not become 10^12 states. */
static void a_dict_of_states_in_many_places_is_unread(void **state)
{
    (void)state;
    enum { MANY = 20000 };
    struct value *of_one = value_dict(&scratch), *by_number = value_dict(&scratch),
                 *optimizer = value_dict(&scratch), *group = value_dict(&scratch),
                 *numbers = value_list(&scratch, VALUE_LIST, 0, NULL), *tensor = python("T[2]");
    for (int i = 0; i < MANY; i++) {
        value_dict_add(&scratch, of_one, arena_printf(&scratch, "m%d", i), tensor);
        value_dict_put(&scratch, by_number, value_int(&scratch, MANY - i), of_one);
        value_append(&scratch, numbers, value_int(&scratch, i));
    }
    value_dict_add(&scratch, group, "params", numbers);
    value_dict_add(&scratch, optimizer, "state", by_number);
    value_dict_add(&scratch, optimizer, "param_groups", shared_list(group, 1));
    add_value(optimizer, 0);
    assert_non_null(strstr(c.training.optimizer.unread, "has too many states"));
    assert_int_equal(states.count, 0);
    rank_states_outline(optimizer, &scratch);
}

static void a_list_of_parameters_in_many_groups_is_unread(void **state)
{
    (void)state;
    struct value *group = value_dict(&scratch), *optimizer = value_dict(&scratch);
    value_dict_add(&scratch, group, "params", shared_list(value_int(&scratch, 0), 100000));
    value_dict_add(&scratch, optimizer, "param_groups", shared_list(group, 1000));
    add_value(optimizer, 0);
    assert_non_null(strstr(c.training.optimizer.unread, "1100000 parameters in the groups"));
    restart();
    value_dict_put(&scratch, optimizer, value_text(&scratch, "param_groups"),
                   shared_list(group, 1000000));
    add_value(optimizer, 0);
    assert_non_null(c.training.optimizer.unread);
}

static void a_list_of_masters_in_many_groups_is_unread(void **state)
{
    (void)state;
    struct value *groups = shared_list(python("{'params': [0]}"), 1000),
                 *inner = value_dict(&scratch), *optimizer = value_dict(&scratch);
    value_dict_add(&scratch, inner, "param_groups", groups);
    value_dict_add(&scratch, optimizer, "optimizer", inner);
    value_dict_add(&scratch, optimizer, "fp32_from_fp16_params",
                   shared_list(shared_list(python("T[2]"), 100000), 1000));
    add_value(optimizer, 0);
    assert_non_null(
        strstr(c.training.optimizer.unread, "100000 master weights for a group of 1 parameters"));
    assert_int_equal(states.count, 0);
}

/* ---- the outline ---- */

static const char *outline(const char *optimizer)
{
    struct strbuf text = {0};
    value_print(&text, rank_states_outline(python(optimizer), &scratch), 1000);
    const char *out = arena_text(&scratch, text.data, text.length);
    strbuf_release(&text);
    return out;
}

static void the_outline_has_no_states(void **state)
{
    (void)state;
    assert_string_equal(outline("{'state': {0: {'m': T[2]}, 1: {'step': 5}},'param_groups': [1]}"),
                        "{'state': {'common_step': 5}, 'param_groups': [1]}");
    assert_string_equal(outline("{'optimizer': {'state': {}, 'param_groups': [1]},"
                                "'grad_scaler': 7, 'fp32_from_fp16_params': [[T[2]]]}"),
                        "{'optimizer': {'param_groups': [1]}, 'grad_scaler': 7}");
    assert_string_equal(outline("{0: {'param_groups': [1]}, 1: {'param_groups': [2]}}"),
                        "[{'param_groups': [1]}, {'param_groups': [2]}]");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(groups_are_told_by_weight_decay),
        TEST(numbers_of_states_may_be_in_any_order),
        TEST(groups_are_told_by_their_learning_rate),
        TEST(masters_are_counted_without_parameters_of_full_precision),
        TEST(experts_are_of_the_last_optimizer_of_a_chain),
        TEST(ranks_do_not_mix),
        TEST(what_contradicts_the_rule_is_named),
        TEST(steps_that_differ_are_noted),
        TEST(other_optimizers_are_unread),
        TEST(a_dict_of_states_in_many_places_is_unread),
        TEST(a_list_of_parameters_in_many_groups_is_unread),
        TEST(a_list_of_masters_in_many_groups_is_unread),
        TEST(the_outline_has_no_states),
    };
    return cmocka_run_group_tests_name("rank_states", tests, NULL, NULL);
}
