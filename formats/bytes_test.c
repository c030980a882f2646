#include "formats/bytes.h"

#include <libdeflate.h>
#include <unistd.h>

#include "common/arena.h"
#include "common/checked.h"
#include "common/count.h"
#include "common/threads.h"
#include "tests/temporary.h"
#include "tests/testing.h"

/* CONTENTS lie plainly, and deflated, behind BEFORE other bytes of a file each. */
enum { CONTENTS = 300000, BEFORE = 11 };

static struct arena a;
static struct error err;
static char folder[TEMPORARY_PATH];
static const char *plain_path, *packed_path;
static unsigned char contents[CONTENTS];
static uint64_t packed_bytes;

static const char *write_file(const char *name, const void *data, size_t bytes)
{
    const char *path = path_join(&a, folder, name);
    assert_ok(file_write_all(path, data, bytes, false, &err));
    return path;
}

static int setup(void **state)
{
    (void)state;
    uint64_t random = test_seed();
    arena_init(&a);
    if (!temporary_folder(folder)) return -1;
    unsigned char *behind = arena_alloc(&a, BEFORE + CONTENTS);
    for (size_t i = 0; i < CONTENTS; i++)
        contents[i] = (unsigned char)(test_random(&random) % 5 + i / 7000);
    memcpy(behind + BEFORE, contents, CONTENTS);
    plain_path = write_file("plain", behind, BEFORE + CONTENTS);
    struct libdeflate_compressor *c = libdeflate_alloc_compressor(6);
    packed_bytes = libdeflate_deflate_compress(c, contents, CONTENTS, behind + BEFORE, CONTENTS);
    libdeflate_free_compressor(c);
    packed_path = write_file("packed", behind, BEFORE + packed_bytes);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    arena_release(&a);
    return (int)path_remove(folder, &err);
}

/* ---- the contents, from everything that bytes can come from ---- */

struct source {
    struct bytes file, packed, contents;
    struct bytes_ends ends;
    bool decoded;
};

static void open_plain(struct source *s)
{
    assert_ok(bytes_open(&s->file, plain_path, NULL, &err));
    s->contents = bytes_range(&s->file, BEFORE, CONTENTS);
}

static void open_direct(struct source *s)
{
    assert_ok(bytes_open(&s->file, plain_path, NULL, &err));
    bytes_set_direct(&s->file);
    s->contents = bytes_range(&s->file, BEFORE, CONTENTS);
}

static void open_memory(struct source *s)
{
    s->contents = bytes_of_memory(contents, CONTENTS);
}

static void open_part_of_memory(struct source *s)
{
    unsigned char *around = arena_alloc(&a, CONTENTS + 20);
    memcpy(around + 9, contents, CONTENTS);
    struct bytes all = bytes_of_memory(around, CONTENTS + 20);
    struct bytes part = bytes_range(&all, 5, CONTENTS + 10);
    s->contents = bytes_range(&part, 4, CONTENTS);
}

static void open_ends(struct source *s)
{
    struct bytes whole;
    assert_ok(bytes_open(&s->file, plain_path, NULL, &err));
    whole = bytes_range(&s->file, BEFORE, CONTENTS);
    assert_ok(bytes_keep_ends(&s->contents, &s->ends, &whole, &err));
}

static void open_deflated(struct source *s)
{
    assert_ok(bytes_open(&s->file, packed_path, NULL, &err));
    s->packed = bytes_range(&s->file, BEFORE, packed_bytes);
    bytes_decode(&s->contents, BYTES_DEFLATED, &s->packed, CONTENTS);
    s->decoded = true;
}

static void (*const openers[])(struct source *s) = {
    open_plain, open_direct, open_memory, open_part_of_memory, open_ends, open_deflated,
};
enum { NUM_OPENERS = COUNT(openers) };

static struct source *open_source(size_t i)
{
    struct source *s = arena_alloc(&a, sizeof *s);
    *s = (struct source){0};
    openers[i](s);
    assert_int_equal(s->contents.size_bytes, CONTENTS);
    return s;
}

static void close_source(struct source *s)
{
    if (s->decoded) bytes_release(&s->contents);
    bytes_release(&s->file);
}

static void the_same_bytes_come_from_everywhere(void **state)
{
    (void)state;
    uint64_t seed = test_seed(), random = seed;
    unsigned char *got = arena_alloc(&a, CONTENTS);
    for (size_t i = 0; i < NUM_OPENERS; i++) {
        struct source *s = open_source(i);
        for (int n = 0; n < 60; n++) {
            uint64_t at = test_below(&random, CONTENTS);
            size_t count = (size_t)test_below(&random, CONTENTS - at + 1);
            if (n % 2) count = (size_t)min_u64(count, 100);
            assert_ok(bytes_read(&s->contents, at, got, count, &err));
            if (memcmp(got, contents + at, count) != 0)
                fail_msg("source %zu, seed %lu", i, (unsigned long)seed);
            bytes_expect(&s->contents, at, count);
        }
        assert_ok(bytes_read(&s->contents, 0, got, CONTENTS, &err));
        assert_memory_equal(got, contents, CONTENTS);
        assert_ok(bytes_read(&s->contents, CONTENTS, got, 0, &err));
        close_source(s);
    }
}

static enum status read_part(void *context, size_t index, unsigned worker, struct error *e)
{
    (void)worker;
    unsigned char got[1000];
    size_t at = index * 37 % 299 * 1000;
    TRY(bytes_read(context, at, got, sizeof got, e));
    return memcmp(got, contents + at, sizeof got) == 0 ? OK : fail(e, DIFFERENT, "at %zu", at);
}

static void several_threads_read_the_same_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < NUM_OPENERS; i++) {
        struct source *s = open_source(i);
        assert_ok(threads_run(4, 200, read_part, &s->contents, &err));
        close_source(s);
    }
}

static void a_read_past_the_end_is_refused(void **state)
{
    (void)state;
    char got[4], want[100];
    for (size_t i = 0; i < NUM_OPENERS; i++) {
        struct source *s = open_source(i);
        snprintf(want, sizeof want, "%s: 4 bytes at 299997 of 300000", s->contents.path);
        assert_fails(bytes_read(&s->contents, CONTENTS - 3, got, 4, &err), ERR_CORRUPT, want);
        assert_fails(bytes_read(&s->contents, UINT64_MAX, got, 1, &err), ERR_CORRUPT, "1 bytes at");
        close_source(s);
    }
}

/* ---- one kind's own ---- */

static void only_memory_is_in_memory(void **state)
{
    (void)state;
    struct bytes all = bytes_of_memory(contents, 10), part = bytes_range(&all, 3, 4);
    assert_ptr_equal(bytes_in_memory(&part), contents + 3);
    struct source *s = open_source(0);
    assert_null(bytes_in_memory(&s->contents));
    close_source(s);
}

static void a_file_cut_short_behind_our_back_is_refused(void **state)
{
    (void)state;
    char got[20];
    struct file_stamp stamp;
    struct bytes b;
    assert_ok(bytes_open(&b, plain_path, &stamp, &err));
    assert_int_equal(stamp.size_bytes, BEFORE + CONTENTS);
    assert_int_equal(truncate(plain_path, 5000), 0);
    struct bytes part = bytes_range(&b, 4000, 2000);
    assert_fails(bytes_read(&part, 990, got, sizeof got, &err), ERR_CORRUPT,
                 "/plain: ends at 5000, 20 bytes at 4990 were expected");
    bytes_release(&b);
    assert_null(b.kind);
    bytes_release(&b);
}

struct counted {
    struct bytes bytes;
    int reads;
};

static enum status read_counted(const struct bytes *b, uint64_t at, void *to, size_t count,
                                struct error *e)
{
    struct counted *c = b->from.state;
    c->reads++;
    return bytes_read(&c->bytes, at, to, count, e);
}

static void ends_are_read_once(void **state)
{
    (void)state;
    static const struct bytes_kind counting = {read_counted, NULL, NULL};
    struct counted c = {.bytes = bytes_of_memory(contents, 5000)};
    struct bytes under = {.kind = &counting, .path = "x", .size_bytes = 5000, .from.state = &c}, b;
    struct bytes_ends ends;
    unsigned char got[1024];
    assert_ok(bytes_keep_ends(&b, &ends, &under, &err));
    assert_ok(bytes_read(&b, 0, got, 1024, &err));
    assert_ok(bytes_read(&b, 5000 - 1024, got, 1024, &err));
    assert_memory_equal(got, contents + 5000 - 1024, 1024);
    assert_int_equal(c.reads, 2);
    assert_ok(bytes_read(&b, 1, got, 1024, &err));
    assert_memory_equal(got, contents + 1, 1024);
    assert_int_equal(c.reads, 3);
}

static void ends_of_few_bytes_do_not_overlap(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {0, 1, 1023, 1024, 1025, 2047, 2048, 2049};
    struct bytes_ends ends;
    unsigned char got[3000];
    for (size_t i = 0; i < COUNT(sizes); i++) {
        struct bytes whole = bytes_of_memory(contents, sizes[i]), b;
        assert_ok(bytes_keep_ends(&b, &ends, &whole, &err));
        for (size_t at = 0; at <= sizes[i]; at += 1 + sizes[i] / 50) {
            assert_ok(bytes_read(&b, at, got, sizes[i] - at, &err));
            assert_memory_equal(got, contents + at, sizes[i] - at);
        }
    }
}

static void deflated_data_that_ends_early_is_refused_and_can_be_read_before_that(void **state)
{
    (void)state;
    struct source *s = open_source(NUM_OPENERS - 1);
    unsigned char got[1000], *all = arena_alloc(&a, CONTENTS);
    s->packed.size_bytes -= 1000;
    assert_fails(bytes_read(&s->contents, 0, all, CONTENTS, &err), ERR_CORRUPT,
                 "/packed: deflated data at 11 ends or breaks at byte ");
    assert_ok(bytes_read(&s->contents, 500, got, sizeof got, &err));
    assert_memory_equal(got, contents + 500, sizeof got);
    close_source(s);
}

static void packed_data_may_be_opened_anew_between_reads(void **state)
{
    (void)state;
    struct source *s = open_source(NUM_OPENERS - 1);
    unsigned char got[1000];
    assert_ok(bytes_read(&s->contents, 0, got, sizeof got, &err));
    bytes_release(&s->file);
    assert_ok(bytes_open(&s->file, packed_path, NULL, &err));
    s->packed = bytes_range(&s->file, BEFORE, packed_bytes);
    for (size_t at = 1000; at < CONTENTS; at += 100000) {
        assert_ok(bytes_read(&s->contents, at, got, sizeof got, &err));
        assert_memory_equal(got, contents + at, sizeof got);
    }
    close_source(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_same_bytes_come_from_everywhere),
        TEST(several_threads_read_the_same_bytes),
        TEST(a_read_past_the_end_is_refused),
        TEST(only_memory_is_in_memory),
        TEST(a_file_cut_short_behind_our_back_is_refused),
        TEST(ends_are_read_once),
        TEST(ends_of_few_bytes_do_not_overlap),
        TEST(deflated_data_that_ends_early_is_refused_and_can_be_read_before_that),
        TEST(packed_data_may_be_opened_anew_between_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
