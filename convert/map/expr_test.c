#include "convert/map/expr.h"

#include "common/count.h"
#include "tests/testing.h"

static const struct term flags[] = {{.kind = TERM_BOOL, .truth = true}, {.kind = TERM_BOOL}};

static bool lookup(const void *context, const char *name, size_t length, int64_t index,
                   struct term *out)
{
    (void)context;
    if (length == 5 && memcmp(name, "heads", 5) == 0 && index < 0)
        *out = term_whole(32);
    else if (length == 3 && memcmp(name, "moe", 3) == 0 && index >= 0)
        *out = term_whole(index % 2);
    else if (length == 4 && memcmp(name, "hf.x", 4) == 0)
        *out = term_whole(0);
    else if (length == 6 && memcmp(name, "hf.act", 6) == 0)
        *out = term_text("silu and more", 4);
    else if (length == 7 && memcmp(name, "hf.null", 7) == 0)
        *out = (struct term){.kind = TERM_NONE};
    else if (length == 3 && memcmp(name, "odd", 3) == 0) /* as made without memory */
        *out = (struct term){.kind = TERM_LIST, .length = 2};
    else if (length == 5 && memcmp(name, "flags", 5) == 0 && index < 0)
        *out = (struct term){.kind = TERM_LIST, .items = flags, .length = 2};
    else
        return false;
    return true;
}

static struct arena lists;
static const struct expr_names names = {lookup, NULL, &lists};
static struct error err;

static int64_t value(const char *text)
{
    int64_t out = -1;
    assert_ok(expr_eval(text, strlen(text), &names, &out, &err));
    return out;
}

static void operators_bind_as_in_c(void **state)
{
    (void)state;
    assert_int_equal(value("1 + 2*3"), 7);
    assert_int_equal(value("(1 + 2)*3"), 9);
    assert_int_equal(value("10 - 2 - 3"), 5);
    assert_int_equal(value("heads / 8 + 2"), 6);
    assert_int_equal(value("!hf.x && heads >= 32 || 0"), 1);
    assert_int_equal(value("heads % 5 == 2"), 1);
    assert_int_equal(value("heads // 5 * 2"), value("heads - heads % 5") / 5 * 2);
    assert_int_equal(value("1 < 2 != 0"), 1);
    assert_int_equal(value(" moe[2 + 1] "), 1);
}

static struct term any_value(const char *text)
{
    struct term out;
    assert_ok(expr_value(text, strlen(text), &names, &out, &err));
    return out;
}

static double real(const char *text)
{
    const struct term v = any_value(text);
    assert_int_equal(v.kind, TERM_REAL);
    return v.real;
}

static void division_rounds_down(void **state)
{
    (void)state;
    assert_int_equal(value("7 // 2"), 3);
    assert_int_equal(value("-7 // 2"), -4);
    assert_int_equal(value("-7 % 4"), 1);
    assert_int_equal(value("0 - 3"), -3);
    assert_true(real("7.0 / 2") <= 3.5 && real("7 / 2.0") >= 3.5);
    assert_int_equal(value("7.5 // 2"), 3);
}

static void real_numbers_are_computed(void **state)
{
    (void)state;
    arena_init(&lists);
    assert_true(real("1e-06") <= 1e-6 && real("1e-06") >= 1e-6);
    assert_true(real("0.1 * log(40) + 1") > 1.36 && real("0.1 * log(40) + 1") < 1.37);
    assert_true(real("pow(2, 0.5)") <= real("sqrt(2)") && real("pow(2, 0.5)") >= real("sqrt(2)"));
    assert_int_equal(value("floor(2.5) + ceil(2.5) + abs(0 - 2)"), 7);
    assert_int_equal(value("max(1, 3, 2) * 10 + min([4, 2.0, 3])"), 32);
    assert_int_equal(value("2 == 2.0 && 2.5 > 2 && true == 1"), 1);
    arena_release(&lists);
}

static void texts_are_compared(void **state)
{
    (void)state;
    arena_init(&lists);
    assert_int_equal(value("hf.act == 'silu'"), 1);
    assert_int_equal(value("hf.act != \"sil\" && hf.act in ['gelu', 'silu']"), 1);
    assert_int_equal(value("hf.act == 0 || hf.null == false"), 0);
    assert_int_equal(value("hf.null == none && '' != none"), 1);
    assert_int_equal(any_value("hf.null ?? hf.act").kind, TERM_TEXT);
    arena_release(&lists);
}

/* The other side would divide by 0, or name nobody. */
static void only_the_needed_side_is_evaluated(void **state)
{
    (void)state;
    assert_int_equal(value("hf.x && 1 / hf.x"), 0);
    assert_int_equal(value("heads || nobody"), 1);
    assert_int_equal(value("heads ? 3 : nobody + 1"), 3);
    assert_int_equal(value("hf.x ? nobody : heads ? 4 : nobody"), 4);
    assert_int_equal(value("hf.null ?? hf.x ?? nobody"), 0);
    assert_int_equal(value("hf.x != 0 ? sqrt(nobody) : 0 && [nobody][3] || 1 ? 5 : 6") > 0, 1);
}

static void lists_are_built_and_searched(void **state)
{
    (void)state;
    arena_init(&lists);
    assert_int_equal(value("len([1, 2, heads])"), 3);
    assert_int_equal(value("[5, 6, 7][1]"), 6);
    assert_int_equal(value("flags[0] && !flags[1]"), 1);
    assert_int_equal(value("sum([i * i for i in range(4)])"), 14);
    assert_int_equal(value("[[i + j for j in range(3)] for i in range(3)][2][1]"), 3);
    assert_int_equal(value("all([i < 4 for i in range(4)]) && !any([i > 3 for i in range(4)])"), 1);
    assert_int_equal(value("[i in [1, 3] for i in range(4)] == [0, 1, 0, 1]"), 1);
    assert_int_equal(value("[i for i in range(6) if i % 2] == [1, 3, 5] && is_list([])"), 1);
    assert_int_equal(value("[1] + [2, 3] * 2 == [1, 2, 3, 2, 3] && 2 * [0] + 0 * [1] == [0, 0]"),
                     1);
    assert_int_equal(value("[c == 'i' for c in chars(hf.act)] == [0, 1, 0, 0]"), 1);
    assert_int_equal(value("split('3, 4,x', ',') == [3, 4, 'x'] && len(split('', ',')) == 1"), 1);
    assert_int_equal(value("len([i for i in hf.null]) + (3 in hf.null)"), 0);
    arena_release(&lists);
}

static void kinds_are_checked_by_name(void **state)
{
    static const char *const texts[][2] = {
        {"bool(hf.act)", "act is neither true nor false"},
        {"whole(hf.act) ?? 3", "act is not a whole number"},
        {"number(hf.act)", "act is not a finite number"},
        {"text(hf.x)", "x is not a string"},
        {"text(0)", "0 is not a string"},
    };
    struct term out;
    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++) {
        assert_fails(expr_value(texts[i][0], strlen(texts[i][0]), &names, &out, &err), ERR_CORRUPT,
                     texts[i][1]);
        assert_int_equal(strncmp(err.text, "hf.", 3) == 0, 0);
    }
    assert_int_equal(value("whole(hf.null) ?? 3"), 3);
    assert_int_equal(value("whole(hf.x) ?? 3"), 0);
}

static void wrong_ones_are_refused_with_the_place(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"heads / 5", "32 is not divisible by 5"},
        {"1 + ", "expected a number or a name at character 5"},
        {"nobody", "unknown name at character 1"},
        {"(1", "missing ) at character 3"},
        {"1 2", "unexpected text at character 3"},
        {"1 / 0", "division by 0"},
        {"9223372036854775807 + 1", "overflows"},
        {"99999999999999999999", "overflows"},
        {"moe[1", "not an index"},
        {"", "expected a number or a name"},
        {"'silu", "missing quote"},
        {"1 ? 2", "missing :"},
        {"hf.act + 1", "not a number"},
        {"hf.act < 1", "not a number"},
        {"sqrt(0 - 1)", "no finite result"},
        {"sqrt(1, 2)", "wrong number of arguments"},
        {"min()", "there are no values"},
        {"1.5.2", "not a number"},
        {"1e999", "not a number"},
        {"heads[0]", "what is not a list"},
        {"[1, 2][2]", "past the end"},
        {"[1 2]", "missing ]"},
        {"[i for i heads]", "expected NAME in LIST"},
        {"[i for i in heads]", "not a list"},
        {"1 in 2", "not a list"},
        {"chars(1)", "not a text"},
        {"split(hf.act, 1)", "expected a text and a character"},
        {"[1] * -1", "not a number"},
        {"[1] + 1", "not a number"},
        {"[1] * [1]", "not a number"},
        {"[1, 2] * 4000000", "too many steps"},
        {"[1 for i in [1] if]", "expected a number or a name"},
        {"[[[[i for a in range(999)] for b in range(999)] for c in range(999)] for i in range(9)]",
         "too many steps"},
        {"hf.act", "is not a whole number"},
        {"1.5", "is not a whole number"},
    };
    int64_t out;
    arena_init(&lists);
    for (size_t i = 0; i < COUNT(texts); i++)
        assert_fails(expr_eval(texts[i][0], strlen(texts[i][0]), &names, &out, &err), ERR_USAGE,
                     texts[i][1]);
    char deep[1000];
    memset(deep, '(', sizeof deep);
    assert_fails(expr_eval(deep, sizeof deep, &names, &out, &err), ERR_USAGE, "too deeply");
    arena_release(&lists);
    const struct expr_names without = {lookup, NULL, NULL};
    assert_fails(expr_eval("[1]", 3, &without, &out, &err), ERR_USAGE, "a list has no place here");
    assert_fails(expr_eval("1 in odd", 8, &without, &out, &err), ERR_USAGE,
                 "a list has no place here");
}

static void texts_have_values(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"", ""},
        {"no value", "no value"},
        {"{2 + 3}{'x'} of {12345678#,}, {12345678}", "5x of 12,345,678, 12345678"},
        {"{1 / 3.0} {1 / 3.0#3g} {100000000.0#10g}", "0.333333 0.333 100000000"},
        {"<{none}{true}>", "<>"}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct strbuf text = {0};
        strbuf_add_text(&text, "");
        assert_ok(expr_fill(rows[i][0], &names, &text, &err));
        assert_string_equal(text.data, rows[i][1]);
        strbuf_release(&text);
    }
    struct strbuf text = {0};
    assert_int_equal(expr_fill("{nobody}", &names, &text, &err), ERR_USAGE);
    strbuf_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operators_bind_as_in_c),
        cmocka_unit_test(division_rounds_down),
        cmocka_unit_test(real_numbers_are_computed),
        cmocka_unit_test(texts_are_compared),
        cmocka_unit_test(only_the_needed_side_is_evaluated),
        cmocka_unit_test(lists_are_built_and_searched),
        cmocka_unit_test(kinds_are_checked_by_name),
        cmocka_unit_test(wrong_ones_are_refused_with_the_place),
        cmocka_unit_test(texts_have_values),
    };
    return cmocka_run_group_tests_name("expr", tests, NULL, NULL);
}
