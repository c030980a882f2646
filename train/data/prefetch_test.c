#include "train/data/prefetch.h"

#include <unistd.h>

#include "formats/indexed_dataset_writer.h"
#include "tests/folder.h"

enum { LENGTH = 4 };

static struct data *data;

static void open_mock(void)
{
    const struct data_options o = {
        .mock = true, .mock_seed = 1, .vocab_size = 1000, .seq_length = LENGTH};
    assert_ok(data_open(&data, &o, &err));
}

/* ---- which samples ---- */

/* The samples of a global batch of 12 are the same at each dp and micro-batch
 * size, of the first one and of the second. */
static void global_batch_is_the_same_at_each_dp(void **state)
{
    static const uint64_t shapes[][2] = {{1, 1}, {2, 3}, {4, 3}, {2, 2}, {3, 4}, {12, 1}};
    (void)state;
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
        for (uint64_t begin = 0; begin < 24; begin += 12) {
            int seen[24] = {0};
            for (uint64_t rank = 0; rank < shapes[k][1]; rank++) {
                struct sampler s = {begin, shapes[k][0], rank, shapes[k][1]};
                for (; s.consumed < begin + 12; sampler_advance(&s))
                    for (uint64_t i = 0; i < s.micro_batch_size; i++)
                        seen[sampler_first(&s) + i]++;
            }
            for (uint64_t i = 0; i < 24; i++)
                assert_int_equal(seen[i], i >= begin && i < begin + 12);
        }
}

static void rank_takes_its_part_of_a_micro_batch(void **state)
{
    struct sampler s = {100, 2, 3, 4};
    (void)state;
    assert_int_equal(sampler_first(&s), 106);
    sampler_advance(&s);
    assert_int_equal(sampler_first(&s), 114);
    assert_int_equal(sampler_left(&s, 131), 2);
    assert_int_equal(sampler_left(&s, 108), 0);
    assert_int_equal(sampler_left(&s, 50), 0);
}

/* ---- reading ahead ---- */

/* The next micro-batch is what data_read() gives. */
static void check_next(struct prefetch *p, struct sampler *s)
{
    const uint64_t first = sampler_first(s), count = s->micro_batch_size;
    const struct data_rows *got = NULL;
    struct data_rows want;
    assert_ok(prefetch_next(p, s, &got, &err));
    assert_ok(data_rows_allocate(&want, count, LENGTH, &err));
    assert_ok(data_read(data, SPLIT_TRAIN, first, count, &want, &err));
    assert_memory_equal(got->tokens, want.tokens, count * LENGTH * sizeof *want.tokens);
    assert_memory_equal(got->labels, want.labels, count * LENGTH * sizeof *want.labels);
    data_rows_release(&want);
}

static void micro_batches_come_in_order(void **state)
{
    (void)state;
    open_mock();
    for (unsigned depth = 0; depth < 5; depth++) {
        struct sampler s = {10, 2, 1, 3};
        struct prefetch *p;
        assert_ok(prefetch_open(&p, data, SPLIT_TRAIN, LENGTH, depth, 1, &err));
        for (int i = 0; i < 100; i++)
            check_next(p, &s);
        assert_int_equal(s.consumed, 10 + 100 * 6);
        prefetch_close(p);
    }
    data_close(data);
}

/* Changes of micro-batch size, rank, dp and place at any moment. */
static void changes_are_followed(void **state)
{
    uint64_t seed = test_seed();
    struct sampler s = {0, 1, 0, 1};
    struct prefetch *p;
    (void)state;
    open_mock();
    assert_ok(prefetch_open(&p, data, SPLIT_TRAIN, LENGTH, 3, 1, &err));
    for (int i = 0; i < 3000; i++) {
        if (test_below(&seed, 4) == 0) s.micro_batch_size = 1 + test_below(&seed, 5);
        if (test_below(&seed, 10) == 0) s.dp_size = 1 + test_below(&seed, 4);
        if (test_below(&seed, 20) == 0) s.consumed = test_below(&seed, 1000);
        s.dp_rank = s.dp_rank < s.dp_size ? s.dp_rank : 0;
        check_next(p, &s);
    }
    prefetch_close(p);
    data_close(data);
}

static void unused_thread_ends(void **state)
{
    struct prefetch *p;
    struct sampler s = {0, 2, 0, 1};
    (void)state;
    open_mock();
    for (int i = 0; i < 50; i++) {
        assert_ok(prefetch_open(&p, data, SPLIT_TRAIN, LENGTH, 2, 1, &err));
        if (i % 2) check_next(p, &s);
        prefetch_close(p);
    }
    prefetch_close(NULL);
    data_close(data);
}

/* Nine samples: 37 tokens and more. */
static void open_small(void)
{
    struct indexed_dataset_writer w;
    const char *const words[] = {in_folder("d")};
    const struct data_options o = {.paths = {words, 1},
                                   .split = "1,0,0",
                                   .seq_length = LENGTH,
                                   .samples = {ONE_EPOCH, 0, 0},
                                   .eod_id = -1,
                                   .pad_id = -1};
    assert_ok(indexed_dataset_create(&w, words[0], DT_U16, false, &err));
    for (int32_t i = 0; i < 38; i++)
        assert_ok(indexed_dataset_append(&w, &i, 1, &err));
    assert_ok(indexed_dataset_end_sequence(&w, &err));
    indexed_dataset_end_document(&w);
    assert_ok(indexed_dataset_finish(&w, &err));
    indexed_dataset_writer_close(&w);
    assert_ok(data_open(&data, &o, &err));
    assert_int_equal(data_num_samples(data, SPLIT_TRAIN), 9);
}

/* The thread meets the end of the data before the consumer does. */
static void failure_comes_with_its_micro_batch(void **state)
{
    const struct data_rows *rows = NULL;
    struct sampler s = {0, 2, 0, 1};
    struct prefetch *p;
    (void)state;
    open_small();
    assert_ok(prefetch_open(&p, data, SPLIT_TRAIN, LENGTH, 8, 1, &err));
    for (int i = 0; i < 4; i++)
        check_next(p, &s);
    for (int i = 0; i < 3; i++)
        assert_fails(prefetch_next(p, &s, &rows, &err), ERR_USAGE,
                     "samples 8 to 9 are needed, but there are 9");
    assert_int_equal(s.consumed, 8);
    s.micro_batch_size = 1;
    check_next(p, &s);
    assert_fails(prefetch_next(p, &s, &rows, &err), ERR_USAGE, "there are 9");
    s = (struct sampler){0, 3, 0, 1};
    check_next(p, &s);
    prefetch_close(p);
    data_close(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(global_batch_is_the_same_at_each_dp),
        FOLDER_TEST(rank_takes_its_part_of_a_micro_batch),
        FOLDER_TEST(micro_batches_come_in_order),
        FOLDER_TEST(changes_are_followed),
        FOLDER_TEST(unused_thread_ends),
        FOLDER_TEST(failure_comes_with_its_micro_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
