#include "common/arena.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/asan.h"

static int setup(void **state)
{
    static struct arena a;
    arena_init(&a);
    *state = &a;
    return 0;
}

static int teardown(void **state)
{
    arena_release(*state);
    return 0;
}

static void memory_is_zeroed_and_aligned_whatever_was_asked_before(void **state)
{
    struct arena *a = *state;
    for (size_t bytes = 1; bytes < 3000; bytes += 37) {
        memset(arena_text(a, "odd", bytes % 3), 'x', 1);
        unsigned char *p = arena_alloc(a, bytes);
        assert_int_equal((uintptr_t)p % _Alignof(max_align_t), 0);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xFF, bytes);
    }
}

static void nothing_asked_for_is_no_null_pointer(void **state)
{
    assert_non_null(arena_alloc(*state, 0));
    assert_non_null(arena_array(*state, 0, 8));
    assert_non_null(arena_copy(*state, NULL, 0));
    assert_string_equal(arena_text(*state, NULL, 0), "");
}

static void a_block_larger_than_all_others_leaves_the_rest_of_the_newest_usable(void **state)
{
    struct arena *a = *state;
    char *first = arena_alloc(a, 16), *before = arena_alloc(a, 16);
    char *large = arena_alloc(a, 5 << 20);
    memset(large, 1, 5 << 20);
    char *after = arena_alloc(a, 16);
    assert_int_equal(after - before, before - first);
    assert_int_equal(*after, 0);
}

static void texts_keep_their_bytes_while_others_are_added(void **state)
{
    struct arena *a = *state;
    char *texts[5000];
    for (int i = 0; i < 5000; i++)
        texts[i] = arena_printf(a, "model.layers.%d.mlp.down_proj.weight", i);
    for (int i = 0; i < 5000; i++) {
        char expected[64];
        snprintf(expected, sizeof expected, "model.layers.%d.mlp.down_proj.weight", i);
        assert_string_equal(texts[i], expected);
    }
    assert_true(a->total_bytes > 5000 * 36);
}

static void printf_of_any_length_is_whole(void **state)
{
    char blanks[1000];
    for (int n = 250; n < 262; n++) {
        memset(blanks, ' ', sizeof blanks);
        blanks[n] = '\0';
        assert_string_equal(arena_printf(*state, "%*s", n, ""), blanks);
    }
}

static void text_is_ended_where_its_length_says(void **state)
{
    assert_string_equal(arena_text(*state, "weight.bias", 6), "weight");
}

static void pushed_items_stay_in_order_as_the_array_grows(void **state)
{
    struct arena *a = *state;
    uint64_t *items = NULL;
    size_t count = 0, capacity = 0;
    for (uint64_t i = 0; i < 1000; i++)
        *ARENA_PUSH(a, items, count, capacity) = i * i;
    assert_int_equal(count, 1000);
    for (uint64_t i = 0; i < 1000; i++)
        assert_int_equal(items[i], i * i);
}

static void new_items_are_zeros_whatever_an_outgrown_array_had(void **state)
{
    struct arena *a = *state;
    for (int array = 0; array < 20; array++) {
        uint64_t *items = NULL;
        size_t count = 0, capacity = 0;
        while (count < 3000) {
            uint64_t *item = ARENA_PUSH(a, items, count, capacity);
            assert_int_equal(*item, 0);
            *item = UINT64_MAX;
        }
    }
}

/* Arrays of more and of less than a block, in turns: those of one arena must not
 * meet. */
static void arrays_that_grow_in_turns_keep_their_items_and_those_between(void **state)
{
    enum { ARRAYS = 3, LARGE = 200000 };
    struct arena *a = *state;
    uint64_t *items[ARRAYS] = {0};
    size_t count[ARRAYS] = {0}, capacity[ARRAYS] = {0};
    char *texts[LARGE / 100];
    for (uint64_t i = 0; i < LARGE; i++) {
        for (size_t k = 0; k < ARRAYS; k++)
            *ARENA_PUSH(a, items[k], count[k], capacity[k]) = i ^ k << 32;
        if (i % 100 == 0) texts[i / 100] = arena_printf(a, "text %" PRIu64, i);
    }
    for (uint64_t i = 0; i < LARGE; i++) {
        char expected[32];
        for (size_t k = 0; k < ARRAYS; k++)
            assert_true(items[k][i] == (i ^ k << 32));
        snprintf(expected, sizeof expected, "text %" PRIu64, i);
        if (i % 100 == 0) assert_string_equal(texts[i / 100], expected);
    }
}

/* A model of many experts has thousands of arrays of a few items. */
static void outgrown_arrays_are_used_again(void **state)
{
#if WITH_ASAN
    (void)state;
    skip();
#else
    enum { ARRAYS = 1000, ITEMS = 64 };
    struct arena *a = *state;
    for (int array = 0; array < ARRAYS; array++) {
        uint64_t *items = NULL;
        size_t count = 0, capacity = 0;
        while (count < ITEMS)
            *ARENA_PUSH(a, items, count, capacity) = 1;
    }
    assert_true(a->total_bytes < (ARRAYS + 2) * ITEMS * sizeof(uint64_t));
    uint64_t *large = NULL;
    size_t count = 0, capacity = 0;
    const size_t before = a->total_bytes;
    while (count < 1 << 20)
        *ARENA_PUSH(a, large, count, capacity) = 1;
    assert_true(a->total_bytes - before < 2 * sizeof *large << 20);
#endif
}

/* Under ASan only; else nothing tells that they are used. */
static void bytes_that_are_not_in_use_are_known_to_asan(void **state)
{
#if WITH_ASAN
    struct arena *a = *state;
    char *item = arena_alloc(a, 5), *text = arena_text(a, "weight", 6);
    uint64_t *items = NULL, *old;
    size_t count = 0, capacity = 0;
    assert_false(__asan_address_is_poisoned(item + 4));
    assert_true(__asan_address_is_poisoned(item + 5));
    assert_false(__asan_address_is_poisoned(text + 6));
    assert_true(__asan_address_is_poisoned(text + 7));
    *ARENA_PUSH(a, items, count, capacity) = 1;
    for (old = items; items == old;)
        *ARENA_PUSH(a, items, count, capacity) = 1;
    assert_true(__asan_address_is_poisoned(old));
#else
    (void)state;
    skip();
#endif
}

static void a_released_arena_can_be_used_again(void **state)
{
    struct arena *a = *state;
    arena_alloc(a, 100);
    arena_release(a);
    assert_int_equal(a->total_bytes, 0);
    assert_int_equal(*(char *)arena_alloc(a, 100), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(memory_is_zeroed_and_aligned_whatever_was_asked_before),
        T(nothing_asked_for_is_no_null_pointer),
        T(a_block_larger_than_all_others_leaves_the_rest_of_the_newest_usable),
        T(texts_keep_their_bytes_while_others_are_added),
        T(printf_of_any_length_is_whole),
        T(text_is_ended_where_its_length_says),
        T(pushed_items_stay_in_order_as_the_array_grows),
        T(new_items_are_zeros_whatever_an_outgrown_array_had),
        T(arrays_that_grow_in_turns_keep_their_items_and_those_between),
        T(outgrown_arrays_are_used_again),
        T(bytes_that_are_not_in_use_are_known_to_asan),
        T(a_released_arena_can_be_used_again),
    };
    return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
