/* Lists of digests: their text, order and sum; digests do not depend on the
 * pieces of a tensor. */
#include "ckpt/digest.h"

#include <string.h>

#include "ckpt/testing_source.h"

static void a_digest_is_dtype_shape_and_two_sums(void **state)
{
    (void)state;
    const uint64_t shape[] = {2, 3};
    const uint16_t elements[] = {1, 0, 0, 0, 0, 2};
    struct tensor_digest d = {.name = "x", .dtype = DT_BF16, .num_dims = 2, .shape = shape};
    struct strbuf text = {0};
    digest_add_elements(&d.sums, d.dtype, elements, 6, 0);
    digest_print(&text, &d);
    /* python3: p = 2**61 - 1; [(1 + 2 * pow(r, 5, p)) % p for r in
     * (499170133717692731, 2276945000874400884)] */
    assert_string_equal(text.data, "BF16[2,3]:0f73bd122f2ff3c30ffe1b5e37b14144");
    strbuf_clear(&text);
    d = (struct tensor_digest){.name = "scalar", .dtype = DT_I64};
    digest_print(&text, &d);
    assert_string_equal(text.data, "I64[]:00000000000000000000000000000000");
    strbuf_release(&text);
}

static void elements_of_16_bytes_are_four_of_4(void **state)
{
    (void)state;
    const uint32_t words[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct digest whole = {{0}}, parts = {{0}};
    digest_add_elements(&whole, DT_U32, words, 8, 16);
    digest_add_elements(&parts, DT_C128, words, 2, 4);
    assert_memory_equal(&whole, &parts, sizeof whole);
}

static void lists_are_sorted_and_closed_by_their_sums(void **state)
{
    (void)state;
    const uint64_t shape[] = {1};
    struct tensor_digest list[] = {
        {.name = "b", .dtype = DT_U8, .num_dims = 1, .shape = shape, .sums = {{3, 4}}},
        {.name = "optimizer.exp_avg.a", .dtype = DT_F32, .num_dims = 1, .shape = shape},
        {.name = "a", .dtype = DT_U8, .num_dims = 1, .shape = shape, .sums = {{1, 2}}},
        {.name = "z", .dtype = DT_U8, .num_dims = 1, .shape = shape},
    };
    char whole[2][SHA256_TEXT];
    struct strbuf text = {0};
    digest_print_all(&text, list, 4, whole);
    /* sha256sum of the lines before each */
    assert_string_equal(
        text.data,
        "a\tU8[1]:00000000000000010000000000000002\n"
        "b\tU8[1]:00000000000000030000000000000004\n"
        "z\tU8[1]:00000000000000000000000000000000\n"
        "*\t644208d5f33d4bc9e5c63b5e328a9ec8dd7bc8e874cf8fdf47f1bf2b245dfbf3\n"
        "optimizer.exp_avg.a\tF32[1]:00000000000000000000000000000000\n"
        "optimizer.*\t99ad6ade6c32b08d59252ccb346096eba59e6076f2b1a000264f3a7624b51e8d\n");
    assert_string_equal(whole[0],
                        "644208d5f33d4bc9e5c63b5e328a9ec8dd7bc8e874cf8fdf47f1bf2b245dfbf3");
    strbuf_clear(&text);
    digest_print_all(&text, list, 0, whole);
    assert_string_equal(whole[0],
                        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_string_equal(whole[1], "");
    strbuf_release(&text);
}

static void digests_of_a_catalog_do_not_depend_on_pieces(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int round = 0; round < 20; round++) {
        struct source s;
        struct error err;
        struct arena a;
        struct tensor_digest *found;
        size_t count;
        const struct digest_options o = {.threads = 1 + (unsigned)round % 3,
                                         .progress = PROGRESS_NONE};
        arena_init(&a);
        source_init(&s, &seed);
        for (int i = 0; i < 8; i++)
            (void)source_add_random(&s, round % 4 ? 5000 : 600000);
        source_write(&s);
        assert_ok(digest_catalog(&s.catalog, &o, &a, &found, &count, &err));
        assert_int_equal(count, s.catalog.num_tensors);
        for (size_t i = 0; i < count; i++) {
            const struct tensor *t = &s.catalog.tensors[i];
            struct digest whole = {{0}};
            digest_add_elements(&whole, t->dtype, s.values[i], t->numel, 0);
            assert_string_equal(found[i].name, t->name);
            assert_memory_equal(&found[i].sums, &whole, sizeof whole);
        }
        arena_release(&a);
        source_release(&s);
    }
}

static void padding_has_no_digest(void **state)
{
    (void)state;
    struct catalog c;
    struct tensor *t;
    struct error err;
    struct arena a;
    struct tensor_digest *found;
    size_t count;
    const uint64_t shape[] = {0};
    const struct digest_options o = {.progress = PROGRESS_NONE};
    arena_init(&a);
    catalog_init(&c, &a);
    assert_ok(catalog_add(&c, "embedding.word_embeddings.weight", DT_F32, 1, shape, &t, &err));
    assert_ok(
        catalog_add(&c, "embedding.word_embeddings.weight.padding", DT_F32, 1, shape, &t, &err));
    assert_ok(digest_catalog(&c, &o, &a, &found, &count, &err));
    assert_int_equal(count, 1);
    catalog_release(&c);
    arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_digest_is_dtype_shape_and_two_sums),
        cmocka_unit_test(elements_of_16_bytes_are_four_of_4),
        cmocka_unit_test(lists_are_sorted_and_closed_by_their_sums),
        cmocka_unit_test(digests_of_a_catalog_do_not_depend_on_pieces),
        cmocka_unit_test(padding_has_no_digest),
    };
    return cmocka_run_group_tests_name("digest", tests, NULL, NULL);
}
