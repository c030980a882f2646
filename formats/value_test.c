#include "formats/value.h"

#include "formats/value_internal.h"
#include "tests/testing.h"

static struct arena a;
static struct error err;
static struct strbuf text; /* what was printed or visited */

static int setup(void **state)
{
    (void)state;
    arena_init(&a);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    arena_release(&a);
    strbuf_release(&text);
    return 0;
}

static const char *printed(const struct value *v, size_t max_bytes)
{
    strbuf_clear(&text);
    value_print(&text, v, max_bytes);
    return text.data;
}

static struct value *number(int64_t n)
{
    return value_int(&a, n);
}

static struct value *tensor(void)
{
    return value_tensor(&a, "0", DT_F32, 1, (uint64_t[]){3});
}

/* ---- containers ---- */

static void keys_that_are_set_again_keep_their_place(void **state)
{
    (void)state;
    struct value *d = value_dict(&a);
    char name[16];
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "k%d", i);
        value_dict_set(&a, d, name, number(i));
    }
    value_dict_set(&a, d, "k7", number(-7));
    assert_int_equal(d->count, 100);
    assert_int_equal(value_get(d, "k7")->integer, -7);
    assert_ptr_equal(value_get(d, "k7"), d->items[2 * 7 + 1]);
}

static void of_equal_keys_the_last_is_got(void **state)
{
    (void)state;
    struct value *d = value_dict(&a);
    value_dict_set(&a, d, "a", number(1));
    value_dict_set(&a, d, "b", number(2));
    d->items[2] = value_text(&a, "a");
    assert_int_equal(value_get(d, "a")->integer, 2);
}

static void a_list_grows_by_appending(void **state)
{
    (void)state;
    struct value *list =
        value_list(&a, VALUE_LIST, 3, (struct value *[]){number(0), number(1), number(2)});
    for (int i = 3; i < 50; i++)
        value_append(&a, list, number(i));
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(list->items[i]->integer, i);
}

static void attributes_are_found_in_a_state_and_in_slots(void **state)
{
    (void)state;
    struct value *plain = value_dict(&a), *slots = value_dict(&a);
    value_dict_set(&a, plain, "tp", number(2));
    value_dict_set(&a, slots, "_local_tensor", tensor());
    struct value *o = value_instance(&a, "argparse", "Namespace", plain);
    assert_int_equal(value_get(o, "tp")->integer, 2);
    struct value *both[] = {value_none(&a), slots};
    o = value_instance(&a, "torch", "DTensor", value_list(&a, VALUE_TUPLE, 2, both));
    assert_int_equal(value_get(o, "_local_tensor")->kind, VALUE_TENSOR);
    assert_null(value_get(o, "tp"));
    assert_null(value_get(NULL, "tp"));
    assert_true(value_is_instance(o, NULL, "DTensor"));
    assert_false(value_is_instance(o, "numpy", "DTensor"));
}

/* ---- looks ---- */

/* As numpy pickles np.int16(-2) and np.float32(1.5) of either byte order. */
static struct value *numpy_scalar(const char *code, const char *order, const char *bytes, size_t n)
{
    struct value *args[] = {value_text(&a, code), value_bool(&a, false), value_bool(&a, true)};
    struct value *parts[] = {number(3), value_text(&a, order)};
    struct value *dtype =
        value_instance(&a, "numpy", "dtype", value_list(&a, VALUE_TUPLE, 2, parts));
    dtype->object->args = value_list(&a, VALUE_TUPLE, 3, args);
    struct value *v = value_instance(&a, "numpy._core.multiarray", "scalar", NULL);
    struct value *both[] = {dtype, value_bytes(&a, bytes, n)};
    v->object->args = value_list(&a, VALUE_TUPLE, 2, both);
    return v;
}

static void numpy_scalars_are_the_numbers_that_they_hold(void **state)
{
    (void)state;
    int64_t n;
    double x;
    bool b;
    assert_true(value_as_int(numpy_scalar("i2", "<", "\xFE\xFF", 2), &n));
    assert_int_equal(n, -2);
    assert_true(value_as_int(numpy_scalar("i2", ">", "\xFF\xFE", 2), &n));
    assert_int_equal(n, -2);
    assert_true(value_as_float(numpy_scalar("f4", "<", "\0\0\xC0\x3F", 4), &x));
    assert_true(x == 1.5);
    assert_true(value_as_bool(numpy_scalar("b1", "|", "\1", 1), &b));
    assert_true(b);
    assert_false(value_as_int(numpy_scalar("f4", "<", "\0\0\xC0\x3F", 4), &n));
    assert_false(value_as_bool(numpy_scalar("u1", "|", "\1", 1), &b));
    assert_false(value_as_float(numpy_scalar("f2", "<", "\0\0", 2), &x));
    assert_false(value_as_int(numpy_scalar("i2", "<", "\0", 1), &n));
    assert_false(value_as_int(numpy_scalar("u8", "<", "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 8), &n));
}

static void numbers_are_what_python_takes_them_for(void **state)
{
    (void)state;
    int64_t n;
    double x;
    bool b;
    assert_true(value_as_int(value_bool(&a, true), &n) && n == 1);
    assert_true(value_as_float(number(3), &x) && x == 3);
    assert_false(value_as_int(value_float(&a, 3), &n));
    assert_false(value_as_bool(number(1), &b));
    assert_false(value_as_int(tensor(), &n));
    assert_false(value_as_int(NULL, &n));
    assert_null(value_as_text(number(1)));
}

static void a_text_with_a_nul_is_no_c_text(void **state)
{
    (void)state;
    struct value *v = value_bytes(&a, "a\0b", 3);
    v->kind = VALUE_TEXT;
    assert_null(value_as_text(v));
    assert_string_equal(value_as_text(value_text(&a, "ab")), "ab");
}

/* ---- printing ---- */

static void values_print_as_python_writes_them(void **state)
{
    (void)state;
    struct value *d = value_dict(&a);
    struct value *items[] = {
        value_none(&a),         value_bool(&a, true),     number(-1), value_float(&a, 0.1),
        value_float(&a, 1e-05), value_text(&a, "it's\n"), tensor()};
    value_dict_set(&a, d, "k", value_list(&a, VALUE_TUPLE, 7, items));
    assert_string_equal(printed(d, 1000),
                        "{'k': (None, True, -1, 0.1, 1e-05, 'it's\\x0a', tensor(F32 [3]))}");
    assert_string_equal(printed(value_list(&a, VALUE_TUPLE, 1, items), 1000), "(None,)");
    assert_string_equal(printed(value_global(&a, "torch", "bfloat16"), 99), "torch.bfloat16");
    struct value *big = value_bytes(&a, "\0\0\0\0\0\0\0\0\1", 9);
    big->kind = VALUE_BIG_INT;
    assert_string_equal(printed(big, 99), "0x10000000000000000");
    big = value_bytes(&a, "\0\0\0\0\0\0\0\0\xFF", 9);
    big->kind = VALUE_BIG_INT;
    assert_string_equal(printed(big, 99), "-0x10000000000000000");
}

static void printing_ends_at_cycles_depth_and_length(void **state)
{
    (void)state;
    struct value *d = value_dict(&a), *deep = value_none(&a);
    value_dict_set(&a, d, "me", d);
    assert_string_equal(printed(d, 1000), "{'me': ...}");
    for (int i = 0; i < 100000; i++)
        deep = value_list(&a, VALUE_LIST, 1, &deep);
    assert_non_null(strstr(printed(deep, 1000), "[[...]]"));
    assert_string_equal(printed(value_text(&a, "abcdefgh"), 5), "'abcd");
}

/* ---- walking ---- */

static enum status visit(void *context, const char *path, const struct value *v, struct error *e)
{
    (void)context, (void)v, (void)e;
    strbuf_add_text(&text, path);
    strbuf_add_char(&text, ' ');
    return OK;
}

static const char *walked(const struct value *v)
{
    strbuf_clear(&text);
    strbuf_add(&text, "", 0);
    assert_ok(value_walk(v, "", visit, NULL, &err));
    return text.data;
}

static void paths_join_keys_positions_and_attributes(void **state)
{
    (void)state;
    struct value *d = value_dict(&a), *inner = value_dict(&a), *attributes = value_dict(&a);
    struct value *list[] = {number(1), tensor()};
    value_dict_set(&a, inner, "w", tensor());
    value_dict_set(&a, inner, "n", number(1));
    value_dict_set(&a, attributes, "_local", tensor());
    value_dict_set(&a, d, "model", inner);
    value_dict_set(&a, d, "list", value_list(&a, VALUE_LIST, 2, list));
    value_dict_set(&a, d, "o", value_instance(&a, "m", "C", attributes));
    inner->items[2] = number(7); /* n */
    inner->items[3] = tensor();
    assert_string_equal(walked(d), "model.w model.7 list.1 o._local ");
}

static void an_empty_key_is_a_component_of_a_path(void **state)
{
    (void)state;
    struct value *d = value_dict(&a), *inner = value_dict(&a);
    value_dict_set(&a, inner, "w", tensor());
    value_dict_set(&a, d, "", inner);
    value_dict_set(&a, d, "w", tensor());
    assert_string_equal(walked(d), ".w w ");
    assert_string_equal(walked(tensor()), " ");
}

static void what_an_object_was_made_from_is_walked_too(void **state)
{
    (void)state;
    struct value *o = value_instance(&a, "functools", "partial", NULL), *t = tensor();
    o->object->args = value_list(&a, VALUE_TUPLE, 1, &t);
    o->object->items = value_list(&a, VALUE_LIST, 1, &t);
    o->object->pairs = value_dict(&a);
    value_dict_set(&a, o->object->pairs, "k", t);
    assert_string_equal(walked(o), "0 k args.0 ");
}

static void shared_containers_are_walked_once_and_shared_tensors_under_each_name(void **state)
{
    (void)state;
    struct value *d = value_dict(&a), *t = tensor(), *level = value_dict(&a);
    value_dict_set(&a, level, "x", t);
    for (int i = 0; i < 60; i++) { /* 2^60 paths */
        struct value *next = value_dict(&a);
        value_dict_set(&a, next, "l", level);
        value_dict_set(&a, next, "r", level);
        level = next;
    }
    value_dict_set(&a, d, "a", t);
    value_dict_set(&a, d, "b", t);
    value_dict_set(&a, d, "self", d);
    value_dict_set(&a, d, "m", level);
    const char *got = walked(d);
    assert_memory_equal(got, "a b m.l.l.", 10);
    assert_int_equal(strlen(got), strlen("a b m ") + 60 * 2 + 2);
}

static void of_equal_keys_the_last_is_walked(void **state)
{
    (void)state;
    struct value *d = value_dict(&a);
    value_dict_set(&a, d, "a", tensor());
    value_dict_set(&a, d, "b", value_list(&a, VALUE_LIST, 1, (struct value *[]){tensor()}));
    d->items[2] = value_text(&a, "a");
    assert_string_equal(walked(d), "a.0 ");
}

static void a_million_levels_are_walked_without_recursion(void **state)
{
    (void)state;
    struct value *v = value_none(&a);
    for (int i = 0; i < 1000000; i++)
        v = value_list(&a, VALUE_TUPLE, 1, &v);
    assert_string_equal(walked(v), "");
}

static void names_that_are_no_utf8_or_very_long_are_refused_for_tensors_only(void **state)
{
    (void)state;
    char long_key[VALUE_PATH_BYTES];
    struct value *d = value_dict(&a), *e = value_dict(&a), *f = value_dict(&a);
    value_dict_set(&a, d, "a\xFF", number(1));
    assert_string_equal(walked(d), "");
    value_dict_set(&a, d, "a\xFF", tensor());
    assert_fails(value_walk(d, "", visit, NULL, &err), ERR_CORRUPT,
                 "tensor a\\xff: its name is not UTF-8");
    memset(long_key, 'k', sizeof long_key - 1);
    long_key[sizeof long_key - 1] = '\0';
    value_dict_set(&a, f, "w", tensor());
    value_dict_set(&a, f, "ww", number(1));
    value_dict_set(&a, e, long_key, f);
    walked(e);
    f->items[0] = value_text(&a, "www");
    assert_fails(value_walk(e, "", visit, NULL, &err), ERR_CORRUPT, "longer than 4096 bytes");
}

static void a_nul_in_a_key_stands_as_c0_80(void **state)
{
    (void)state;
    struct value *d = value_dict(&a), *key = value_bytes(&a, "a\0b", 3);
    key->kind = VALUE_TEXT;
    value_dict_set(&a, d, "k", tensor());
    d->items[0] = key;
    assert_string_equal(walked(d), "a\xC0\x80"
                                   "b ");
}

static enum status refuse(void *context, const char *path, const struct value *v, struct error *e)
{
    (void)v;
    ++*(int *)context;
    return fail(e, DIFFERENT, "at %s", path);
}

static void a_walk_stops_where_the_visitor_refuses(void **state)
{
    (void)state;
    int count = 0;
    struct value *items[] = {tensor(), tensor()};
    struct value *list = value_list(&a, VALUE_LIST, 2, items);
    assert_fails(value_walk(list, "p", refuse, &count, &err), DIFFERENT, "at p.0");
    assert_int_equal(count, 1);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(keys_that_are_set_again_keep_their_place),
        TEST(of_equal_keys_the_last_is_got),
        TEST(a_list_grows_by_appending),
        TEST(attributes_are_found_in_a_state_and_in_slots),
        TEST(numpy_scalars_are_the_numbers_that_they_hold),
        TEST(numbers_are_what_python_takes_them_for),
        TEST(a_text_with_a_nul_is_no_c_text),
        TEST(values_print_as_python_writes_them),
        TEST(printing_ends_at_cycles_depth_and_length),
        TEST(paths_join_keys_positions_and_attributes),
        TEST(an_empty_key_is_a_component_of_a_path),
        TEST(what_an_object_was_made_from_is_walked_too),
        TEST(shared_containers_are_walked_once_and_shared_tensors_under_each_name),
        TEST(of_equal_keys_the_last_is_walked),
        TEST(a_million_levels_are_walked_without_recursion),
        TEST(names_that_are_no_utf8_or_very_long_are_refused_for_tensors_only),
        TEST(a_nul_in_a_key_stands_as_c0_80),
        TEST(a_walk_stops_where_the_visitor_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
