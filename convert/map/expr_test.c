#include "convert/map/expr.h"

#include "common/count.h"
#include "tests/testing.h"

static bool lookup(const void *context, const char *name, size_t length, int64_t index,
                   int64_t *out)
{
    (void)context;
    if (length == 5 && memcmp(name, "heads", 5) == 0 && index < 0)
        *out = 32;
    else if (length == 3 && memcmp(name, "moe", 3) == 0 && index >= 0)
        *out = index % 2;
    else if (length == 4 && memcmp(name, "hf.x", 4) == 0)
        *out = 0;
    else
        return false;
    return true;
}

static const struct expr_names names = {lookup, NULL};
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
    };
    int64_t out;
    for (size_t i = 0; i < COUNT(texts); i++)
        assert_fails(expr_eval(texts[i][0], strlen(texts[i][0]), &names, &out, &err), ERR_USAGE,
                     texts[i][1]);
    char deep[1000];
    memset(deep, '(', sizeof deep);
    assert_fails(expr_eval(deep, sizeof deep, &names, &out, &err), ERR_USAGE, "too deeply");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operators_bind_as_in_c),
        cmocka_unit_test(wrong_ones_are_refused_with_the_place),
    };
    return cmocka_run_group_tests_name("expr", tests, NULL, NULL);
}
