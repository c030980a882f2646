#include "ckpt/panel.h"

#include "ckpt/block.h"
#include "ckpt/testing_source.h"

/* ---- panels ---- */

/* Reads the whole tensor through windows of at most `most` elements and
 * compares every byte. */
static void check_tensor(struct source *s, const struct tensor *t, struct stored_reader *reader,
                         uint64_t most, uint64_t *cast_elements)
{
    struct error err = {0};
    const size_t bytes = dtype_bytes(t->dtype);
    struct panel_reader r = {.reader = reader, .buffer_bytes = most * 16};
    r.temp = malloc(r.buffer_bytes);
    r.cast = malloc(r.buffer_bytes);
    unsigned char *panel = malloc(most * bytes);
    assert_true(r.temp && r.cast && panel);
    for (uint64_t low = 0, n; low < t->numel; low += n) {
        n = 1 + test_below(s->seed, most);
        if (n > t->numel - low) n = t->numel - low;
        memset(panel, 0xEE, most * bytes);
        assert_ok(panel_read(&r, t, low, n, panel, &err));
        if (memcmp(panel, s->values[t - s->catalog.tensors] + low * bytes, n * bytes))
            fail_msg("%s: %llu elements at %llu differ", t->name, (unsigned long long)n,
                     (unsigned long long)low);
        for (uint64_t i = n * bytes; i < most * bytes; i++)
            assert_int_equal(panel[i], 0xEE);
    }
    *cast_elements += r.casts.elements;
    free(r.temp);
    free(r.cast);
    free(panel);
}

static void check_random_source(uint64_t *seed, uint64_t elements, unsigned num_tensors)
{
    struct source s;
    uint64_t cast_elements = 0;
    source_init(&s, seed);
    for (unsigned i = 0; i < num_tensors; i++)
        (void)source_add_random(&s, elements);
    source_write(&s);
    struct stored_reader *reader = stored_reader_create(&s.catalog.stored, 2);
    struct error err = {0};
    assert_ok(catalog_check(&s.catalog, &err));
    for (size_t i = 0; i < s.catalog.num_tensors; i++) {
        uint64_t most = test_below(seed, 4) ? elements / 2 : 8;
        check_tensor(&s, &s.catalog.tensors[i], reader, 1 + test_below(seed, most), &cast_elements);
    }
    assert_int_equal(cast_elements, s.cast_elements);
    stored_reader_free(reader);
    source_release(&s);
}

static void elements_come_from_wherever_they_lie(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 150; i++)
        check_random_source(&seed, 600, 12);
    for (int i = 0; i < 4; i++)
        check_random_source(&seed, 60000, 8);
}

/* Counts the bytes that a reader reads from the file, to see how it reads. */
static uint64_t bytes_fetched(const struct pair *pair, uint64_t count, size_t buffer_elements)
{
    uint64_t seed = test_seed();
    struct source s;
    struct error err = {0};
    source_init(&s, &seed);
    uint64_t end = 1;
    for (unsigned k = 0; k < pair->num_axes; k++)
        end += (pair->axes[k].extent - 1) * pair->axes[k].b_stride;
    struct tensor *t = source_new_tensor(&s, DT_U8, 1, &count);
    struct piece piece = {.dtype = DT_U8};
    piece.offset_bytes = source_reserve(&s, 0, end);
    tensor_add_piece(&s.arena, t, &piece, pair);
    source_write(&s);
    struct panel_reader r = {.reader = stored_reader_create(&s.catalog.stored, 2),
                             .buffer_bytes = buffer_elements};
    r.temp = malloc(buffer_elements);
    unsigned char *panel = malloc(count);
    assert_true(r.temp && panel);
    assert_ok(panel_read(&r, t, 0, count, panel, &err));
    free(r.temp);
    free(panel);
    stored_reader_free(r.reader);
    source_release(&s);
    return r.read_bytes;
}

static void close_runs_are_read_at_once_and_far_ones_alone(void **state)
{
    (void)state;
    /* 1000 runs of 64 of 128: one call for all is cheaper; of 64 KiB: it is
     * not. */
    const struct pair close = {.num_axes = 2, .axes = {{1000, 64, 128}, {64, 1, 1}}};
    assert_int_equal(bytes_fetched(&close, 64000, 1 << 20), 999 * 128 + 64);
    const struct pair far = {.num_axes = 2, .axes = {{10, 64, 65536}, {64, 1, 1}}};
    assert_int_equal(bytes_fetched(&far, 640, 1 << 20), 640);
    /* A block that does not fit the buffer is halved: gaps between halves are
     * not read. */
    assert_int_equal(bytes_fetched(&close, 64000, 64000), 998 * 128 + 2 * 64);
    /* A transpose of single bytes. */
    const struct pair columns = {.num_axes = 2, .axes = {{100, 50, 1}, {50, 1, 100}}};
    assert_int_equal(bytes_fetched(&columns, 5000, 5000), 5000);
}

static void a_hole_reads_as_zeros(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct source s;
    struct error err = {0};
    struct panel_reader r = {.buffer_bytes = 64};
    unsigned char panel[8] = {1, 2, 3, 4, 5, 6, 7, 8}, zeros[8] = {0};
    struct tensor *t;
    source_init(&s, &seed);
    const uint64_t shape[] = {4};
    t = source_new_tensor(&s, DT_BF16, 1, shape);
    struct piece hole = {.origin = ORIGIN_HOLE, .dtype = DT_BF16};
    const struct pair pair = pair_whole(0, 0, 4);
    tensor_add_piece(&s.arena, t, &hole, &pair);
    assert_ok(panel_read(&r, t, 0, 4, panel, &err));
    assert_memory_equal(panel, zeros, 8);
    assert_false(tensor_takes_cast(t));
    source_release(&s);
}

static void elements_of_a_fraction_of_a_byte_are_read_in_blocks(void **state)
{
    (void)state;
    static const enum dtype dtypes[] = {DT_F4, DT_F6_E2M3, DT_F6_E3M2};
    uint64_t seed = test_seed(), shape[] = {4096};
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        struct source s;
        struct error err = {0};
        unsigned char panel[64];
        struct panel_reader r = {.buffer_bytes = sizeof panel, .temp = (char *)panel};
        struct piece piece = {.dtype = dtypes[i]};
        const struct pair whole = pair_whole(0, 0, 4096), odd = pair_whole(1, 0, 8);
        source_init(&s, &seed);
        struct tensor *t = source_new_tensor(&s, dtypes[i], 1, shape);
        piece.offset_bytes = source_reserve(&s, 0, dtype_run_bytes(dtypes[i], 4096));
        tensor_add_piece(&s.arena, t, &piece, &whole);
        source_write(&s);
        const unsigned char *stored = s.files[0].bytes + piece.offset_bytes;
        r.reader = stored_reader_create(&s.catalog.stored, 2);
        assert_ok(panel_read(&r, t, 1236, 44, panel, &err));
        assert_memory_equal(panel, stored + 1236 * dtype_infos[dtypes[i]].bits / 8,
                            44 * dtype_infos[dtypes[i]].bits / 8);
        double numbers[4096];
        assert_ok(panel_read_numbers(&s.catalog, t, 4096, numbers, &err));
        for (size_t k = 0; k < 4096; k++)
            assert_true(numbers[k] == dtype_load(dtypes[i], stored, k));
        tensor_add_piece(&s.arena, t, &piece, &odd);
        assert_fails(panel_read(&r, t, 0, 8, panel, &err), ERR_UNSUPPORTED, "not in whole bytes");
        stored_reader_free(r.reader);
        source_release(&s);
    }
}

static void elements_are_read_as_numbers(void **state)
{
    (void)state;
    enum { COUNT = 100000 }; /* more than are read at once */
    static double numbers[COUNT];
    uint64_t seed = test_seed(), shape[] = {COUNT};
    struct source s;
    struct error err = {0};
    source_init(&s, &seed);
    struct tensor *t = source_new_tensor(&s, DT_I32, 1, shape);
    struct piece piece = {.dtype = DT_I32};
    const struct pair pair = pair_whole(0, 0, COUNT);
    piece.offset_bytes = source_reserve(&s, 0, COUNT * 4);
    tensor_add_piece(&s.arena, t, &piece, &pair);
    source_write(&s);
    assert_ok(panel_read_numbers(&s.catalog, t, t->numel, numbers, &err));
    for (size_t i = 0; i < COUNT; i++) {
        int32_t stored;
        memcpy(&stored, s.files[0].bytes + piece.offset_bytes + i * 4, 4);
        assert_true(numbers[i] == (double)stored);
    }
    source_release(&s);
}

/* A tensor of BF16 with these numbers in memory. */
static struct tensor *add_numbers(struct source *s, const uint16_t *numbers, uint64_t count)
{
    struct tensor *t = source_new_tensor(s, DT_BF16, 1, &count);
    const struct piece piece = {.origin = ORIGIN_MEMORY, .dtype = DT_BF16, .memory = numbers};
    const struct pair pair = pair_whole(0, 0, count);
    tensor_add_piece(&s->arena, t, &piece, &pair);
    return t;
}

static void a_number_is_added_when_elements_are_read(void **state)
{
    (void)state;
    static const uint16_t close[] = {0x3f80, 0x4000, 0x3f00, 0x3f81}, /* 1, 2, 0.5, 1.0078125 */
        small[] = {0x3e00, 0x3dcd}, tiny[] = {0x2f80};                /* 0.125, 0.1; 2^-32 */
    uint64_t seed = test_seed();
    struct source s;
    struct error err = {0};
    double numbers[4];
    enum dtype dtype;
    source_init(&s, &seed);
    struct tensor *t = add_numbers(&s, close, 4);
    assert_ok(panel_exact_dtype(&s.catalog, t, -1, DT_BF16, &dtype, &err));
    assert_int_equal(dtype, DT_BF16);
    assert_false(tensor_takes_cast(t));
    tensor_add_number(t, -1);
    assert_true(tensor_takes_cast(t));
    assert_ok(panel_read_numbers(&s.catalog, t, 4, numbers, &err));
    const double sums[] = {0, 1, -0.5, 0.0078125};
    assert_memory_equal(numbers, sums, sizeof sums);
    assert_ok(panel_exact_dtype(&s.catalog, t, 0, DT_BF16, &dtype, &err));
    assert_int_equal(dtype, DT_BF16);
    t = add_numbers(&s, small, 2);
    assert_ok(panel_exact_dtype(&s.catalog, t, -1, DT_BF16, &dtype, &err));
    assert_int_equal(dtype, DT_F32);
    t = add_numbers(&s, tiny, 1);
    assert_ok(panel_exact_dtype(&s.catalog, t, -1, DT_F16, &dtype, &err));
    assert_int_equal(dtype, DT_F64);
    source_release(&s);
}

static void made_up_numbers_may_lie_apart_in_their_stream(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct source s;
    struct error err = {0};
    struct panel_reader r = {.buffer_bytes = 64};
    float panel[6], number;
    source_init(&s, &seed);
    const uint64_t shape[] = {3, 2};
    struct tensor *t = source_new_tensor(&s, DT_F32, 2, shape);
    struct piece made = {.origin = ORIGIN_RANDOM, .dtype = DT_F32, .file = 7};
    const struct pair pair = {.num_axes = 2, .axes = {{3, 2, 5}, {2, 1, 1}}, .b_offset = 9};
    tensor_add_piece(&s.arena, t, &made, &pair);
    assert_ok(panel_read(&r, t, 0, 6, panel, &err));
    for (uint64_t i = 0; i < 6; i++) {
        random_elements(&number, DT_F32, 7, 0, 9 + i / 2 * 5 + i % 2, 1);
        assert_memory_equal(&panel[i], &number, sizeof number);
    }
    source_release(&s);
}

static void a_piece_outside_its_file_is_an_error_that_names_it(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct source s;
    struct error err = {0};
    unsigned char panel[64], temp[64];
    source_init(&s, &seed);
    const uint64_t shape[] = {64};
    struct tensor *t = source_new_tensor(&s, DT_U8, 1, shape);
    struct piece piece = {.dtype = DT_U8, .file = 1};
    const struct pair pair = pair_whole(0, 0, 64);
    piece.offset_bytes = source_reserve(&s, 1, 63);
    tensor_add_piece(&s.arena, t, &piece, &pair);
    source_write(&s);
    struct panel_reader r = {.reader = stored_reader_create(&s.catalog.stored, 2),
                             .buffer_bytes = sizeof temp,
                             .temp = (char *)temp};
    assert_fails(panel_read(&r, t, 0, 64, panel, &err), ERR_CORRUPT, "source-1: 64 bytes at");
    stored_reader_free(r.reader);
    source_release(&s);
}

/* ---- blocks ---- */

static void a_block_is_sorted_by_the_file_and_knows_its_runs(void **state)
{
    (void)state;
    /* a: 3 x 4 of a row of 10; b: transposed. */
    const struct pair p = {.num_axes = 2, .axes = {{3, 10, 1}, {4, 1, 3}}};
    struct block a = block_of(&p, true), b = block_of(&p, false);
    assert_int_equal(block_count(&a), 12);
    assert_int_equal(block_span(&a), 24);
    assert_int_equal(block_file_run(&a), 4);
    assert_int_equal(block_span(&b), 12);
    assert_int_equal(block_file_run(&b), 12);
    assert_int_equal(b.axes[0].extent, 4);
    assert_int_equal(b.axes[0].b_stride, 1);
    assert_false(block_is_run(&a) || block_is_run(&b));

    struct block two = block_part(&a, 2), one = block_part(&a, 1);
    assert_int_equal(two.num_axes, 2);
    assert_int_equal(block_count(&two), 8);
    assert_int_equal(one.num_axes, 1);
    assert_int_equal(one.axes[0].a_stride, 1);

    const struct pair run = pair_whole(5, 7, 9), element = {0},
                      every_second = {.num_axes = 1, .axes = {{4, 2, 1}}};
    struct block r = block_of(&run, true), e = block_of(&element, true),
                 s = block_of(&every_second, true);
    assert_true(block_is_run(&r) && block_is_run(&e));
    assert_false(block_is_run(&s));
    assert_int_equal(block_count(&e), 1);
    assert_int_equal(block_file_run(&s), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_come_from_wherever_they_lie),
        cmocka_unit_test(close_runs_are_read_at_once_and_far_ones_alone),
        cmocka_unit_test(a_hole_reads_as_zeros),
        cmocka_unit_test(elements_of_a_fraction_of_a_byte_are_read_in_blocks),
        cmocka_unit_test(elements_are_read_as_numbers),
        cmocka_unit_test(a_number_is_added_when_elements_are_read),
        cmocka_unit_test(made_up_numbers_may_lie_apart_in_their_stream),
        cmocka_unit_test(a_piece_outside_its_file_is_an_error_that_names_it),
        cmocka_unit_test(a_block_is_sorted_by_the_file_and_knows_its_runs),
    };
    return cmocka_run_group_tests_name("panel", tests, NULL, NULL);
}
