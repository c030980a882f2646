#include "convert/numbered.h"

#include <stdbool.h>

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

static void equal_shapes_have_equal_numbers(void **state)
{
    struct arena a;
    struct shape_kinds kinds = {.arena = &a};
    (void)state;
    arena_init(&a);
    const uint64_t wide[] = {2, 3}, tall[] = {3, 2};
    assert_int_equal(shape_kind(&kinds, 2, wide), 1);
    assert_int_equal(shape_kind(&kinds, 2, tall), 2);
    assert_int_equal(shape_kind(&kinds, 1, wide), 3);
    assert_int_equal(shape_kind(&kinds, 2, wide), 1);
    shape_kinds_release(&kinds);
    arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_assigned_only_where_one_order_fits),
        cmocka_unit_test(equal_shapes_have_equal_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
