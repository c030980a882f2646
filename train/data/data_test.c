/* data_test.c - mock data, options, bad data, and caches that are damaged. */
#include "train/data/data.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/indexed_dataset_writer.h"
#include "tests/folder.h"
#include "train/data/npy.h"

static struct data *data;
static struct data_rows rows;

/* ---- mock data ---- */

/* The stream of 97 tokens from seed 3, and samples of 3 + 1 of them. */
static void mock_samples_follow_one_another(void **state)
{
    static const int32_t stream[] = {42, 57, 67, 5,  26, 54, 15, 8,  66, 8,
                                     37, 30, 83, 50, 72, 83, 43, 77, 12, 34};
    const struct data_options o = {.mock = true, .mock_seed = 3, .vocab_size = 97, .seq_length = 3};
    (void)state;
    assert_ok(data_open(&data, &o, &err));
    assert_true(data_num_samples(data, SPLIT_TRAIN) == UINT64_MAX);
    assert_ok(data_rows_allocate(&rows, 5, 3, &err));
    assert_ok(data_read(data, SPLIT_TRAIN, 0, 5, &rows, &err));
    for (size_t i = 0; i < 15; i++) {
        assert_int_equal(rows.tokens[i], stream[i / 3 * 4 + i % 3]);
        assert_int_equal(rows.labels[i], stream[i / 3 * 4 + i % 3 + 1]);
        assert_int_equal(rows.positions[i], i % 3);
        assert_int_equal(rows.starts[i], i % 3 == 0);
        assert_true(rows.loss_mask[i] == 1);
    }
    assert_ok(data_read(data, SPLIT_VALID, 4, 1, &rows, &err));
    assert_int_equal(rows.labels[2], 34);
    data_rows_release(&rows);
    data_close(data);
}

/* A jump is as many steps. */
static void mock_sample_far_away_is_reached(void **state)
{
    const struct data_options o = {
        .mock = true, .mock_seed = 1, .vocab_size = 1 << 20, .seq_length = 7};
    uint64_t x = 1;
    (void)state;
    assert_ok(data_open(&data, &o, &err));
    assert_ok(data_rows_allocate(&rows, 1, 7, &err));
    assert_ok(data_read(data, SPLIT_TRAIN, 100000, 1, &rows, &err));
    for (uint64_t i = 0; i <= 8 * 100000; i++)
        x = x * 6364136223846793005u + 1442695040888963407u;
    assert_int_equal(rows.tokens[0], (x >> 33) % (1 << 20));
    data_rows_release(&rows);
    data_close(data);
}

/* ---- datasets ---- */

/* PREFIX in the folder: `count` sequences of `length` tokens; token k of
 * sequence s is 10 s + k. */
static const char *dataset(const char *name, int count, int length)
{
    struct indexed_dataset_writer w;
    const char *prefix = in_folder(name);
    assert_ok(indexed_dataset_create(&w, prefix, DT_U16, true, &err));
    for (int s = 0; s < count; s++) {
        for (int k = 0; k < length; k++)
            assert_ok(indexed_dataset_append(&w, &(int32_t){10 * s + k}, 1, &err));
        assert_ok(indexed_dataset_end_sequence(&w, &err));
        indexed_dataset_end_document(&w);
    }
    assert_ok(indexed_dataset_finish(&w, &err));
    indexed_dataset_writer_close(&w);
    return prefix;
}

static const char *words[4];

/* Four training samples of 6 tokens from one path. */
static struct data_options options_for(const char *prefix)
{
    words[0] = prefix;
    return (struct data_options){.paths = {words, 1},
                                 .split = "100,0,0",
                                 .seq_length = 6,
                                 .seed = 1,
                                 .samples = {4, 0, 0},
                                 .eod_id = -1,
                                 .pad_id = -1,
                                 .vocab_size = 1000};
}

static void sample_beyond_the_end_is_refused(void **state)
{
    const struct data_options o = options_for(dataset("d", 5, 9)); /* 45 tokens: 7 samples */
    (void)state;
    assert_ok(data_open(&data, &o, &err));
    assert_int_equal(data_num_samples(data, SPLIT_TRAIN), 7);
    assert_int_equal(data_num_samples(data, SPLIT_VALID), 0);
    assert_ok(data_rows_allocate(&rows, 3, 6, &err));
    assert_ok(data_read(data, SPLIT_TRAIN, 4, 3, &rows, &err));
    assert_fails(data_read(data, SPLIT_TRAIN, 5, 3, &rows, &err), ERR_USAGE,
                 "train data: samples 5 to 7 are needed, but there are 7");
    assert_fails(data_read(data, SPLIT_VALID, 0, 1, &rows, &err), ERR_USAGE,
                 "valid data: samples 0 to 0 are needed, but there are 0");
    data_rows_release(&rows);
    data_close(data);
}

/* All tokens of one epoch are there once, but for those behind the last sample. */
static void epoch_has_each_token_once(void **state)
{
    struct data_options o = options_for(dataset("d", 5, 9));
    int seen[50] = {0}, times = 0;
    (void)state;
    o.samples[SPLIT_TRAIN] = ONE_EPOCH;
    assert_ok(data_open(&data, &o, &err));
    assert_ok(data_rows_allocate(&rows, 7, 6, &err));
    assert_ok(data_read(data, SPLIT_TRAIN, 0, 7, &rows, &err));
    for (size_t i = 0; i < 42; i++) {
        times += seen[rows.tokens[i]]++ == 0;
        assert_int_equal(rows.tokens[i] % 10 < 9, 1);
    }
    assert_int_equal(times, 42);
    data_rows_release(&rows);
    data_close(data);
}

static void token_beyond_the_vocabulary_names_its_place(void **state)
{
    struct data_options o = options_for(dataset("d", 5, 9));
    (void)state;
    o.vocab_size = 48; /* the last token of the last sequence */
    assert_ok(data_open(&data, &o, &err));
    assert_ok(data_rows_allocate(&rows, 7, 6, &err));
    assert_fails(data_read(data, SPLIT_TRAIN, 0, 7, &rows, &err), ERR_CORRUPT,
                 "d.bin: document 4 (sequence of the index), element 8 is 48: the model has 48");
    data_rows_release(&rows);
    data_close(data);
}

static void truncated_data_are_refused(void **state)
{
    const struct data_options o = options_for(dataset("d", 5, 9));
    (void)state;
    assert_int_equal(truncate(in_folder("d.bin"), 89), 0);
    assert_fails(data_open(&data, &o, &err), ERR_CORRUPT, "d.bin, which has 89");
    assert_int_equal(truncate(in_folder("d.idx"), 60), 0);
    assert_fails(data_open(&data, &o, &err), ERR_CORRUPT, "d.idx");
}

static void data_that_shrink_are_refused(void **state)
{
    const struct data_options o = options_for(dataset("d", 5, 9));
    (void)state;
    assert_ok(data_open(&data, &o, &err));
    assert_ok(data_rows_allocate(&rows, 7, 6, &err));
    assert_int_equal(truncate(in_folder("d.bin"), 50), 0);
    assert_fails(data_read(data, SPLIT_TRAIN, 0, 7, &rows, &err), ERR_CORRUPT, "d.bin");
    data_rows_release(&rows);
    data_close(data);
}

static void split_without_data_is_refused_by_name(void **state)
{
    struct data_options o = options_for(dataset("d", 5, 9));
    (void)state;
    o.samples[SPLIT_VALID] = 2;
    assert_ok(data_open(&data, &o, &err)); /* a share of 0: nothing is evaluated */
    data_close(data);
    o.split = "99,1,0";
    assert_fails(
        data_open(&data, &o, &err), ERR_UNSUPPORTED,
        "d: --split leaves no document for valid: there are 5 in all; --split 1,0,0 trains "
        "on all of them");
    o.split = "0,1,0";
    assert_fails(data_open(&data, &o, &err), ERR_USAGE, "--split 0,1,0 leaves no training data");
    o = options_for(dataset("small", 1, 6));
    o.samples[SPLIT_TRAIN] = ONE_EPOCH;
    assert_fails(data_open(&data, &o, &err), ERR_UNSUPPORTED,
                 "small: 6 tokens for train, fewer than a sample of 7");
    o = options_for(dataset("one", 1, 1));
    assert_fails(data_open(&data, &o, &err), ERR_UNSUPPORTED, "for train: fewer than two tokens");
}

static void options_that_contradict_are_refused(void **state)
{
    struct data_options o = options_for(dataset("d", 5, 9));
    (void)state;
    o.split_paths[SPLIT_TRAIN] = o.paths;
    assert_fails(data_open(&data, &o, &err), ERR_USAGE, "exclude --data-path");
    o.paths.count = 0;
    assert_fails(data_open(&data, &o, &err), ERR_USAGE, "--split");
    o.split = NULL;
    assert_ok(data_open(&data, &o, &err));
    data_close(data);
    o.mock = true;
    assert_fails(data_open(&data, &o, &err), ERR_USAGE, "mock data have no paths");
    o = options_for(words[0]);
    o.seed = (uint64_t)UINT32_MAX + 1;
    assert_fails(data_open(&data, &o, &err), ERR_USAGE, "--seed 4294967296");
    o = options_for(words[0]);
    o.seq_length = 0;
    assert_fails(data_open(&data, &o, &err), ERR_USAGE, "sequence length 0: expected 1 to");
    o.seq_length = 6;
    o.samples[SPLIT_TRAIN] = UINT64_MAX / 2;
    assert_fails(data_open(&data, &o, &err), ERR_USAGE, "overflow 64 bits");
    o.samples[SPLIT_TRAIN] = UINT64_MAX / 16;
    assert_fails(data_open(&data, &o, &err), ERR_UNSUPPORTED, "indices are limited to 2^31");
    o.paths.count = 0;
    assert_fails(data_open(&data, &o, &err), ERR_USAGE, "--data-path is missing");
    words[0] = in_folder("nosuch");
    o.paths.count = 1;
    assert_fails(data_open(&data, &o, &err), ERR_IO, "nosuch.idx");
}

static void weights_need_a_number_of_samples(void **state)
{
    struct data_options o = options_for(dataset("d", 5, 9));
    (void)state;
    words[1] = words[0];
    words[0] = "1";
    o.paths.count = 2;
    assert_ok(data_open(&data, &o, &err));
    data_close(data);
    o.samples[SPLIT_TRAIN] = ONE_EPOCH;
    assert_fails(data_open(&data, &o, &err), ERR_USAGE, "train data: weights need");
}

/* ---- the cache ---- */

static char noted[1024];

static void take_note(void *context, const char *text)
{
    (void)context;
    (void)snprintf(noted, sizeof noted, "%s", text);
}

/* The name of the one file of the cache that ends so. */
static const char *cached(const char *cache, const char *suffix)
{
    struct name_list names;
    assert_ok(folder_list(cache, &arena, &names, &err));
    for (size_t i = 0; i < names.count; i++)
        if (strstr(names.names[i], suffix)) return path_join(&arena, cache, names.names[i]);
    fail_msg("no %s in the cache", suffix);
    return NULL;
}

/* Opens the data and reads all samples. */
static void read_all(const struct data_options *o, int32_t tokens[42])
{
    noted[0] = '\0';
    assert_ok(data_open(&data, o, &err));
    assert_ok(data_rows_allocate(&rows, 7, 6, &err));
    assert_ok(data_read(data, SPLIT_TRAIN, 0, 7, &rows, &err));
    memcpy(tokens, rows.tokens, 42 * sizeof *tokens);
    data_rows_release(&rows);
    data_close(data);
}

static void damaged_cache_is_made_again(void **state)
{
    static const char *const files[] = {"document_index.npy", "sample_index.npy",
                                        "shuffle_index.npy", "description.txt"};
    struct data_options o = options_for(dataset("d", 5, 9));
    int32_t want[42], got[42];
    (void)state;
    o.cache_path = in_folder("a/cache");
    o.note = take_note;
    read_all(&o, want);
    for (size_t i = 0; i < 4; i++)
        for (int damage = 0; damage < 3; damage++) {
            const char *path = cached(o.cache_path, files[i]);
            struct strbuf text = {0};
            assert_ok(file_read_all(path, 1 << 20, &text, &err));
            if (damage == 0) text.data[text.length - 4] ^= 1;
            if (damage == 1) text.length -= 3;
            if (damage == 2) text.data[1] ^= 1;
            assert_ok(file_replace_all(path, text.data, text.length, false, &err));
            strbuf_release(&text);
            read_all(&o, got);
            assert_memory_equal(got, want, sizeof want);
            assert_non_null(strstr(noted, "are rebuilt"));
            read_all(&o, got);
            assert_string_equal(noted, "");
            assert_memory_equal(got, want, sizeof want);
        }
}

/* Another order that is in the cache is taken: so the files are read. */
static void indices_of_the_cache_are_used(void **state)
{
    struct data_options o = options_for(dataset("d", 5, 9));
    const struct npy shape = {DT_U32, 1, {7, 0}};
    int32_t want[42], got[42];
    uint32_t *order;
    (void)state;
    o.cache_path = in_folder("cache");
    o.note = take_note;
    read_all(&o, want);
    const char *path = cached(o.cache_path, "shuffle_index.npy");
    assert_ok(npy_read(path, &shape, (void **)&order, &err));
    for (size_t i = 0; i < 3; i++) {
        const uint32_t item = order[i];
        order[i] = order[6 - i];
        order[6 - i] = item;
    }
    assert_ok(npy_write(path, &shape, order, &err));
    free(order);
    read_all(&o, got);
    for (size_t row = 0; row < 7; row++)
        assert_memory_equal(got + 6 * row, want + 6 * (6 - row), 6 * sizeof *got);
    assert_string_equal(noted, "");
}

static void cache_that_cannot_be_written_is_no_error(void **state)
{
    struct data_options o = options_for(dataset("d", 5, 9));
    int32_t want[42], got[42];
    (void)state;
    read_all(&o, want);
    o.note = take_note;
    o.cache_path = in_folder("d.bin"); /* a file */
    read_all(&o, got);
    assert_memory_equal(got, want, sizeof want);
    assert_non_null(strstr(noted, "are not cached"));
    o.cache_path = in_folder("cache");
    o.cache_read_only = true;
    read_all(&o, got);
    assert_string_equal(noted, "");
    assert_false(path_exists(o.cache_path));
}

/* As numpy.save writes it: a header of 128 bytes, and the elements behind it. */
static void npy_file_is_numpys(void **state)
{
    static const int32_t elements[] = {1, -2, 3, 4, 5, 6};
    const struct npy shape = {DT_I32, 2, {3, 2}}, turned = {DT_I32, 2, {2, 3}},
                     other = {DT_U32, 2, {3, 2}};
    struct strbuf text = {0};
    void *got;
    (void)state;
    assert_ok(npy_write(in_folder("a.npy"), &shape, elements, &err));
    assert_ok(file_read_all(in_folder("a.npy"), 1000, &text, &err));
    assert_int_equal(text.length, 128 + 24);
    assert_memory_equal(text.data, "\x93NUMPY\1\0\x76\0", 10);
    assert_memory_equal(text.data + 10,
                        "{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2), }  ", 61);
    assert_int_equal(text.data[127], '\n');
    assert_memory_equal(text.data + 128, elements, sizeof elements);
    strbuf_release(&text);
    assert_ok(npy_read(in_folder("a.npy"), &shape, &got, &err));
    assert_memory_equal(got, elements, sizeof elements);
    free(got);
    assert_fails(npy_read(in_folder("a.npy"), &turned, &got, &err), ERR_CORRUPT, "(2, 3)");
    assert_fails(npy_read(in_folder("a.npy"), &other, &got, &err), ERR_CORRUPT, "'<u4'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(mock_samples_follow_one_another),
        FOLDER_TEST(mock_sample_far_away_is_reached),
        FOLDER_TEST(sample_beyond_the_end_is_refused),
        FOLDER_TEST(epoch_has_each_token_once),
        FOLDER_TEST(token_beyond_the_vocabulary_names_its_place),
        FOLDER_TEST(truncated_data_are_refused),
        FOLDER_TEST(data_that_shrink_are_refused),
        FOLDER_TEST(split_without_data_is_refused_by_name),
        FOLDER_TEST(options_that_contradict_are_refused),
        FOLDER_TEST(weights_need_a_number_of_samples),
        FOLDER_TEST(damaged_cache_is_made_again),
        FOLDER_TEST(indices_of_the_cache_are_used),
        FOLDER_TEST(cache_that_cannot_be_written_is_no_error),
        FOLDER_TEST(npy_file_is_numpys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
