#include "formats/indexed_dataset_writer.h"

#include "formats/indexed_dataset.h"
#include "tests/folder.h"

/* Every sequence of what is read, as documents have it. */
static void copy(const struct indexed_dataset *from, const char *prefix)
{
    struct indexed_dataset_writer w;
    assert_ok(indexed_dataset_create(&w, prefix, from->dtype, false, &err));
    for (uint64_t k = 0; k < from->num_documents; k++) {
        uint64_t bounds[2];
        assert_ok(indexed_dataset_documents(from, k, 2, bounds, &err));
        for (uint64_t s = bounds[0]; s < bounds[1]; s++) {
            uint64_t length;
            int32_t ids[4096];
            assert_ok(indexed_dataset_lengths(from, s, 1, &length, &err));
            assert_ok(indexed_dataset_read(from, s, 0, length, DT_I32, ids, &err));
            assert_ok(indexed_dataset_append(&w, ids, length / 2, &err));
            assert_ok(indexed_dataset_append(&w, ids + length / 2, length - length / 2, &err));
            assert_ok(indexed_dataset_end_sequence(&w, &err));
        }
        indexed_dataset_end_document(&w);
    }
    assert_int_equal(w.num_elements, from->num_tokens);
    assert_ok(indexed_dataset_finish(&w, &err));
    indexed_dataset_writer_close(&w);
}

static void assert_same_file(const char *a, const char *b)
{
    struct strbuf x = {0}, y = {0};
    assert_ok(file_read_all(a, 1 << 20, &x, &err));
    assert_ok(file_read_all(b, 1 << 20, &y, &err));
    assert_int_equal(x.length, y.length);
    assert_memory_equal(x.data, y.data, x.length);
    strbuf_release(&x);
    strbuf_release(&y);
}

/* The files of Megatron-LM's IndexedDatasetBuilder, read and written again. */
static void bytes_are_megatrons(void **state)
{
    static const char *const names[] = {"u16", "i32", "wide"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const char *golden = arena_printf(&arena, "tests/golden/megatron-data/%s", names[i]);
        struct indexed_dataset d;
        assert_ok(indexed_dataset_open(&d, golden, &err));
        copy(&d, in_folder(names[i]));
        indexed_dataset_close(&d);
        for (const char *const *s = (const char *const[]){".bin", ".idx", NULL}; *s; s++)
            assert_same_file(arena_printf(&arena, "%s%s", golden, *s),
                             arena_printf(&arena, "%s%s", in_folder(names[i]), *s));
    }
}

static void values_must_fit(void **state)
{
    static const struct {
        enum dtype dtype;
        int32_t good, bad;
        const char *message;
    } cases[] = {{DT_U8, 255, 256, "sequence 0: 256 does not fit U8"},
                 {DT_U16, 65535, 65536, "65536 does not fit U16"},
                 {DT_I32, INT32_MAX, -1, "-1 does not fit I32"}};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct indexed_dataset_writer w;
        assert_ok(indexed_dataset_create(&w, in_folder("d"), cases[i].dtype, false, &err));
        assert_ok(indexed_dataset_append(&w, &cases[i].good, 1, &err));
        assert_fails(indexed_dataset_append(&w, &cases[i].bad, 1, &err), ERR_USAGE,
                     cases[i].message);
        indexed_dataset_writer_close(&w);
        assert_false(path_exists(in_folder("d.bin")));
        assert_false(path_exists(in_folder("d.idx")));
    }
}

/* `count` sequences of one token, which is `id`. */
static enum status write_ids(const char *prefix, int32_t id, uint64_t count, bool overwrite)
{
    struct indexed_dataset_writer w;
    enum status st = indexed_dataset_create(&w, prefix, DT_U16, overwrite, &err);
    for (uint64_t i = 0; i < count && !st; i++) {
        st = indexed_dataset_append(&w, &id, 1, &err);
        if (!st) st = indexed_dataset_end_sequence(&w, &err);
        indexed_dataset_end_document(&w);
    }
    if (!st) st = indexed_dataset_finish(&w, &err);
    indexed_dataset_writer_close(&w);
    return st;
}

static void check_ids(const char *prefix, int32_t id, uint64_t count)
{
    struct indexed_dataset d;
    int32_t got;
    assert_ok(indexed_dataset_open(&d, prefix, &err));
    assert_int_equal(d.num_tokens, count);
    assert_int_equal(d.num_documents, count);
    for (uint64_t i = 0; i < count; i++) {
        assert_ok(indexed_dataset_read(&d, i, 0, 1, DT_I32, &got, &err));
        assert_int_equal(got, id);
    }
    indexed_dataset_close(&d);
}

static void what_exists_is_replaced_on_demand_only(void **state)
{
    struct name_list names;
    const char *prefix = in_folder("d");
    (void)state;
    assert_ok(write_ids(prefix, 1, 3, false));
    assert_fails(write_ids(prefix, 2, 5, false), ERR_EXISTS, "d.bin: exists already");
    check_ids(prefix, 1, 3);
    assert_ok(path_remove(in_folder("d.bin"), &err));
    assert_fails(write_ids(prefix, 2, 5, false), ERR_EXISTS, "d.idx: exists already");
    assert_ok(write_ids(prefix, 2, 5, true));
    check_ids(prefix, 2, 5);
    assert_ok(file_write_all(in_folder("d.bin.ferry-new"), "left", 4, false, &err));
    assert_ok(write_ids(prefix, 3, 2, true));
    check_ids(prefix, 3, 2);
    assert_ok(folder_list(folder, &arena, &names, &err));
    assert_int_equal(names.count, 2);
}

/* More than what is kept in memory. */
static void long_data_are_written_piece_by_piece(void **state)
{
    (void)state;
    assert_ok(write_ids(in_folder("d"), 9, 600000, false));
    check_ids(in_folder("d"), 9, 600000);
}

static void dataset_without_sequences_is_whole(void **state)
{
    (void)state;
    assert_ok(write_ids(in_folder("d"), 0, 0, false));
    check_ids(in_folder("d"), 0, 0);
}

static void missing_folder_is_named(void **state)
{
    (void)state;
    assert_fails(write_ids(in_folder("no/d"), 1, 1, false), ERR_IO, "does not exist");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(bytes_are_megatrons),
        FOLDER_TEST(values_must_fit),
        FOLDER_TEST(what_exists_is_replaced_on_demand_only),
        FOLDER_TEST(long_data_are_written_piece_by_piece),
        FOLDER_TEST(dataset_without_sequences_is_whole),
        FOLDER_TEST(missing_folder_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
