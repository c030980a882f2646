#include "formats/zip.h"

#include <libdeflate.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/count.h"
#include "formats/zip_internal.h"
#include "tests/testing.h"

static struct arena a;
static struct error err;
static struct strbuf file;
static int fd;
static struct bytes archive;

static int setup(void **state)
{
    (void)state;
    arena_init(&a);
    fd = memfd_create("zip", 0);
    return fd < 0;
}

static int teardown(void **state)
{
    (void)state;
    arena_release(&a);
    strbuf_release(&file);
    return close(fd);
}

/* ---- an archive in memory ---- */

static enum status put(void *context, uint64_t offset, const void *bytes, size_t count,
                       struct error *e)
{
    struct strbuf *out = context;
    if (offset < out->length) return fail(e, ERR_OURS, "not in order");
    strbuf_add_repeated(out, 0x77, (size_t)offset - out->length); /* the data, filled in later */
    strbuf_add(out, bytes, count);
    return OK;
}

/* Writes an archive of these entries, each of `bytes` bytes counted from its
 * number up, to file. */
static struct zip_out *write_archive(const char *const *names, const size_t *bytes, size_t count)
{
    struct zip_out *z = arena_alloc(&a, sizeof *z);
    z->entries = arena_array(&a, count, sizeof *z->entries);
    z->num_entries = count;
    for (size_t i = 0; i < count; i++)
        z->entries[i] = (struct zip_out_entry){.name = names[i], .size_bytes = bytes[i]};
    zip_layout(z);
    unsigned char *data = arena_alloc(&a, 1 << 16);
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < bytes[i]; k++)
            data[k] = (unsigned char)(i + k);
        z->entries[i].crc = libdeflate_crc32(0, data, bytes[i]);
    }
    strbuf_clear(&file);
    assert_ok(zip_emit(z, put, &file, &err));
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < bytes[i]; k++)
            file.data[z->entries[i].data_offset + k] = (char)(i + k);
    return z;
}

static const char *const three_names[] = {"archive/data.pkl", "archive/data/0", "archive/version"};
static const size_t three_sizes[] = {100, 24, 0};

static struct zip_out *write_three(void)
{
    return write_archive(three_names, three_sizes, 3);
}

static void save(void)
{
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, file.data, file.length, 0), file.length);
}

static enum status open_archive(struct zip_directory *z)
{
    save();
    archive = bytes_of_file(fd, "test.zip", file.length);
    return zip_read_directory(z, &a, &archive, &err);
}

static void assert_refused(enum status status, const char *part)
{
    struct zip_directory z;
    assert_fails(open_archive(&z), status, part);
}

static void set_le(uint64_t at, uint64_t v, unsigned bytes)
{
    put_le((unsigned char *)file.data + at, v, bytes);
}

/* The offset of an entry's row in the archive of three. */
static uint64_t row_at(const struct zip_out *z, size_t entry)
{
    uint64_t at = z->directory_offset;
    for (size_t i = 0; i < entry; i++)
        at += ROW_BYTES + strlen(z->entries[i].name);
    return at;
}

static uint64_t end_at(void)
{
    return file.length - END_BYTES;
}

/* ---- writing ---- */

static void entries_come_back_with_their_bytes(void **state)
{
    (void)state;
    struct zip_directory z;
    struct strbuf contents = {0};
    const struct zip_out *out = write_three();
    assert_int_equal(file.length, out->total_bytes);
    assert_ok(open_archive(&z));
    assert_string_equal(z.folder, "archive");
    assert_int_equal(z.num_entries, 3);
    const struct zip_entry *e = zip_find(&z, "data/0");
    assert_non_null(e);
    assert_int_equal(e->data_offset, out->entries[1].data_offset);
    assert_int_equal(e->crc, out->entries[1].crc);
    assert_false(e->coding);
    assert_ok(zip_read_entry(e, &archive, 100, &contents, &err));
    assert_int_equal(contents.length, 24);
    assert_int_equal(contents.data[23], 24);
    assert_fails(zip_read_entry(e, &archive, 23, &contents, &err), ERR_CORRUPT,
                 "entry data/0: 24 bytes, at most 23 were expected");
    assert_int_equal(zip_find(&z, "version")->size_bytes, 0);
    assert_null(zip_find(&z, "archive/version"));
    zip_directory_release(&z);
    strbuf_release(&contents);
}

/* 30 bytes of header, 16 of name: 18 bytes of extra field reach 64. */
static void data_is_aligned_by_a_padding_field(void **state)
{
    (void)state;
    const struct zip_out *z = write_three();
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(z->entries[i].data_offset % 64, 0);
    assert_int_equal(z->entries[0].data_offset, 64);
    assert_int_equal(get_le((unsigned char *)file.data + LOCAL_EXTRA, 2), 18);
    assert_memory_equal(file.data + LOCAL_BYTES + 16, "FB\x0E\0ZZZZZZZZZZZZZZ", 18);
    assert_int_equal(get_le((unsigned char *)file.data + LOCAL_VERSION, 2), 20);
    static const char *const name_of_30[] = {"archive/data.pkl.and.more.text"};
    z = write_archive(name_of_30, three_sizes, 1);
    assert_int_equal(z->entries[0].data_offset, 64); /* no more padding than needed */
}

static void an_archive_of_no_entries_is_an_end_record(void **state)
{
    (void)state;
    struct zip_directory z;
    write_archive(NULL, NULL, 0);
    assert_int_equal(file.length, END_BYTES);
    assert_ok(open_archive(&z));
    assert_int_equal(z.num_entries, 0);
    zip_directory_release(&z);
    set_le(END_COMMENT, 3, 2);
    strbuf_add_text(&file, "abc");
    assert_ok(open_archive(&z));
    zip_directory_release(&z);
}

static void many_entries_take_the_zip64_end_record(void **state)
{
    (void)state;
    enum { COUNT = 66000 };
    struct zip_directory z;
    const char **names = arena_array(&a, COUNT, sizeof *names);
    size_t *sizes = arena_array(&a, COUNT, sizeof *sizes);
    for (size_t i = 0; i < COUNT; i++) {
        names[i] = arena_printf(&a, "a/data/%zu", i);
        sizes[i] = i % 3;
    }
    write_archive(names, sizes, COUNT);
    assert_int_equal(get_le((unsigned char *)file.data + end_at() + END_COUNT, 2), 0xFFFF);
    assert_ok(open_archive(&z));
    assert_int_equal(z.num_entries, COUNT);
    assert_int_equal(zip_find(&z, "data/65999")->size_bytes, 2);
    zip_directory_release(&z);
}

static enum status put_sparse(void *context, uint64_t offset, const void *bytes, size_t count,
                              struct error *e)
{
    (void)context, (void)e;
    return pwrite(fd, bytes, count, (off_t)offset) == (ssize_t)count ? OK : ERR_IO;
}

/* In a file with holes: an entry of 5 GiB, and others that begin behind it. */
static void archives_past_4_gib_are_written_and_read(void **state)
{
    (void)state;
    const uint64_t large = (uint64_t)5 << 30;
    struct zip_out_entry entries[] = {{.name = "a/data/0", .size_bytes = large, .crc = 7},
                                      {.name = "a/data/1", .size_bytes = 3},
                                      {.name = "a/version", .size_bytes = 2}};
    struct zip_out out = {.entries = entries, .num_entries = 3};
    struct zip_directory z;
    struct strbuf contents = {0};
    zip_layout(&out);
    assert_int_equal(entries[0].data_offset % 64, 0);
    assert_int_equal(ftruncate(fd, (off_t)out.total_bytes), 0);
    assert_ok(zip_emit(&out, put_sparse, NULL, &err));
    assert_int_equal(lseek(fd, 0, SEEK_END), out.total_bytes);
    assert_int_equal(pwrite(fd, "abc", 3, (off_t)entries[1].data_offset), 3);
    archive = bytes_of_file(fd, "test.zip", out.total_bytes);
    assert_ok(zip_read_directory(&z, &a, &archive, &err));
    const struct zip_entry *e = zip_find(&z, "data/0");
    assert_int_equal(e->size_bytes, large);
    assert_int_equal(e->packed_bytes, large);
    assert_int_equal(e->data_offset, entries[0].data_offset);
    e = zip_find(&z, "data/1");
    assert_int_equal(e->data_offset, entries[1].data_offset);
    assert_ok(zip_read_entry(e, &archive, 10, &contents, &err));
    assert_string_equal(contents.data, "abc");
    zip_directory_release(&z);
    strbuf_release(&contents);
}

/* ---- reading ---- */

static void an_archive_within_a_file_is_read_at_its_offset(void **state)
{
    (void)state;
    struct zip_directory z;
    struct strbuf contents = {0};
    const struct zip_out *out = write_three();
    assert_int_equal(pwrite(fd, file.data, file.length, 1000), file.length);
    assert_int_equal(pwrite(fd, "more", 4, (off_t)(1000 + file.length)), 4);
    struct bytes whole = bytes_of_file(fd, "test.zip", 1000 + file.length + 4);
    archive = bytes_range(&whole, 1000, file.length);
    assert_ok(zip_read_directory(&z, &a, &archive, &err));
    const struct zip_entry *e = zip_find(&z, "data/0");
    assert_int_equal(e->data_offset, out->entries[1].data_offset);
    assert_ok(zip_read_entry(e, &archive, 100, &contents, &err));
    assert_memory_equal(contents.data, file.data + e->data_offset, e->size_bytes);
    zip_directory_release(&z);
    strbuf_release(&contents);
}

static void a_comment_and_folders_are_let_pass(void **state)
{
    (void)state;
    struct zip_directory z;
    static const char *const names[] = {"a/", "a/data/", "a/data/0"};
    write_archive(names, (const size_t[]){0, 0, 5}, 3);
    set_le(end_at() + END_COMMENT, 2000, 2);
    strbuf_add_repeated(&file, 'c', 2000);
    assert_ok(open_archive(&z));
    assert_int_equal(z.num_entries, 1);
    assert_string_equal(z.entries[0].name, "data/0");
    zip_directory_release(&z);
}

/* Sizes of zero in the local header, as torch writes them; a descriptor may
 * follow the data. */
static void local_sizes_may_be_zero(void **state)
{
    (void)state;
    struct zip_directory z;
    const struct zip_out *out = write_three();
    set_le(out->entries[0].header_offset + LOCAL_SIZE, 0, 4);
    set_le(out->entries[0].header_offset + LOCAL_PACKED, 0, 4);
    assert_ok(open_archive(&z));
    zip_directory_release(&z);
    set_le(out->entries[0].header_offset + LOCAL_SIZE, 99, 4);
    assert_refused(ERR_CORRUPT, "entry archive/data.pkl: its local header has other sizes");
}

/* An archive of one deflated entry of `bytes` zeros: one of the same size as
 * its deflate data, made to say so. */
static struct zip_out *write_deflated(size_t bytes)
{
    unsigned char packed[2000];
    unsigned char *zeros = arena_alloc(&a, bytes);
    struct libdeflate_compressor *c = libdeflate_alloc_compressor(6);
    size_t n = libdeflate_deflate_compress(c, zeros, bytes, packed, sizeof packed);
    libdeflate_free_compressor(c);
    assert_true(n > 0);
    struct zip_out *z = write_archive((const char *const[]){"a/data/0"}, &n, 1);
    memcpy(file.data + z->entries[0].data_offset, packed, n);
    uint64_t row = row_at(z, 0);
    set_le(LOCAL_METHOD, METHOD_DEFLATED, 2);
    set_le(LOCAL_SIZE, bytes, 4);
    set_le(row + ROW_METHOD, METHOD_DEFLATED, 2);
    set_le(row + ROW_SIZE, bytes, 4);
    set_le(row + ROW_CRC, libdeflate_crc32(0, zeros, bytes), 4);
    return z;
}

static void deflated_entries_are_inflated(void **state)
{
    (void)state;
    struct zip_directory z;
    struct strbuf contents = {0};
    write_deflated(100000);
    assert_ok(open_archive(&z));
    const struct zip_entry *e = zip_find(&z, "data/0");
    assert_true(e->coding);
    assert_int_equal(e->size_bytes, 100000);
    assert_true(e->packed_bytes < 1000);
    assert_ok(zip_read_entry(e, &archive, 100000, &contents, &err));
    assert_int_equal(contents.length, 100000);
    zip_directory_release(&z);
    strbuf_release(&contents);
}

static void deflated_entries_that_lie_are_refused(void **state)
{
    (void)state;
    uint64_t row = row_at(write_deflated(100000), 0);
    set_le(LOCAL_SIZE, 0, 4);
    set_le(row + ROW_SIZE, 100001, 4);
    assert_refused(ERR_CORRUPT, "inflates to less, 100001 bytes were expected");
    set_le(row + ROW_SIZE, 99999, 4);
    assert_refused(ERR_CORRUPT, "inflates to more, 99999 bytes were expected");
    set_le(row + ROW_SIZE, 4000000000, 4);
    assert_refused(ERR_CORRUPT, "claims 4000000000 bytes, which");
    set_le(row + ROW_SIZE, 100000, 4);
    set_le(row + ROW_CRC, 1, 4);
    assert_refused(ERR_CORRUPT, "CRC-32");
    set_le(row + ROW_CRC, 0, 4); /* torch may be told to write none */
    struct zip_directory z;
    assert_ok(open_archive(&z));
    zip_directory_release(&z);
    file.data[70] ^= 0x55;
    assert_refused(ERR_CORRUPT, "is broken");
}

static void what_is_no_archive_is_refused(void **state)
{
    (void)state;
    static const char end[] = "no end-of-central-directory record at the end of ";
    write_three();
    size_t whole = file.length;
    for (size_t n = 0; n < whole; n += 7) { /* wherever it is cut */
        file.length = n;
        assert_refused(ERR_CORRUPT, end);
    }
    file.length = whole;
    strbuf_add_text(&file, "more");
    assert_refused(ERR_CORRUPT, end);
}

/* One number changed in the archive of three. */
static void what_breaks_the_rules_is_refused_by_name(void **state)
{
    (void)state;
    enum { LOCAL, ROW, END };
    static const struct {
        int where;
        unsigned at, bytes;
        uint64_t value;
        const char *message;
    } rows[] = {
        {LOCAL, 0, 4, 0, "entry archive/data/0: no header at "},
        {LOCAL, LOCAL_METHOD, 2, 8, "entry archive/data/0: its local header has another method"},
        {LOCAL, LOCAL_NAME, 2, 13, "entry archive/data/0: its local header has another name"},
        {LOCAL, LOCAL_BYTES, 1, 'b', "entry archive/data/0: its local header has another name"},
        {LOCAL, LOCAL_EXTRA, 2, 60000, "reach into the directory"},
        {ROW, 0, 4, 0, "entry 2 of 3: not a directory row"},
        {ROW, ROW_FLAGS, 2, 1, "entry archive/data/0: encrypted"},
        {ROW, ROW_METHOD, 2, 12, "entry archive/data/0: compression method 12, only stored"},
        {ROW, ROW_SIZE, 4, 23, "entry archive/data/0: stored, yet 24 bytes packed of 23"},
        {ROW, ROW_NAME, 2, 60000, "entry 2 of 3: a row that exceeds the directory"},
        {ROW, ROW_DISK, 2, 1, "several disks"},
        {ROW, ROW_OFFSET, 4, 1, "entry archive/data/0: no header at 1"},
        {ROW, ROW_OFFSET, 4, 1u << 31, "entry archive/data/0: header at 2147483648 beyond"},
        {ROW, ROW_BYTES + 8, 1, '\\', "not a plain relative path"},
        {ROW, ROW_BYTES + 8, 1, 0, "a NUL in its name"},
        {ROW, ROW_BYTES, 1, '/', "not a plain relative path"},
        {END, END_DISK, 2, 1, "an archive of several disks: this is disk 1"},
        {END, END_COUNT, 2, 400, "counts 400 entries, on this disk 3"},
        {END, END_DIRECTORY_OFFSET, 4, 0, "a directory of "},
        {END, END_DIRECTORY_BYTES, 4, 1, "a directory of 1 bytes at "},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct zip_out *z = write_three();
        uint64_t base = rows[i].where == LOCAL ? z->entries[1].header_offset
                        : rows[i].where == ROW ? row_at(z, 1)
                                               : end_at();
        set_le(base + rows[i].at, rows[i].value, rows[i].bytes);
        assert_refused(ERR_CORRUPT, rows[i].message);
    }
}

static void a_count_that_the_directory_does_not_hold_is_refused(void **state)
{
    (void)state;
    write_three();
    set_le(end_at() + END_COUNT, 2, 2);
    set_le(end_at() + END_DISK_COUNT, 2, 2);
    assert_refused(ERR_CORRUPT, "2 entries fill ");
    set_le(end_at() + END_COUNT, 400, 2);
    set_le(end_at() + END_DISK_COUNT, 400, 2);
    assert_refused(ERR_CORRUPT, "400 entries in a directory of ");
}

static void entries_that_overlap_or_repeat_are_refused(void **state)
{
    (void)state;
    static const char *const twice[] = {"a/x", "a/y", "a/x"}, *const cases[] = {"a/x", "a/X"},
                             *const folders[] = {"a/x", "b/y"}, *const none[] = {"x"};
    const size_t sizes[] = {200, 100, 5};
    write_archive(twice, sizes, 3);
    assert_refused(ERR_CORRUPT, "entry a/x: appears twice");
    write_archive(cases, sizes, 2);
    assert_refused(ERR_CORRUPT, "their names differ in case only");
    write_archive(folders, sizes, 2);
    assert_refused(ERR_CORRUPT, "entry b/y: not in the folder a of the first entry");
    write_archive(none, sizes, 1);
    assert_refused(ERR_CORRUPT, "entry x: not in the folder x of the first entry");

    /* The header of the second lies within the data of the first. */
    const struct zip_out *z = write_archive((const char *const[]){"a/x", "a/y"}, sizes, 2);
    memcpy(file.data + 128, file.data + z->entries[1].header_offset, LOCAL_BYTES + 3);
    set_le(128 + LOCAL_EXTRA, 0, 2);
    set_le(row_at(z, 1) + ROW_OFFSET, 128, 4);
    assert_refused(ERR_CORRUPT, "entries a/x and a/y overlap");
}

static void bytes_before_the_first_entry_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"a/x", "a/y"};
    const struct zip_out *z = write_archive(names, (const size_t[]){3, 3}, 2);
    uint64_t second = row_at(z, 1), end = end_at();
    /* Only the row of the second entry is left. */
    memmove(file.data + z->directory_offset, file.data + second, file.length - second);
    file.length -= second - z->directory_offset;
    set_le(end_at() + END_COUNT, 1, 2);
    set_le(end_at() + END_DISK_COUNT, 1, 2);
    set_le(end_at() + END_DIRECTORY_BYTES, end - second, 4);
    assert_refused(ERR_CORRUPT, "bytes before the first entry");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(entries_come_back_with_their_bytes),
        TEST(data_is_aligned_by_a_padding_field),
        TEST(an_archive_of_no_entries_is_an_end_record),
        TEST(many_entries_take_the_zip64_end_record),
        TEST(archives_past_4_gib_are_written_and_read),
        TEST(an_archive_within_a_file_is_read_at_its_offset),
        TEST(a_comment_and_folders_are_let_pass),
        TEST(local_sizes_may_be_zero),
        TEST(deflated_entries_are_inflated),
        TEST(deflated_entries_that_lie_are_refused),
        TEST(what_is_no_archive_is_refused),
        TEST(what_breaks_the_rules_is_refused_by_name),
        TEST(a_count_that_the_directory_does_not_hold_is_refused),
        TEST(entries_that_overlap_or_repeat_are_refused),
        TEST(bytes_before_the_first_entry_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
