#include "train/data/shuffle.h"

#include "tests/testing.h"

/* Golden values of numpy.random.RandomState(seed).bytes and
 * .shuffle(arange(10)), by NumPy 2.4.6. */
static const struct {
    uint32_t seed, words[3], order[10];
} golden[] = {
    {1234, {822569775, 2137449171, 2671936806}, {7, 2, 9, 1, 0, 8, 4, 5, 6, 3}},
    {0, {2357136044, 2546248239, 3071714933}, {2, 8, 4, 9, 1, 6, 7, 3, 0, 5}},
    {UINT32_MAX, {419326371, 479346978, 3918654476}, {6, 9, 5, 1, 8, 0, 7, 4, 2, 3}},
};

static void words_and_orders_are_numpys(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof golden / sizeof *golden; k++) {
        struct mt19937 r;
        uint32_t items[10];
        mt19937_seed(&r, golden[k].seed);
        for (size_t i = 0; i < 3; i++)
            assert_int_equal(mt19937_next(&r), golden[k].words[i]);
        for (uint32_t i = 0; i < 10; i++)
            items[i] = i;
        mt19937_seed(&r, golden[k].seed);
        shuffle_u32(&r, items, 10);
        assert_memory_equal(items, golden[k].order, sizeof items);
    }
}

/* Many times around the 624 words; the sum is that of NumPy's order of
 * arange(100000). */
static void long_order_is_numpys(void **state)
{
    enum { COUNT_OF_ITEMS = 100000 };
    static uint32_t items[COUNT_OF_ITEMS];
    struct mt19937 r;
    uint64_t sum = 0;
    (void)state;
    for (uint32_t i = 0; i < COUNT_OF_ITEMS; i++)
        items[i] = i;
    mt19937_seed(&r, 99);
    shuffle_u32(&r, items, COUNT_OF_ITEMS);
    for (size_t i = 0; i < COUNT_OF_ITEMS; i++)
        sum = sum * 1000003 + items[i];
    assert_true(sum == 13842960499358619606u);
}

static void no_draw_for_one_item(void **state)
{
    struct mt19937 r, untouched;
    uint32_t item = 7;
    (void)state;
    mt19937_seed(&r, 5);
    untouched = r;
    shuffle_u32(&r, &item, 1);
    shuffle_u32(&r, NULL, 0);
    assert_memory_equal(&r, &untouched, sizeof r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_and_orders_are_numpys),
        cmocka_unit_test(long_order_is_numpys),
        cmocka_unit_test(no_draw_for_one_item),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
