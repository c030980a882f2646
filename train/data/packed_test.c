#include "train/data/packed.h"

#include "formats/indexed_dataset_writer.h"
#include "tests/folder.h"
#include "train/data/data.h"

/* ---- packing ---- */

static void documents_go_where_they_fit_first(void **state)
{
    /* places: 5, 3, 4, 0, 1, 2, 6 of 6 (the last one is cut) */
    const uint64_t lengths[] = {6, 4, 5, 1, 2, 3, 20};
    const uint64_t documents[] = {0, 4, 1, 5, 2, 6}, firsts[] = {0, 2, 4, 5, 6};
    struct packing p;
    (void)state;
    assert_ok(packing_make(&p, lengths, 7, 6, &err));
    assert_int_equal(p.num_samples, 4);
    assert_memory_equal(p.documents, documents, sizeof documents);
    assert_memory_equal(p.firsts, firsts, sizeof firsts);
    assert_int_equal(p.num_cut, 1);
    assert_int_equal(p.num_left_out, 1);
    packing_release(&p);
    assert_ok(packing_make(&p, lengths, 0, 6, &err));
    assert_int_equal(p.num_samples, 0);
    packing_release(&p);
}

/* Against a search through all samples. */
static void random_documents_are_packed_first_fit(void **state)
{
    enum { MANY = 500, LENGTH = 40 };
    uint64_t seed = test_seed();
    (void)state;
    for (int trial = 0; trial < 20; trial++) {
        uint64_t lengths[MANY], used[MANY] = {0}, sample_of[MANY], num_samples = 0;
        struct packing p;
        for (size_t k = 0; k < MANY; k++) {
            lengths[k] = 2 + test_below(&seed, LENGTH);
            uint64_t i = 0;
            while (used[i] + lengths[k] - 1 > LENGTH)
                i++;
            used[i] += lengths[k] - 1;
            sample_of[k] = i;
            num_samples = i + 1 > num_samples ? i + 1 : num_samples;
        }
        assert_ok(packing_make(&p, lengths, MANY, LENGTH, &err));
        assert_int_equal(p.num_samples, num_samples);
        for (uint64_t i = 0; i < p.num_samples; i++)
            for (uint64_t k = p.firsts[i]; k < p.firsts[i + 1]; k++) {
                assert_int_equal(sample_of[p.documents[k]], i);
                if (k > p.firsts[i]) assert_true(p.documents[k] > p.documents[k - 1]);
            }
        assert_int_equal(p.firsts[num_samples], MANY);
        packing_release(&p);
    }
}

/* ---- rows ---- */

static const char lines[] = "{\"ids\": [1, 2, 3, 4], \"loss_mask\": [0, 0, 1, 1]}\n"
                            "{\"ids\": [5, 6, 7, 8, 9], \"labels\": [-100, -100, 7, 8, 9]}\n"
                            "{\"ids\": [10, 11, 12]}\n";

/* Documents 0 and 2 are in the first sample, 1 in the second one. */
static const struct {
    int32_t tokens[12], labels[12], positions[12];
    float loss_mask[12];
    bool starts[12];
} want = {{1, 2, 3, 10, 11, 0, 5, 6, 7, 8, 0, 0},
          {2, 3, 4, 11, 12, 0, 6, 7, 8, 9, 0, 0},
          {0, 1, 2, 0, 1, 0, 0, 1, 2, 3, 0, 1},
          {0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0},
          {1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 1, 0}};

static const char *words[1];

static struct data_options options_for(const char *path)
{
    words[0] = path;
    return (struct data_options){.packed = true,
                                 .paths = {words, 1},
                                 .split = "1,0,0",
                                 .seq_length = 6,
                                 .samples = {3, 0, 0},
                                 .eod_id = -1,
                                 .pad_id = -1,
                                 .vocab_size = 13};
}

static void check_rows(const char *path)
{
    const struct data_options o = options_for(path);
    struct data *d;
    struct data_rows r;
    assert_ok(data_open(&d, &o, &err));
    assert_int_equal(data_num_samples(d, SPLIT_TRAIN), 4); /* two passes */
    assert_ok(data_rows_allocate(&r, 2, 6, &err));
    for (uint64_t pass = 0; pass < 2; pass++) {
        assert_ok(data_read(d, SPLIT_TRAIN, 2 * pass, 2, &r, &err));
        assert_memory_equal(r.tokens, want.tokens, sizeof want.tokens);
        assert_memory_equal(r.labels, want.labels, sizeof want.labels);
        assert_memory_equal(r.positions, want.positions, sizeof want.positions);
        assert_memory_equal(r.loss_mask, want.loss_mask, sizeof want.loss_mask);
        assert_memory_equal(r.starts, want.starts, sizeof want.starts);
    }
    data_rows_release(&r);
    data_close(d);
}

static void write_lines(const char *name)
{
    assert_ok(file_write_all(in_folder(name), lines, sizeof lines - 1, false, &err));
}

/* Writes documents of these lengths, which follow one another in `values`. */
static void write_dataset(const char *name, enum dtype dtype, const int32_t *values,
                          const size_t *lengths, size_t count)
{
    struct indexed_dataset_writer w;
    assert_ok(indexed_dataset_create(&w, in_folder(name), dtype, true, &err));
    for (size_t i = 0; i < count; i++) {
        assert_ok(indexed_dataset_append(&w, values, lengths[i], &err));
        assert_ok(indexed_dataset_end_sequence(&w, &err));
        indexed_dataset_end_document(&w);
        values += lengths[i];
    }
    assert_ok(indexed_dataset_finish(&w, &err));
    indexed_dataset_writer_close(&w);
}

static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
static const int32_t mask[] = {0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1};
static const size_t lengths_of[] = {4, 5, 3}, others[] = {4, 4, 4};

static void json_lines_are_packed(void **state)
{
    (void)state;
    write_lines("d.jsonl");
    check_rows(in_folder("d.jsonl"));
}

static void dataset_with_masks_is_packed(void **state)
{
    (void)state;
    write_dataset("d", DT_U16, ids, lengths_of, 3);
    write_dataset("d.mask", DT_U8, mask, lengths_of, 3);
    check_rows(in_folder("d"));
    check_rows(in_folder("d.idx"));
}

static void without_masks_all_tokens_count(void **state)
{
    struct data_options o;
    struct data *d;
    struct data_rows r;
    (void)state;
    write_dataset("d", DT_U16, ids, lengths_of, 3);
    o = options_for(in_folder("d"));
    assert_ok(data_open(&d, &o, &err));
    assert_ok(data_rows_allocate(&r, 1, 6, &err));
    assert_ok(data_read(d, SPLIT_TRAIN, 0, 1, &r, &err));
    for (size_t i = 0; i < 6; i++)
        assert_true(r.loss_mask[i] == (i < 5));
    data_rows_release(&r);
    data_close(d);
}

/* ---- refusals ---- */

static void masks_of_another_shape_are_refused(void **state)
{
    struct data_options o;
    struct data *d;
    (void)state;
    write_dataset("d", DT_U16, ids, lengths_of, 3);
    write_dataset("d.mask", DT_U8, mask, others, 3);
    o = options_for(in_folder("d"));
    assert_fails(data_open(&d, &o, &err), ERR_CORRUPT, "d.mask has 3 sequences of 12 elements");
    write_dataset("d.mask", DT_U8, mask, others, 2);
    assert_fails(data_open(&d, &o, &err), ERR_CORRUPT, "d.mask has 2 sequences of 8 elements");
}

static void token_beyond_the_vocabulary_names_its_document(void **state)
{
    struct data_options o;
    struct data *d;
    struct data_rows r;
    (void)state;
    write_lines("d.jsonl");
    o = options_for(in_folder("d.jsonl"));
    o.vocab_size = 12;
    assert_ok(data_open(&d, &o, &err));
    assert_ok(data_rows_allocate(&r, 2, 6, &err));
    assert_fails(data_read(d, SPLIT_TRAIN, 0, 2, &r, &err), ERR_CORRUPT,
                 "d.jsonl: document 2, element 2 is 12: the model has 12 tokens");
    data_rows_release(&r);
    data_close(d);
}

static void note_text(void *context, const char *text)
{
    (void)snprintf(context, 1024, "%s", text);
}

static void splits_cut_documents_and_empty_ones_are_refused(void **state)
{
    char text[1024] = "";
    struct data_options o;
    struct data *d;
    (void)state;
    write_lines("d.jsonl");
    o = options_for(in_folder("d.jsonl"));
    o.note = note_text;
    o.context = text;
    o.seq_length = 3;
    o.split = "2,1,0";
    o.samples[SPLIT_VALID] = ONE_EPOCH;
    assert_ok(data_open(&d, &o, &err));
    assert_int_equal(data_num_samples(d, SPLIT_TRAIN), 4);
    assert_int_equal(data_num_samples(d, SPLIT_VALID), 1);
    assert_non_null(strstr(text, "of 2 documents for train, 1 are truncated to 4 tokens, and 0"));
    data_close(d);
    o.split = "99,1,0";
    assert_fails(data_open(&d, &o, &err), ERR_UNSUPPORTED,
                 "d.jsonl: documents [3, 3) for valid: no document has two or more tokens");
    o.paths = (struct data_paths){(const char *const[]){"a", "b"}, 2};
    assert_fails(data_open(&d, &o, &err), ERR_UNSUPPORTED, "come from one path, but 2 are given");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(documents_go_where_they_fit_first),
        FOLDER_TEST(random_documents_are_packed_first_fit),
        FOLDER_TEST(json_lines_are_packed),
        FOLDER_TEST(dataset_with_masks_is_packed),
        FOLDER_TEST(without_masks_all_tokens_count),
        FOLDER_TEST(masks_of_another_shape_are_refused),
        FOLDER_TEST(token_beyond_the_vocabulary_names_its_document),
        FOLDER_TEST(splits_cut_documents_and_empty_ones_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
