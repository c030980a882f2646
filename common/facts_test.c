#include "common/facts.h"

#include "tests/testing.h"

static void lines_keep_their_order_and_their_own_texts(void **state)
{
    struct arena a;
    struct facts f = {.arena = &a};
    (void)state;
    arena_init(&a);
    for (int i = 0; i < 100; i++)
        facts_add(&f, "CPUs", i ? FACT_OK : FACT_MISSING, i ? NULL : "buy one", "%d", i);
    assert_int_equal(f.count, 100);
    for (int i = 0; i < 100; i++)
        assert_int_equal(atoi(f.rows[i].value), i);
    assert_string_equal(f.rows[0].advice, "buy one");
    assert_string_equal(fact_state_name(f.rows[0].state), "missing");
    assert_string_equal(fact_state_name(f.rows[1].state), "ok");
    free(f.rows);
    arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_keep_their_order_and_their_own_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
