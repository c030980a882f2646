/* Converts Namespaces to trees of JSON, and values of trees to Python values. */
#include "convert/megatron/args_tree.h"

#include <math.h>

#include "common/count.h"
#include "common/json.h"
#include "convert/testing_convert.h"

static const char *printed(const cJSON *tree)
{
    struct strbuf text = {0};
    json_print(&text, tree, -1);
    const char *out = arena_text(&scratch, text.data, text.length);
    strbuf_release(&text);
    return out;
}

/* The tree of a Namespace that has one attribute, x. */
static const char *tree_of(struct value *v)
{
    struct value *d = value_dict(&scratch);
    value_dict_set(&scratch, d, "x", v);
    cJSON *tree = args_tree(value_instance(&scratch, "argparse", "Namespace", d));
    const char *out = printed(tree);
    cJSON_Delete(tree);
    return out;
}

static void values_become_json(void **state)
{
    (void)state;
    struct arena *a = &scratch;
    struct value *two[] = {value_int(a, 1), value_float(a, 2)};
    struct value *list = value_list(a, VALUE_LIST, 2, two), *layout = value_dict(a);
    struct value *nested = value_list(a, VALUE_LIST, 1, &list);
    value_dict_set(a, layout, "input_data", value_text(a, "Et|tL"));
    const struct {
        struct value *v;
        const char *json;
    } cases[] = {
        {value_none(a), "null"},
        {value_bool(a, true), "true"},
        {value_int(a, -3), "-3"},
        {value_int(a, INT64_MAX), "9223372036854775807"},
        {value_float(a, 3), "3.0"},
        {value_float(a, 1e-5), "1e-05"},
        {value_float(a, INFINITY), "\"inf\""},
        {value_text(a, "gelu"), "\"gelu\""},
        {list, "[1,2.0]"},
        {value_list(a, VALUE_TUPLE, 2, two), "[1,2.0]"},
        {nested, "\"[[1, 2.0]]\""},
        {value_global(a, "torch", "bfloat16"), "\"torch.bfloat16\""},
        {value_instance(a, "megatron.core", "PipelineParallelLayerLayout", layout), "\"Et|tL\""},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_string_equal(tree_of(cases[i].v), arena_printf(a, "{\"x\":%s}", cases[i].json));
}

/* As numpy pickles np.bool_(True) and np.int64(3). */
static struct value *numpy_scalar(const char *code, const char *bytes, size_t n)
{
    struct arena *a = &scratch;
    struct value *args[] = {value_text(a, code), value_bool(a, false), value_bool(a, true)};
    struct value *parts[] = {value_int(a, 3), value_text(a, n == 1 ? "|" : "<")};
    struct value *dtype = value_instance(a, "numpy", "dtype", value_list(a, VALUE_TUPLE, 2, parts));
    struct value *v = value_instance(a, "numpy._core.multiarray", "scalar", NULL);
    struct value *both[] = {dtype, value_bytes(a, bytes, n)};
    dtype->object->args = value_list(a, VALUE_TUPLE, 3, args);
    v->object->args = value_list(a, VALUE_TUPLE, 2, both);
    return v;
}

static void numpy_scalars_are_what_they_hold(void **state)
{
    (void)state;
    struct value *truth = numpy_scalar("b1", "\1", 1);
    struct value *three = numpy_scalar("i8", "\3\0\0\0\0\0\0\0", 8);
    struct value *two[] = {three, truth};
    assert_string_equal(tree_of(truth), "{\"x\":true}");
    assert_string_equal(tree_of(three), "{\"x\":3}");
    assert_string_equal(tree_of(value_list(&scratch, VALUE_TUPLE, 2, two)), "{\"x\":[3,true]}");
}

/* copyreg's state of a class with __slots__. */
static void a_state_may_be_a_dict_and_slots(void **state)
{
    (void)state;
    struct value *d = value_dict(&scratch), *both[] = {d, value_dict(&scratch)};
    value_dict_set(&scratch, d, "x", value_int(&scratch, 1));
    cJSON *tree = args_tree(value_instance(&scratch, "argparse", "Namespace",
                                           value_list(&scratch, VALUE_TUPLE, 2, both)));
    assert_string_equal(printed(tree), "{\"x\":1}");
    cJSON_Delete(tree);
}

static void what_is_no_namespace_is_an_empty_tree(void **state)
{
    (void)state;
    cJSON *none = args_tree(NULL), *text = args_tree(value_text(&scratch, "x"));
    assert_string_equal(printed(none), "{}");
    assert_string_equal(printed(text), "{}");
    cJSON_Delete(none);
    cJSON_Delete(text);
}

/* A list that many attributes share is not copied for each. */
static void lists_have_room_for_a_million_items_together(void **state)
{
    (void)state;
    enum { ITEMS = 1 << 16, NAMES = 1 << 10 };
    struct value *d = value_dict(&scratch), *one = value_int(&scratch, 1);
    struct value *list = value_list(&scratch, VALUE_LIST, 0, NULL);
    uint64_t copied = 0;
    for (unsigned i = 0; i < ITEMS; i++)
        value_append(&scratch, list, one);
    for (unsigned i = 0; i < NAMES; i++)
        value_dict_add(&scratch, d, arena_printf(&scratch, "x%u", i), list);
    cJSON *tree = args_tree(d);
    for (const cJSON *i = tree->child; i; i = i->next)
        copied += cJSON_IsArray(i) ? (uint64_t)cJSON_GetArraySize(i) : 0;
    assert_int_equal(copied, 1 << 20);
    cJSON_Delete(tree);
}

static void json_becomes_values(void **state)
{
    (void)state;
    static const struct {
        const char *name, *json, *python;
    } cases[] = {
        {"x", "null", "None"},
        {"x", "false", "False"},
        {"x", "3", "3"},
        {"x", "3.0", "3.0"},
        {"x", "1e-05", "1e-05"},
        {"x", "'gelu'", "'gelu'"},
        {"x", "[1,0]", "[1, 0]"},
        {"window_size", "[7,0]", "(7, 0)"},
        {"x", "{'_target_':'torch.bfloat16','_call_':false}", "torch.bfloat16"},
        {"x", "{'_target_':'int'}", "builtins.int"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct strbuf text = {0};
        cJSON *item = json_tree(cases[i].json);
        value_print(&text, args_value(&scratch, cases[i].name, item), 100);
        assert_string_equal(text.data, cases[i].python);
        strbuf_release(&text);
        cJSON_Delete(item);
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(values_become_json),
        TEST(numpy_scalars_are_what_they_hold),
        TEST(a_state_may_be_a_dict_and_slots),
        TEST(what_is_no_namespace_is_an_empty_tree),
        TEST(lists_have_room_for_a_million_items_together),
        TEST(json_becomes_values),
    };
    return cmocka_run_group_tests_name("args_tree", tests, NULL, NULL);
}
