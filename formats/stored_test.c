#include "formats/stored.h"

#include <libdeflate.h>
#include <unistd.h>

#include "common/count.h"
#include "common/threads.h"
#include "tests/temporary.h"
#include "tests/testing.h"

static struct stored s;
static struct error err;
static char folder[TEMPORARY_PATH];

static int setup(void **state)
{
    (void)state;
    stored_init(&s);
    return temporary_folder(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    stored_release(&s);
    return (int)path_remove(folder, &err);
}

/* Writes a file and adds it. */
static uint32_t add_file(const char *name, const void *data, size_t bytes)
{
    struct file_stamp stamp;
    const char *path = path_join(&s.arena, folder, name);
    assert_ok(file_write_all(path, data, bytes, false, &err));
    assert_ok(file_stamp(path, &stamp, &err));
    return stored_add_file(&s, path, &stamp);
}

/* ---- tensors ---- */

static enum status add_tensor(const char *name, size_t length, const uint64_t *shape, unsigned dims)
{
    struct stored_tensor *t;
    return stored_add_tensor(&s, name, length, DT_BF16, dims, shape, &t, &err);
}

static void tensors_are_found_by_name(void **state)
{
    (void)state;
    assert_ok(add_tensor("lm_head.weight", 14, (uint64_t[]){3, 4}, 2));
    assert_ok(add_tensor("", 0, NULL, 0));
    assert_int_equal(stored_tensor_bytes(stored_find(&s, "lm_head.weight")), 24);
    assert_int_equal(stored_tensor_bytes(stored_find(&s, "")), 2);
    assert_null(stored_find(&s, "lm_head"));
}

static void a_name_twice_is_refused_with_the_file_of_the_first(void **state)
{
    (void)state;
    struct stored_tensor *t;
    struct stored_piece piece = {.file = add_file("a.bin", "x", 1)};
    assert_ok(stored_add_tensor(&s, "w", 1, DT_U8, 0, NULL, &t, &err));
    assert_fails(add_tensor("w", 1, NULL, 0), ERR_CORRUPT, "tensor w: appears twice");
    s.tensors[0].pieces = &piece;
    s.tensors[0].num_pieces = 1;
    assert_fails(add_tensor("w", 1, NULL, 0), ERR_CORRUPT, "a.bin");
}

static void a_nul_in_a_name_stands_as_c0_80(void **state)
{
    (void)state;
    assert_ok(add_tensor("a\0b", 3, NULL, 0));
    assert_non_null(stored_find(&s, "a\xC0\x80"
                                    "b"));
    assert_fails(add_tensor("a\xC0\x80"
                            "b",
                            4, NULL, 0),
                 ERR_CORRUPT, "appears twice");
}

static void names_that_are_no_utf8_are_refused(void **state)
{
    (void)state;
    assert_fails(add_tensor("ab\xFF", 3, NULL, 0), ERR_CORRUPT,
                 "tensor ab\\xff: its name is not UTF-8 at byte 2");
    assert_fails(add_tensor("\xED\xA0\x80", 3, NULL, 0), ERR_CORRUPT, "not UTF-8 at byte 0");
    assert_fails(add_tensor("\xC0\x81", 2, NULL, 0), ERR_CORRUPT, "not UTF-8");
}

static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    const uint64_t product[] = {(uint64_t)1 << 33, (uint64_t)1 << 33}, bytes[] = {UINT64_MAX / 8};
    assert_fails(add_tensor("w", 1, product, 2), ERR_CORRUPT, "too many BF16 elements");
    assert_fails(add_tensor("w", 1, bytes, 1), ERR_CORRUPT, "too many BF16 elements");
    struct stored_tensor *t;
    assert_fails(stored_add_tensor(&s, "w", 1, DT_F4, 1, (uint64_t[]){3}, &t, &err), ERR_CORRUPT,
                 "too many F4 elements");
}

static void warnings_are_kept(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        stored_warn(&s, "odd thing %d", i);
    assert_int_equal(s.num_warnings, 20);
    assert_string_equal(s.warnings[19], "odd thing 19");
}

/* ---- reading ---- */

static void more_files_than_may_be_open_are_read(void **state)
{
    (void)state;
    char name[16], got[4];
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "%02d", i);
        add_file(name, name, 3);
    }
    struct stored_reader *r = stored_reader_create(&s, 3);
    for (uint32_t i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "%02u", (i * 7) % 20);
        assert_ok(stored_read(r, (i * 7) % 20, 0, got, 3, &err));
        assert_string_equal(got, name);
    }
    stored_reader_free(r);
}

static void reads_past_the_end_are_refused(void **state)
{
    (void)state;
    char got[8];
    uint32_t file = add_file("f", "12345", 5);
    struct stored_reader *r = stored_reader_create(&s, 1);
    assert_ok(stored_read(r, file, 5, got, 0, &err));
    assert_fails(stored_read(r, file, 3, got, 3, &err), ERR_CORRUPT, "3 bytes at 3 of 5");
    assert_fails(stored_read(r, file, UINT64_MAX, got, 3, &err), ERR_CORRUPT, "of 5");
    stored_reader_free(r);
}

static void a_file_that_changed_is_refused(void **state)
{
    (void)state;
    char got[8];
    uint32_t file = add_file("f", "12345", 5);
    assert_ok(stored_unchanged(&s, &err));
    assert_ok(file_replace_all(s.files[file].path, "12346", 5, false, &err));
    struct stored_reader *r = stored_reader_create(&s, 1);
    assert_fails(stored_read(r, file, 0, got, 5, &err), ERR_IO, "f: changed while it was read");
    assert_fails(stored_unchanged(&s, &err), ERR_IO, "f: changed while it was read");
    assert_ok(path_remove(s.files[file].path, &err));
    assert_fails(stored_read(r, file, 0, got, 5, &err), ERR_IO, "/f: No such file");
    stored_reader_free(r);
}

/* ---- deflated ---- */

enum { CONTENTS = 300000, BEFORE = 11 };
static unsigned char contents[CONTENTS];

/* A file whose contents are deflated behind BEFORE other bytes. */
static uint32_t add_deflated(void)
{
    uint64_t random = test_seed();
    unsigned char *packed = arena_alloc(&s.arena, 2 * CONTENTS);
    for (size_t i = 0; i < CONTENTS; i++)
        contents[i] = (unsigned char)(test_random(&random) % 5 + i / 7000);
    struct libdeflate_compressor *c = libdeflate_alloc_compressor(6);
    size_t n = libdeflate_deflate_compress(c, contents, CONTENTS, packed + BEFORE, CONTENTS);
    libdeflate_free_compressor(c);
    uint32_t file = add_file("packed", packed, BEFORE + n);
    return stored_add_packed(&s, file, BYTES_DEFLATED, BEFORE, n, CONTENTS);
}

struct reading {
    struct stored_reader *r;
    uint32_t deflated, plain;
};

static enum status read_part(void *context, size_t index, unsigned worker, struct error *e)
{
    (void)worker;
    const struct reading *x = context;
    unsigned char got[1000];
    size_t at = index * 37 % 299 * 1000;
    TRY(stored_read(x->r, x->deflated, at, got, sizeof got, e));
    if (memcmp(got, contents + at, sizeof got) != 0) return fail(e, DIFFERENT, "at %zu", at);
    TRY(stored_read(x->r, x->plain, index % 4, got, 1, e));
    return got[0] == '0' + index % 4 ? OK : fail(e, DIFFERENT, "plain");
}

static void several_threads_share_a_reader(void **state)
{
    (void)state;
    struct reading x = {.deflated = add_deflated(), .plain = add_file("plain", "0123", 4)};
    x.r = stored_reader_create(&s, 1);
    assert_ok(threads_run(4, 400, read_part, &x, &err));
    stored_reader_free(x.r);
}

static void reads_that_pass_by_the_page_cache_give_the_same_bytes(void **state)
{
    (void)state;
    const size_t size = 2 * FILE_DIRECT_BYTES + 4096 + 17;
    unsigned char *data = arena_alloc(&s.arena, size), *got = arena_alloc(&s.arena, size);
    for (size_t i = 0; i < size; i++)
        data[i] = (unsigned char)(i * 31 >> 5);
    uint32_t file = add_file("data", data, size);
    struct stored_reader *r = stored_reader_create(&s, 1);
    stored_reader_set_direct(r);
    const size_t ranges[][2] = {
        {0, size},     {0, 1},    {4095, 2},           {4096, 4096}, {17, FILE_DIRECT_BYTES},
        {size - 1, 1}, {size, 0}, {8192, size - 8192},
    };
    for (size_t i = 0; i < COUNT(ranges); i++) {
        assert_ok(stored_read(r, file, ranges[i][0], got, ranges[i][1], &err));
        assert_memory_equal(got, data + ranges[i][0], ranges[i][1]);
    }
    assert_int_equal(truncate(s.files[file].path, 5000), 0); /* behind the reader's back */
    assert_fails(stored_read(r, file, 4990, got, 20, &err), ERR_CORRUPT, "ends at 5000, 20 bytes");
    assert_fails(stored_read(r, file, 9000, got, 20, &err), ERR_CORRUPT, "9000");
    stored_reader_free(r);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(tensors_are_found_by_name),
        TEST(a_name_twice_is_refused_with_the_file_of_the_first),
        TEST(a_nul_in_a_name_stands_as_c0_80),
        TEST(names_that_are_no_utf8_are_refused),
        TEST(sizes_that_overflow_are_refused),
        TEST(warnings_are_kept),
        TEST(more_files_than_may_be_open_are_read),
        TEST(reads_past_the_end_are_refused),
        TEST(a_file_that_changed_is_refused),
        TEST(several_threads_share_a_reader),
        TEST(reads_that_pass_by_the_page_cache_give_the_same_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
