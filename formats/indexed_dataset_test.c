#include "formats/indexed_dataset.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/count.h"
#include "common/file.h"
#include "tests/temporary.h"
#include "tests/testing.h"

enum { MAX_SEQUENCES = 3000, MAX_TOKENS = 4096 };

static char folder[TEMPORARY_PATH];
static char prefix[TEMPORARY_PATH + 8], index_path[TEMPORARY_PATH + 8],
    data_path[TEMPORARY_PATH + 8];
static struct error err;

/* ---- datasets made up ---- */

/* An index piece by piece, so that each can be wrong. */
struct made {
    const char *magic; /* 9 bytes */
    uint64_t version, num_sequences, num_entries;
    unsigned code;
    int32_t lengths[MAX_SEQUENCES];
    int64_t offsets[MAX_SEQUENCES], entries[MAX_SEQUENCES + 1];
    size_t modes, extra; /* bytes behind */
    struct strbuf data;
};

static struct made made;

static void write_both(void)
{
    struct strbuf index = {0};
    const uint8_t code = (uint8_t)made.code;
    const uint64_t counts[] = {made.num_sequences, made.num_entries};
    strbuf_add(&index, made.magic, 9);
    strbuf_add(&index, &made.version, 8);
    strbuf_add(&index, &code, 1);
    strbuf_add(&index, counts, sizeof counts);
    strbuf_add(&index, made.lengths, made.num_sequences * sizeof *made.lengths);
    strbuf_add(&index, made.offsets, made.num_sequences * sizeof *made.offsets);
    strbuf_add(&index, made.entries, made.num_entries * sizeof *made.entries);
    strbuf_add_repeated(&index, 1, made.modes + made.extra);
    assert_ok(path_remove(index_path, &err));
    assert_ok(path_remove(data_path, &err));
    assert_ok(file_write_all(index_path, index.data, index.length, false, &err));
    assert_ok(file_write_all(data_path, made.data.data, made.data.length, false, &err));
    strbuf_release(&index);
}

/* Three sequences of U16 (10, 11, 12), (), (20, 21) in two documents, the
 * second of which has one.
 */
static void make_small(void)
{
    static const uint16_t ids[] = {10, 11, 12, 20, 21};
    strbuf_release(&made.data);
    made = (struct made){.magic = "MMIDIDX\0",
                         .version = 1,
                         .code = 8,
                         .num_sequences = 3,
                         .num_entries = 3,
                         .lengths = {3, 0, 2},
                         .offsets = {0, 6, 6},
                         .entries = {0, 2, 3}};
    strbuf_add(&made.data, ids, sizeof ids);
}

static enum status open_made(void)
{
    struct indexed_dataset d;
    write_both();
    enum status st = indexed_dataset_open(&d, prefix, &err);
    if (!st) indexed_dataset_close(&d);
    return st;
}

/* ---- reading ---- */

static void prefix_and_both_files_name_a_dataset(void **state)
{
    (void)state;
    const char *const paths[] = {prefix, index_path, data_path};
    make_small();
    write_both();
    for (size_t i = 0; i < 3; i++) {
        struct indexed_dataset d;
        uint64_t lengths[3], sequences[3];
        int32_t ids[5];
        int64_t wide[2];
        const int32_t want[] = {10, 11, 12, 20, 21};
        assert_ok(indexed_dataset_open(&d, paths[i], &err));
        assert_int_equal(d.dtype, DT_U16);
        assert_int_equal(d.num_sequences, 3);
        assert_int_equal(d.num_documents, 2);
        assert_int_equal(d.num_tokens, 5);
        assert_ok(indexed_dataset_lengths(&d, 0, 3, lengths, &err));
        assert_true(lengths[0] == 3 && lengths[1] == 0 && lengths[2] == 2);
        assert_ok(indexed_dataset_documents(&d, 0, 3, sequences, &err));
        assert_true(sequences[0] == 0 && sequences[1] == 2 && sequences[2] == 3);
        assert_ok(indexed_dataset_read_stream(&d, 0, 5, DT_I32, ids, &err));
        assert_memory_equal(ids, want, sizeof want);
        assert_ok(indexed_dataset_read(&d, 0, 1, 2, DT_I64, wide, &err));
        assert_true(wide[0] == 11 && wide[1] == 12);
        indexed_dataset_close(&d);
    }
}

static void what_is_not_there_is_our_mistake(void **state)
{
    (void)state;
    struct indexed_dataset d;
    uint64_t n[4];
    int32_t ids[8];
    make_small();
    write_both();
    assert_ok(indexed_dataset_open(&d, prefix, &err));
    assert_fails(indexed_dataset_read(&d, 3, 0, 0, DT_I32, ids, &err), ERR_OURS,
                 "d.bin: 1 sequences from 3 of 3");
    assert_fails(indexed_dataset_read(&d, 2, 1, 2, DT_I32, ids, &err), ERR_OURS,
                 "d.bin: 2 tokens of a sequence from 1 of 2");
    assert_fails(indexed_dataset_read_stream(&d, 3, UINT64_MAX, DT_I32, ids, &err), ERR_OURS,
                 "tokens from 3 of 5");
    assert_fails(indexed_dataset_lengths(&d, 1, 3, n, &err), ERR_OURS, "3 sequences from 1 of 3");
    assert_fails(indexed_dataset_documents(&d, 0, 4, n, &err), ERR_OURS, "4 documents from 0 of 3");
    assert_ok(indexed_dataset_read_stream(&d, 5, 0, DT_I32, ids, &err));
    indexed_dataset_close(&d);
}

/* ---- random datasets against plain arrays ---- */

static const struct {
    unsigned code;
    size_t bytes;
    bool is_signed;
} codes[] = {{1, 1, false}, {2, 1, true}, {3, 2, true}, {4, 4, true}, {5, 8, true}, {8, 2, false}};

static int64_t element(size_t kind, const unsigned char *from)
{
    uint64_t n = 0;
    unsigned unused = 64 - 8 * (unsigned)codes[kind].bytes;
    for (size_t i = codes[kind].bytes; i-- > 0;)
        n = n << 8 | from[i];
    return codes[kind].is_signed ? (int64_t)(n << unused) >> unused : (int64_t)n;
}

/* Sequences mostly lie one behind the other, as they are written, but need not. */
static void make_random(uint64_t *seed, size_t kind)
{
    const size_t bytes = codes[kind].bytes;
    uint64_t at = 0;
    strbuf_release(&made.data);
    made = (struct made){.magic = "MMIDIDX\0", .version = 1, .code = codes[kind].code};
    for (size_t i = 0; i < MAX_TOKENS * bytes; i++)
        strbuf_add_char(&made.data, (char)test_random(seed));
    made.num_sequences = test_below(seed, 4) ? test_below(seed, 40) : test_below(seed, 3000);
    for (size_t i = 0; i < made.num_sequences; i++) {
        if (test_below(seed, 20) == 0) at = test_below(seed, made.data.length);
        uint64_t n = test_below(seed, test_below(seed, 30) ? 8 : MAX_TOKENS);
        if (at + n * bytes > made.data.length) at = 0;
        made.lengths[i] = (int32_t)n;
        made.offsets[i] = (int64_t)at;
        at += n * bytes;
    }
    for (uint64_t s = 0; s < made.num_sequences; s += 1 + test_below(seed, 3))
        made.entries[made.num_entries++] = (int64_t)s;
    made.entries[made.num_entries++] = (int64_t)made.num_sequences;
    if (test_below(seed, 3) == 0) made.modes = made.num_sequences;
}

static int64_t plain_token(size_t kind, size_t sequence, uint64_t i)
{
    return element(kind, (unsigned char *)made.data.data + made.offsets[sequence] +
                             i * codes[kind].bytes);
}

/* All tokens of all sequences; their number. */
static uint64_t plain_stream(size_t kind, int64_t **stream)
{
    uint64_t n = 0;
    for (size_t s = 0; s < made.num_sequences; s++)
        n += (uint64_t)made.lengths[s];
    *stream = malloc(n * sizeof **stream + 1);
    assert_non_null(*stream);
    n = 0;
    for (size_t s = 0; s < made.num_sequences; s++)
        for (uint64_t i = 0; i < (uint64_t)made.lengths[s]; i++)
            (*stream)[n++] = plain_token(kind, s, i);
    return n;
}

static void check_reads(const struct indexed_dataset *d, uint64_t *seed, size_t kind,
                        const int64_t *stream)
{
    int64_t *got = malloc(d->num_tokens * sizeof *got + 1);
    assert_non_null(got);
    assert_ok(indexed_dataset_read_stream(d, 0, d->num_tokens, DT_I64, got, &err));
    assert_memory_equal(got, stream, d->num_tokens * sizeof *got);
    for (int i = 0; i < 50; i++) {
        uint64_t first = test_below(seed, d->num_tokens + 1);
        uint64_t count = test_below(seed, d->num_tokens - first + 1);
        if (count && test_below(seed, 2)) count = test_below(seed, count < 40 ? count : 40);
        assert_ok(indexed_dataset_read_stream(d, first, count, DT_I64, got, &err));
        assert_memory_equal(got, stream + first, count * sizeof *got);
    }
    for (int i = 0; i < 50 && d->num_tokens; i++) {
        uint64_t token = test_below(seed, d->num_tokens), sequence, at;
        assert_ok(indexed_dataset_locate(d, token, &sequence, &at, &err));
        assert_ok(indexed_dataset_read(d, sequence, at, 1, DT_I64, got, &err));
        assert_true(got[0] == stream[token] && at < (uint64_t)made.lengths[sequence]);
        for (uint64_t s = 0; s < sequence; s++)
            at += (uint64_t)made.lengths[s];
        assert_int_equal(at, token);
    }
    for (int i = 0; i < 50 && d->num_sequences; i++) {
        size_t s = test_below(seed, d->num_sequences);
        uint64_t first = test_below(seed, (uint64_t)made.lengths[s] + 1);
        uint64_t count = (uint64_t)made.lengths[s] - first;
        assert_ok(indexed_dataset_read(d, s, first, count, DT_I64, got, &err));
        for (uint64_t k = 0; k < count; k++)
            assert_true(got[k] == plain_token(kind, s, first + k));
    }
    free(got);
}

static void check_random(uint64_t *seed)
{
    struct indexed_dataset d;
    int64_t *stream;
    uint64_t n[MAX_SEQUENCES + 1];
    size_t kind = test_below(seed, COUNT(codes));
    make_random(seed, kind);
    write_both();
    assert_ok(indexed_dataset_open(&d, prefix, &err));
    assert_int_equal(d.num_tokens, plain_stream(kind, &stream));
    check_reads(&d, seed, kind, stream);
    assert_ok(indexed_dataset_lengths(&d, 0, d.num_sequences, n, &err));
    for (size_t i = 0; i < d.num_sequences; i++)
        assert_int_equal(n[i], made.lengths[i]);
    assert_ok(indexed_dataset_documents(&d, 0, d.num_documents + 1, n, &err));
    for (size_t i = 0; i <= d.num_documents; i++)
        assert_int_equal(n[i], made.entries[i]);
    free(stream);
    indexed_dataset_close(&d);
}

static void random_datasets_are_read_as_their_arrays_say(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 100; i++)
        check_random(&seed);
}

static void ids_past_32_bits_are_refused_as_such(void **state)
{
    (void)state;
    struct indexed_dataset d;
    const int64_t ids[] = {INT32_MAX, INT32_MIN, INT64_C(1) << 31};
    int32_t narrow[3];
    make_small();
    made.code = 5;
    made.num_sequences = 1;
    made.num_entries = 2;
    made.entries[1] = 1;
    strbuf_clear(&made.data);
    strbuf_add(&made.data, ids, sizeof ids);
    write_both();
    assert_ok(indexed_dataset_open(&d, prefix, &err));
    assert_ok(indexed_dataset_read(&d, 0, 0, 2, DT_I32, narrow, &err));
    assert_true(narrow[0] == INT32_MAX && narrow[1] == INT32_MIN);
    assert_fails(indexed_dataset_read(&d, 0, 1, 2, DT_I32, narrow, &err), ERR_CORRUPT,
                 "d.bin: byte 16: token 2147483648; ids go up to 2147483647");
    indexed_dataset_close(&d);
}

/* ---- raw files ---- */

static void a_raw_file_is_one_sequence(void **state)
{
    (void)state;
    static const uint16_t ids[] = {1, 2, 0xFFFF, 4};
    struct indexed_dataset d;
    uint64_t n[2];
    int64_t got[4];
    assert_ok(path_remove(data_path, &err));
    assert_ok(file_write_all(data_path, ids, sizeof ids, false, &err));
    assert_ok(token_file_open(&d, data_path, DT_U16, &err));
    assert_true(d.num_sequences == 1 && d.num_documents == 1 && d.num_tokens == 4);
    assert_ok(indexed_dataset_lengths(&d, 0, 1, n, &err));
    assert_int_equal(n[0], 4);
    assert_ok(indexed_dataset_documents(&d, 0, 2, n, &err));
    assert_true(n[0] == 0 && n[1] == 1);
    assert_ok(indexed_dataset_read(&d, 0, 1, 3, DT_I64, got, &err));
    assert_true(got[0] == 2 && got[1] == 0xFFFF && got[2] == 4);
    indexed_dataset_close(&d);

    assert_ok(token_file_open(&d, data_path, DT_U32, &err));
    assert_int_equal(d.num_tokens, 2);
    assert_ok(indexed_dataset_read_stream(&d, 0, 2, DT_I64, got, &err));
    assert_true(got[0] == 0x20001 && got[1] == 0x4FFFF);
    indexed_dataset_close(&d);
}

static void a_raw_file_is_whole_ids(void **state)
{
    (void)state;
    struct indexed_dataset d;
    assert_ok(path_remove(data_path, &err));
    assert_ok(file_write_all(data_path, "123456", 6, false, &err));
    assert_fails(token_file_open(&d, data_path, DT_U32, &err), ERR_CORRUPT,
                 "d.bin: 6 bytes, expected a multiple of 4");
    assert_fails(token_file_open(&d, data_path, DT_I32, &err), ERR_UNSUPPORTED,
                 "d.bin: raw token ids of I32, expected U16 or U32");
    assert_fails(token_file_open(&d, folder, DT_U16, &err), ERR_IO, "a folder, not a file");
    assert_ok(truncate(data_path, 0) ? ERR_IO : OK);
    assert_ok(token_file_open(&d, data_path, DT_U32, &err));
    assert_int_equal(d.num_tokens, 0);
    assert_ok(indexed_dataset_read_stream(&d, 0, 0, DT_I32, NULL, &err));
    indexed_dataset_close(&d);
}

/* ---- what is refused ---- */

static void a_header_that_is_none_is_refused(void **state)
{
    (void)state;
    make_small();
    made.magic = "MMIDIDY\0";
    assert_fails(open_made(), ERR_CORRUPT, "d.idx: byte 0: \"MMIDIDY");
    assert_non_null(strstr(err.text, ", expected MMIDIDX and two zeros"));
    made.magic = "PK\3\4abcd";
    assert_fails(open_made(), ERR_CORRUPT,
                 "d.idx: this is a zip archive (torch.save), not an index");
    make_small();
    made.version = 2;
    assert_fails(open_made(), ERR_CORRUPT, "d.idx: byte 9: version 2, expected 1");
    make_small();
    made.code = 0;
    assert_fails(open_made(), ERR_CORRUPT, "d.idx: byte 17: dtype code 0, expected 1 to 8");
    made.code = 9;
    assert_fails(open_made(), ERR_CORRUPT, "d.idx: byte 17: dtype code 9, expected 1 to 8");
    made.code = 7;
    assert_fails(open_made(), ERR_UNSUPPORTED, "d.idx: byte 17: elements of F32 are not token ids");
}

static void every_shorter_index_is_refused(void **state)
{
    (void)state;
    struct strbuf whole = {0};
    struct indexed_dataset d;
    make_small();
    write_both();
    assert_ok(file_read_all(index_path, 1 << 20, &whole, &err));
    for (off_t size = (off_t)whole.length - 1; size >= 0; size--) {
        const char *part = size >= 34 ? " bytes follow" : size >= 9 ? "d.idx: ends at" : "byte 0";
        assert_int_equal(truncate(index_path, size), 0);
        assert_fails(indexed_dataset_open(&d, prefix, &err), ERR_CORRUPT, part);
    }
    strbuf_release(&whole);
}

static void counts_and_file_must_agree(void **state)
{
    (void)state;
    static const struct {
        uint64_t sequences, entries;
        const char *part;
    } wrong[] = {
        {4, 3, "d.idx: bytes 18 and 26: 4 sequences and 3 document entries"},
        {3, 4, "3 sequences and 4 document entries"},
        {UINT64_MAX, 3, "18446744073709551615 sequences"},
        {(uint64_t)1 << 60, (uint64_t)1 << 61, "but 60 bytes follow"}, /* a sum that would wrap */
        {3, 0, "d.idx: byte 26: 0 document entries, expected at least 1"},
    };
    struct indexed_dataset d;
    make_small();
    made.extra = 1;
    assert_fails(open_made(), ERR_CORRUPT, "but 61 bytes follow");
    made.modes = 3;
    assert_fails(open_made(), ERR_CORRUPT, "but 64 bytes follow");
    for (size_t i = 0; i < COUNT(wrong); i++) {
        struct strbuf index = {0};
        const uint64_t counts[] = {wrong[i].sequences, wrong[i].entries};
        make_small();
        write_both();
        assert_ok(file_read_all(index_path, 1 << 20, &index, &err));
        memcpy(index.data + 18, counts, sizeof counts);
        assert_ok(file_replace_all(index_path, index.data, index.length, false, &err));
        assert_fails(indexed_dataset_open(&d, prefix, &err), ERR_CORRUPT, wrong[i].part);
        strbuf_release(&index);
    }
}

static void sequences_outside_the_data_are_refused(void **state)
{
    (void)state;
    make_small();
    made.lengths[1] = -1;
    assert_fails(open_made(), ERR_CORRUPT,
                 "d.idx: byte 38: sequence 1 has -1 tokens, expected at least 0");
    make_small();
    made.lengths[2] = 3;
    assert_fails(open_made(), ERR_CORRUPT, "d.idx: byte 62: sequence 2 is 6 bytes at 6 of ");
    assert_non_null(strstr(err.text, "d.bin, which has 10"));
    make_small();
    made.offsets[1] = -2;
    assert_fails(open_made(), ERR_CORRUPT, "sequence 1 is 0 bytes at -2 of ");
    make_small();
    made.offsets[0] = INT64_MAX;
    assert_fails(open_made(), ERR_CORRUPT, "sequence 0 is 6 bytes at 9223372036854775807 of ");
    make_small();
    strbuf_clear(&made.data);
    assert_fails(open_made(), ERR_CORRUPT, "d.bin, which has 0");
}

static void documents_are_runs_of_all_sequences(void **state)
{
    (void)state;
    make_small();
    made.entries[0] = 1;
    assert_fails(open_made(), ERR_CORRUPT,
                 "d.idx: byte 70: document 0 begins with sequence 1, expected 0 to 0");
    make_small();
    made.entries[1] = -1;
    assert_fails(open_made(), ERR_CORRUPT,
                 "d.idx: byte 78: document 1 begins with sequence -1, expected 0 to 3");
    made.entries[1] = 4;
    assert_fails(open_made(), ERR_CORRUPT, "document 1 begins with sequence 4, expected 0 to 3");
    make_small();
    made.entries[2] = 2;
    assert_fails(open_made(), ERR_CORRUPT, "document 2 begins with sequence 2, expected 3 to 3");
}

static void a_file_that_changed_since_is_noticed(void **state)
{
    (void)state;
    struct indexed_dataset d;
    int32_t ids[5];
    make_small();
    write_both();
    assert_ok(indexed_dataset_open(&d, prefix, &err));
    assert_int_equal(truncate(data_path, 8), 0);
    assert_fails(indexed_dataset_read(&d, 2, 0, 2, DT_I32, ids, &err), ERR_CORRUPT,
                 "d.bin: ends at 8");
    int fd = open(index_path, O_WRONLY);
    const int32_t less = 1, none = -7;
    assert_int_equal(pwrite(fd, &less, sizeof less, 34), sizeof less);
    assert_fails(indexed_dataset_read_stream(&d, 0, 5, DT_I32, ids, &err), ERR_IO,
                 "d.idx: changed while it was read");
    assert_int_equal(pwrite(fd, &none, sizeof none, 34), sizeof none);
    assert_fails(indexed_dataset_read(&d, 0, 0, 1, DT_I32, ids, &err), ERR_CORRUPT,
                 "sequence 0 has -7 tokens");
    close(fd);
    indexed_dataset_close(&d);
}

static void files_that_are_not_there_are_named(void **state)
{
    (void)state;
    struct indexed_dataset d;
    make_small();
    write_both();
    assert_ok(path_remove(data_path, &err));
    assert_fails(indexed_dataset_open(&d, prefix, &err), ERR_IO, "d.bin: No such file");
    assert_ok(path_remove(index_path, &err));
    assert_fails(indexed_dataset_open(&d, data_path, &err), ERR_IO, "d.idx: No such file");
}

/* ---- golden files ---- */

/* Every document ends with the id that ends documents, which stands nowhere
 * else. */
static void check_golden(const char *path, enum dtype dtype, uint64_t sequences, uint64_t documents,
                         uint64_t tokens, int32_t end_of_document)
{
    struct indexed_dataset d;
    uint64_t first[1024], ends = 0;
    assert_ok(indexed_dataset_open(&d, path, &err));
    assert_int_equal(d.dtype, dtype);
    assert_int_equal(d.num_sequences, sequences);
    assert_int_equal(d.num_documents, documents);
    assert_int_equal(d.num_tokens, tokens);
    int32_t *ids = malloc(tokens * sizeof *ids);
    assert_non_null(ids);
    assert_ok(indexed_dataset_documents(&d, 0, documents + 1, first, &err));
    for (size_t i = 0; i < documents; i++) {
        uint64_t lengths[8], last = first[i + 1] - 1;
        assert_in_range(last - first[i], 0, 7);
        assert_ok(indexed_dataset_lengths(&d, first[i], last + 1 - first[i], lengths, &err));
        uint64_t length = lengths[last - first[i]];
        assert_ok(indexed_dataset_read(&d, last, 0, length, DT_I32, ids, &err));
        assert_int_equal(ids[length - 1], end_of_document);
    }
    assert_ok(indexed_dataset_read_stream(&d, 0, tokens, DT_I32, ids, &err));
    for (size_t i = 0; i < tokens; i++) {
        assert_in_range(ids[i], 0, end_of_document);
        ends += ids[i] == end_of_document;
    }
    assert_int_equal(ends, documents);
    free(ids);
    indexed_dataset_close(&d);
}

static void megatrons_own_datasets_are_read(void **state)
{
    (void)state;
    check_golden("tests/golden/megatron-data/u16", DT_U16, 600, 600, 21188, 127);
    check_golden("tests/golden/megatron-data/i32.idx", DT_I32, 514, 250, 18152, 127);
    check_golden("tests/golden/megatron-data/wide.bin", DT_I32, 220, 220, 8212, 131071);
}

static int make_folder(void **state)
{
    (void)state;
    if (!temporary_folder(folder)) return -1;
    snprintf(prefix, sizeof prefix, "%s/d", folder);
    snprintf(index_path, sizeof index_path, "%s/d.idx", folder);
    snprintf(data_path, sizeof data_path, "%s/d.bin", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    strbuf_release(&made.data);
    return path_remove(folder, NULL) ? -1 : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefix_and_both_files_name_a_dataset),
        cmocka_unit_test(what_is_not_there_is_our_mistake),
        cmocka_unit_test(random_datasets_are_read_as_their_arrays_say),
        cmocka_unit_test(ids_past_32_bits_are_refused_as_such),
        cmocka_unit_test(a_raw_file_is_one_sequence),
        cmocka_unit_test(a_raw_file_is_whole_ids),
        cmocka_unit_test(a_header_that_is_none_is_refused),
        cmocka_unit_test(every_shorter_index_is_refused),
        cmocka_unit_test(counts_and_file_must_agree),
        cmocka_unit_test(sequences_outside_the_data_are_refused),
        cmocka_unit_test(documents_are_runs_of_all_sequences),
        cmocka_unit_test(a_file_that_changed_since_is_noticed),
        cmocka_unit_test(files_that_are_not_there_are_named),
        cmocka_unit_test(megatrons_own_datasets_are_read),
    };
    return cmocka_run_group_tests_name("indexed_dataset", tests, make_folder, remove_folder);
}
