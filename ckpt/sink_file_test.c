#include "ckpt/sink_file.h"

#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zlib.h>

#include "common/file.h"
#include "tests/temporary.h"
#include "tests/testing.h"

/* A flat segment that runs of many tensors fill, with a hole before each: run i
 * is RUN elements of tensor i. */
enum { RUNS = 4000, RUN = 6, GAP = 2, STEP = RUN + GAP, NUMEL = RUNS * STEP };

struct fixture {
    struct arena arena;
    struct catalog catalog;
    struct plan plan;
    struct sink_file sink;
    char folder[TEMPORARY_PATH], out[TEMPORARY_PATH + 8];
    unsigned char image[NUMEL];
    uint32_t crc; /* that finish() saw */
};

static struct fixture x;
static struct error err;

static enum status keep_crc(const struct plan *plan, uint32_t file, void *context,
                            const struct file_writer *writer, struct error *e)
{
    (void)plan, (void)file, (void)context, (void)e;
    x.crc = writer->crc(writer->context, 0);
    return OK;
}

static const struct tensor *add_tensor(enum origin_id origin, uint64_t numel)
{
    struct tensor *t;
    const struct piece piece = {.origin = origin, .dtype = DT_U8};
    const struct pair all = pair_whole(0, 0, numel);
    const char *name = arena_printf(&x.arena, "t%zu", x.catalog.num_tensors);
    assert_ok(catalog_add(&x.catalog, name, DT_U8, 1, &numel, &t, &err));
    tensor_add_piece(&x.arena, t, &piece, &all);
    return t;
}

/* The plan keeps pointers to tensors, so all are added before. */
static void plan_runs(void)
{
    for (size_t i = 0; i < RUNS; i++)
        (void)add_tensor(ORIGIN_ZERO, RUN);
    (void)add_tensor(ORIGIN_HOLE, RUNS * GAP);
    (void)plan_add_segment(&x.plan, 0, DT_U8, NUMEL, true);
    for (uint64_t i = 0; i < RUNS; i++) {
        const struct pair run = pair_whole(0, i * STEP + GAP, RUN),
                          gap = pair_whole(i * GAP, i * STEP, GAP);
        plan_add_piece(&x.plan, &x.catalog.tensors[i], 0, &run);
        plan_add_piece(&x.plan, &x.catalog.tensors[RUNS], 0, &gap);
    }
}

static int setup(void **state)
{
    (void)state;
    memset(&x, 0, sizeof x);
    assert_true(temporary_folder(x.folder));
    snprintf(x.out, sizeof x.out, "%s/out", x.folder);
    arena_init(&x.arena);
    catalog_init(&x.catalog, &x.arena);
    plan_init(&x.plan, &x.catalog);
    (void)plan_add_file(&x.plan, "flat");
    x.plan.files[0].size_bytes = NUMEL;
    x.plan.files[0].finish = keep_crc;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    plan_release(&x.plan);
    catalog_release(&x.catalog);
    arena_release(&x.arena);
    assert_ok(path_remove(x.folder, &err));
    return 0;
}

static void begin(size_t max_open)
{
    const struct sink_file_options o = {.fsync = false};
    assert_ok(plan_finish(&x.plan, &err));
    sink_file_init(&x.sink, &x.plan, x.out, &o);
    sink_file_keep_open(&x.sink, max_open);
    assert_ok(sink_file_open(&x.sink, &err));
}

static void report(uint64_t offset, uint64_t bytes)
{
    const uint32_t crc = (uint32_t)crc32_z(0, x.image + offset, bytes);
    const struct journal_run run = {0, offset, bytes, crc};
    assert_ok(x.sink.sink.write(&x.sink.sink, 0, offset, x.image + offset, bytes, &err));
    x.sink.sink.add_run(&x.sink.sink, &run);
}

/* Sanitizers have an allocator that does not count for it. */
static size_t allocated(void)
{
    return mallinfo2().uordblks;
}

static void thousands_of_runs_with_holes_take_the_memory_that_was_promised(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    plan_runs();
    for (uint64_t i = 0; i < RUNS; i++)
        for (uint64_t k = GAP; k < STEP; k++)
            x.image[i * STEP + k] = (unsigned char)test_random(&seed);
    begin(1);
    const size_t before = allocated();
    const uint64_t promised = sink_file_run_bytes(&x.plan, 1);
    size_t most = 0, order[RUNS];
    for (size_t i = 0; i < RUNS; i++)
        order[i] = i;
    for (size_t i = RUNS; i > 1; i--) {
        const size_t k = test_below(&seed, i), kept = order[i - 1];
        order[i - 1] = order[k];
        order[k] = kept;
    }
    for (size_t i = 0; i < RUNS; i++) { /* two panels each */
        report(order[i] * STEP + GAP, RUN / 2);
        report(order[i] * STEP + GAP + RUN / 2, RUN - RUN / 2);
        if (allocated() > before + most) most = allocated() - before;
    }
    if (!SANITIZED) assert_true(most > 0);
    if (!SANITIZED && most > promised) fail_msg("%zu bytes, %zu promised", most, (size_t)promised);
    assert_true(promised < 10 * RUNS * sizeof(struct journal_run));
    assert_ok(x.sink.sink.count(&x.sink.sink, 0, NUMEL, &err));
    assert_int_equal(x.crc, (uint32_t)crc32_z(0, x.image, NUMEL));
    if (!SANITIZED) assert_true(allocated() < before + most / 2); /* they are freed */
    assert_ok(x.sink.sink.finish(&x.sink.sink, &err));
    sink_file_release(&x.sink);
}

static void runs_that_follow_one_another_are_one(void **state)
{
    (void)state;
    const struct tensor *t = add_tensor(ORIGIN_ZERO, NUMEL);
    const struct pair all = pair_whole(0, 0, NUMEL);
    (void)plan_add_segment(&x.plan, 0, DT_U8, NUMEL, true);
    plan_add_piece(&x.plan, t, 0, &all);
    for (uint64_t i = 0; i < NUMEL; i++)
        x.image[i] = (unsigned char)(i * i >> 3);
    begin(1);
    const uint64_t promised = sink_file_run_bytes(&x.plan, 1);
    const size_t before = allocated();
    for (uint64_t i = 0; i < RUNS; i++)
        report(i * STEP, STEP);
    if (!SANITIZED) assert_true(allocated() - before <= promised);
    assert_true(promised < 1000);
    assert_ok(x.sink.sink.count(&x.sink.sink, 0, NUMEL, &err));
    assert_int_equal(x.crc, (uint32_t)crc32_z(0, x.image, NUMEL));
    sink_file_release(&x.sink);
}

/* A matrix that is transposed while it is written grows one run for each of its
 * columns. */
static void a_transpose_has_a_run_for_each_column(void **state)
{
    (void)state;
    enum { ROWS = NUMEL / RUNS };
    const struct tensor *t = add_tensor(ORIGIN_ZERO, NUMEL);
    const struct pair transpose = {.num_axes = 2, .axes = {{ROWS, RUNS, 1}, {RUNS, 1, ROWS}}};
    (void)plan_add_segment(&x.plan, 0, DT_U8, NUMEL, true);
    plan_add_piece(&x.plan, t, 0, &transpose);
    begin(1);
    const uint64_t promised = sink_file_run_bytes(&x.plan, 1);
    const size_t before = allocated();
    for (uint64_t row = 0; row < ROWS; row++)
        for (uint64_t column = 0; column < RUNS; column++)
            report(column * ROWS + row, 1);
    if (!SANITIZED) assert_true(allocated() - before <= promised);
    assert_true(promised < 4 * RUNS * sizeof(struct journal_run));
    assert_ok(x.sink.sink.count(&x.sink.sink, 0, NUMEL, &err));
    assert_int_equal(x.crc, (uint32_t)crc32_z(0, x.image, NUMEL));
    sink_file_release(&x.sink);
}

static void a_file_that_is_replaced_while_it_is_closed_is_refused(void **state)
{
    (void)state;
    const uint64_t bytes = 4;
    const struct tensor *t = add_tensor(ORIGIN_ZERO, bytes);
    const struct pair all = pair_whole(0, 0, bytes);
    x.plan.files[0].size_bytes = bytes;
    (void)plan_add_file(&x.plan, "other");
    x.plan.files[1].size_bytes = bytes;
    for (uint32_t i = 0; i < 2; i++)
        plan_add_piece(&x.plan, t, plan_add_segment(&x.plan, i, DT_U8, bytes, false), &all);
    begin(1);
    struct sink *s = &x.sink.sink;
    assert_ok(s->write(s, 0, 0, "ab", 2, &err));
    assert_ok(s->write(s, 1, 0, "cd", 2, &err));
    assert_ok(s->write(s, 0, 2, "ef", 2, &err)); /* opened again */
    const char *path = arena_printf(&x.arena, "%s/flat", x.out);
    struct strbuf got = {0};
    assert_ok(file_read_all(path, 10, &got, &err));
    assert_int_equal(got.length, 4);
    assert_memory_equal(got.data, "abef", 4);
    strbuf_release(&got);
    assert_ok(s->write(s, 1, 2, "gh", 2, &err));
    assert_ok(file_replace_all(path, "abef", 4, false, &err));
    assert_fails(s->write(s, 0, 2, "ef", 2, &err), ERR_IO, "flat: was replaced while it was");
    sink_file_release(&x.sink);
}

static void each_write_to_a_file_that_cannot_grow_says_so(void **state)
{
    (void)state;
    struct rlimit old, small;
    plan_runs();
    begin(1);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){NUMEL - 1, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    struct sink *s = &x.sink.sink;
    for (uint64_t i = 0; i < 2; i++) /* the second write, another thread's, finds the file */
        assert_fails(s->write(s, 0, i, "a", 1, &err), ERR_IO, "flat: cannot set its size");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    sink_file_release(&x.sink);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(thousands_of_runs_with_holes_take_the_memory_that_was_promised),
        TEST(runs_that_follow_one_another_are_one),
        TEST(a_transpose_has_a_run_for_each_column),
        TEST(a_file_that_is_replaced_while_it_is_closed_is_refused),
        TEST(each_write_to_a_file_that_cannot_grow_says_so),
    };
    return cmocka_run_group_tests_name("sink_file", tests, NULL, NULL);
}
