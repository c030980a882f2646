#include "train/data/blend.h"

#include "tests/testing.h"
#include "train/data/paths.h"

static struct error err;

/* Numbers of a generator, and what numpy.sum made of their first n (NumPy
 * 2.4.6). A plain sum differs for 8, 129, 300 and 1000 of them. */
static void weights_are_normalised_as_numpy_does(void **state)
{
    static const struct {
        size_t count;
        double first;
    } golden[] = {{3, 0x1.075cf500acb43p-3},    {8, 0x1.b3083661477bfp-5},
                  {13, 0x1.d8b2c39a968c4p-6},   {129, 0x1.50d4830e9e827p-9},
                  {300, 0x1.2853c190175e1p-10}, {1000, 0x1.601ed53e11e08p-12}};
    (void)state;
    for (size_t k = 0; k < sizeof golden / sizeof *golden; k++) {
        double weights[1000];
        uint64_t x = 7;
        for (size_t i = 0; i < golden[k].count; i++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            weights[i] = (double)((x >> 33) % 1000000 + 1) / 1000.0;
        }
        blend_normalize(weights, golden[k].count);
        assert_true(weights[0] == golden[k].first);
    }
}

static void shares_are_rounded_up(void **state)
{
    (void)state;
    assert_int_equal(blend_share(800, 0.3), 240);
    assert_int_equal(blend_share_to_build(800, 0.3), 242);
    assert_int_equal(blend_share(501, 0.625), 314);
    assert_int_equal(blend_share_to_build(501, 0.625), 316);
    assert_int_equal(blend_share_to_build(8, 0.3), 4);
}

/* At all times each dataset has its share, but for less than one sample. */
static void blend_follows_its_weights(void **state)
{
    const double weights[] = {0.5, 0.3, 0.2};
    int64_t used[3] = {0};
    struct blend b;
    (void)state;
    assert_ok(blend_by_weight(&b, weights, 3, 1000, &err));
    assert_int_equal(b.dataset_index[0], 0);
    for (uint64_t i = 0; i < b.size; i++) {
        const int k = b.dataset_index[i];
        assert_int_equal(b.dataset_sample_index[i], used[k]++);
        for (int n = 0; n < 3; n++) {
            const double lack = weights[n] * (double)(i + 1) - (double)used[n];
            assert_true(lack < 1 && lack > -1.5);
        }
    }
    blend_release(&b);
}

static void exhaustive_blend_has_each_sample_once(void **state)
{
    const uint64_t lengths[] = {5, 1, 30};
    int64_t used[3] = {0};
    struct blend b;
    (void)state;
    assert_ok(blend_exhaustive(&b, lengths, 3, &err));
    assert_int_equal(b.size, 36);
    for (uint64_t i = 0; i < b.size; i++)
        assert_int_equal(b.dataset_sample_index[i], used[b.dataset_index[i]]++);
    assert_true(used[0] == 5 && used[1] == 1 && used[2] == 30);
    blend_release(&b);
}

/* ---- the words behind --data-path ---- */

static struct blend_paths parsed;
static struct arena arena;

static enum status parse(const char *const *words, size_t count)
{
    const struct data_paths p = {words, count};
    return blend_paths_parse(&parsed, &p, &arena, &err);
}

#define PARSE(...)                                                                                 \
    parse((const char *const[]){__VA_ARGS__},                                                      \
          sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

static void words_are_prefixes_or_pairs(void **state)
{
    (void)state;
    arena_init(&arena);
    assert_ok(PARSE("a"));
    assert_true(parsed.count == 1 && !parsed.weights);
    assert_ok(PARSE("3", " a\n", "1", "b"));
    assert_int_equal(parsed.count, 2);
    assert_string_equal(parsed.prefixes[0], "a");
    assert_string_equal(parsed.prefixes[1], "b");
    assert_true(parsed.weights[0] == 0.75 && parsed.weights[1] == 0.25);
    assert_ok(PARSE("a", "b", "c", "d"));
    assert_true(parsed.count == 4 && !parsed.weights);
    assert_ok(PARSE("0.5", "b", "c")); /* as Megatron-LM: an odd number of words has no weights */
    assert_true(parsed.count == 3 && !parsed.weights);
    assert_fails(PARSE("1", "a", "b", "c"), ERR_USAGE, "some have a weight and some have none");
    assert_fails(PARSE("0", "a", "1", "c"), ERR_USAGE, "0 a: the weight must be above 0");
    assert_fails(PARSE("nan", "a", "1", "c"), ERR_USAGE, "nan a: the weight must be above 0");
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_normalised_as_numpy_does),
        cmocka_unit_test(shares_are_rounded_up),
        cmocka_unit_test(blend_follows_its_weights),
        cmocka_unit_test(exhaustive_blend_has_each_sample_once),
        cmocka_unit_test(words_are_prefixes_or_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
