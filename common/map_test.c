#include "common/map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void each_name_keeps_its_value_while_the_map_grows(void **state)
{
    (void)state;
    enum { COUNT = 10000 };
    static char names[COUNT][16];
    struct map m = {0};
    size_t value;
    for (size_t i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof names[i], "tensor %zu", i);
        assert_true(map_add(&m, names[i], i, NULL));
    }
    assert_int_equal(m.count, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        char name[16];
        snprintf(name, sizeof name, "tensor %zu", i);
        assert_true(map_get(&m, name, &value));
        assert_int_equal(value, i);
    }
    assert_false(map_get(&m, "tensor 10000", &value));
    map_release(&m);
}

static void a_name_given_twice_keeps_its_first_value_and_tells_it(void **state)
{
    (void)state;
    struct map m = {0};
    size_t value = 0;
    assert_true(map_add(&m, "lm_head.weight", 7, &value));
    assert_int_equal(value, 0);
    assert_false(map_add(&m, "lm_head.weight", 8, &value));
    assert_int_equal(value, 7);
    assert_true(map_get(&m, "lm_head.weight", &value));
    assert_int_equal(value, 7);
    assert_int_equal(m.count, 1);
    map_release(&m);
}

static void an_empty_map_has_no_name_not_even_the_empty_one(void **state)
{
    (void)state;
    struct map m = {0};
    assert_false(map_get(&m, "", NULL));
    assert_true(map_add(&m, "", 1, NULL));
    assert_true(map_get(&m, "", NULL));
    map_release(&m);
    assert_int_equal(m.count, 0);
    assert_false(map_get(&m, "", NULL));
}

static void a_hash_is_of_all_bytes(void **state)
{
    (void)state;
    assert_true(hash_bytes("foobar", 6) == hash_bytes("foobar", 6));
    assert_true(hash_bytes("foobar", 6) != hash_bytes("foobar", 5));
    assert_true(hash_bytes("foobar", 6) != hash_bytes("goobar", 6));
    assert_true(hash_bytes("\0", 1) != hash_bytes("", 0));
    char name[] = "model.layers.60.mlp.gate";
    const size_t length = sizeof name - 1;
    const uint64_t hash = hash_bytes(name, length);
    for (size_t i = 0; i < length; i++) {
        name[i] ^= 1;
        assert_true(hash_bytes(name, length) != hash);
        name[i] ^= 1;
    }
    assert_true(hash_bytes(name, length) == hash);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_name_keeps_its_value_while_the_map_grows),
        cmocka_unit_test(a_name_given_twice_keeps_its_first_value_and_tells_it),
        cmocka_unit_test(an_empty_map_has_no_name_not_even_the_empty_one),
        cmocka_unit_test(a_hash_is_of_all_bytes),
    };
    return cmocka_run_group_tests_name("map", tests, NULL, NULL);
}
