/* Limits of the executor: few open files, little memory. */
#include "ckpt/executor.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/testing_output.h"

/* ---- open files ---- */

static void more_files_are_open_than_are_usual(void **state)
{
    (void)state;
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    struct rlimit old, few;
    enum { FILES = 100 };
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = (struct rlimit){FILES / 2, old.rlim_max};
    const struct tensor *t = source_of_one(&s, DT_U8, 1000);
    output_init(&o, &s, 0);
    for (int i = 0; i < FILES; i++)
        (void)add_whole(&o, t, DT_U8);
    assert_ok(plan_finish(&o.plan, &err));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    enum status st = executor_run(&o.plan, o.folder, &two_threads, &r, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_ok(st);
    assert_int_equal(r.written_bytes, FILES * 1000);
    output_release(&o);
    source_release(&s);
}

/* Tensors of which each of many source files has a run, and a plan that cuts
 * them over as many output files: all files are used for each tensor. */
struct many_files {
    struct arena arena;
    struct catalog catalog;
    struct plan plan;
    char folder[TEMPORARY_PATH], out[TEMPORARY_PATH + 8];
};

enum { MANY = 150, MANY_TENSORS = 3, MANY_RUN = 8, MANY_NUMEL = MANY * MANY_RUN };

static unsigned char many_value(uint64_t tensor, uint64_t element)
{
    return (unsigned char)(tensor * 31 + element * 7 + element / 256);
}

static void add_source_file(struct many_files *m, uint32_t file)
{
    unsigned char bytes[MANY_TENSORS * MANY_RUN];
    struct file_stamp stamp;
    struct error err;
    const char *path = arena_printf(&m->arena, "%s/source-%u", m->folder, file);
    for (uint64_t i = 0; i < sizeof bytes; i++)
        bytes[i] = many_value(i / MANY_RUN, file * MANY_RUN + i % MANY_RUN);
    assert_ok(file_write_all(path, bytes, sizeof bytes, false, &err));
    assert_ok(file_stamp(path, &stamp, &err));
    assert_int_equal(stored_add_file(&m->catalog.stored, path, &stamp), file);
}

static void many_init(struct many_files *m)
{
    const uint64_t numel = MANY_NUMEL;
    struct tensor *t;
    struct error err;
    *m = (struct many_files){.folder = ""};
    assert_true(temporary_folder(m->folder));
    snprintf(m->out, sizeof m->out, "%s/out", m->folder);
    arena_init(&m->arena);
    catalog_init(&m->catalog, &m->arena);
    for (uint32_t i = 0; i < MANY; i++)
        add_source_file(m, i);
    for (uint64_t k = 0; k < MANY_TENSORS; k++) {
        assert_ok(catalog_add(&m->catalog, arena_printf(&m->arena, "t%d", (int)k), DT_U8, 1, &numel,
                              &t, &err));
        for (uint32_t i = 0; i < MANY; i++) {
            const struct piece piece = {.dtype = DT_U8, .file = i, .offset_bytes = k * MANY_RUN};
            const struct pair run = pair_whole(i * MANY_RUN, 0, MANY_RUN);
            tensor_add_piece(&m->arena, t, &piece, &run);
        }
    }
    plan_init(&m->plan, &m->catalog);
    for (uint32_t i = 0; i < MANY; i++) {
        const uint32_t file = plan_add_file(&m->plan, arena_printf(&m->arena, "out-%u", i));
        m->plan.files[file].size_bytes = MANY_TENSORS * MANY_RUN;
        (void)plan_add_segment(&m->plan, file, DT_U8, MANY_TENSORS * MANY_RUN, true);
    }
    for (uint64_t k = 0; k < MANY_TENSORS; k++)
        for (uint32_t i = 0; i < MANY; i++) {
            const struct pair run = pair_whole(i * MANY_RUN, k * MANY_RUN, MANY_RUN);
            plan_add_piece(&m->plan, &m->catalog.tensors[k], i, &run);
        }
    assert_ok(plan_finish(&m->plan, &err));
}

static void many_release(struct many_files *m)
{
    struct error err;
    plan_release(&m->plan);
    catalog_release(&m->catalog);
    arena_release(&m->arena);
    assert_ok(path_remove(m->folder, &err));
}

static void check_many(struct many_files *m)
{
    struct error err;
    struct strbuf bytes = {0};
    for (uint32_t i = 0; i < MANY; i++) {
        bytes.length = 0;
        assert_ok(
            file_read_all(arena_printf(&m->arena, "%s/out-%u", m->out, i), 1000, &bytes, &err));
        assert_int_equal(bytes.length, MANY_TENSORS * MANY_RUN);
        for (uint64_t k = 0; k < bytes.length; k++)
            assert_int_equal((unsigned char)bytes.data[k],
                             many_value(k / MANY_RUN, i * MANY_RUN + k % MANY_RUN));
    }
    strbuf_release(&bytes);
}

/* In a process of its own that may open `limit` files, and never more. Returns
 * the status. */
static enum status run_limited(const struct plan *p, const char *folder, rlim_t limit,
                               const struct executor_options *o, struct error *err)
{
    const struct rlimit few = {limit, limit};
    struct executor_result r;
    uint64_t peak;
    if (setrlimit(RLIMIT_NOFILE, &few)) return DIFFERENT;
    TRY(executor_memory(p, o, &peak, err));
    return executor_run(p, folder, o, &r, err);
}

static int status_of_limited(const struct many_files *m, rlim_t limit,
                             const struct executor_options *o, const char *message)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        struct error err = {0};
        enum status st = run_limited(&m->plan, m->out, limit, o, &err);
        if (st && (!message || !strstr(err.text, message))) fprintf(stderr, "%s\n", err.text);
        _exit(st && message && !strstr(err.text, message) ? DIFFERENT : (int)st);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void a_low_limit_of_open_files_is_enough(void **state)
{
    (void)state;
    struct many_files m;
    for (unsigned way = 0; way < 4; way++) {
        many_init(&m);
        const struct executor_options o = {
            .threads = 1 + way,
            .fsync = way == 1 || way == 3,
            .direct_io = way == 2,
            .journal_path = way == 3 ? arena_printf(&m.arena, "%s/journal", m.folder) : NULL,
            .work = "w",
            .journal_bytes = 1,
            .progress = PROGRESS_NONE};
        assert_int_equal(status_of_limited(&m, 40, &o, NULL), OK);
        check_many(&m);
        many_release(&m);
    }
}

static void a_limit_that_cannot_do_is_named_by_the_plan(void **state)
{
    (void)state;
    struct many_files m;
    const struct executor_options o = {.threads = 8, .progress = PROGRESS_NONE};
    many_init(&m);
    assert_int_equal(status_of_limited(&m, 24, &o,
                                       "8 threads need 32 open files, 8 to read, 8 to write and 16 "
                                       "others: `ulimit -n` is 24 and leaves "),
                     ERR_IO);
    assert_int_equal(access(m.out, F_OK), -1);
    many_release(&m);
}

/* ---- memory ---- */

static uint64_t most_resident(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_maxrss << 10;
}

/* In a process of its own, whose memory starts small. Returns 0, or what went
 * wrong. */
static int run_with_least_memory(const struct source *s, unsigned threads)
{
    static struct output o;
    struct source copy = *s;
    struct error err = {0};
    struct executor_result r;
    struct executor_options options = {.threads = threads, .progress = PROGRESS_NONE};
    uint64_t peak;
    output_init(&o, &copy, 0);
    for (size_t i = 0; i < 2; i++)
        (void)add_whole(&o, &s->catalog.tensors[0], DT_BF16);
    if (plan_finish(&o.plan, &err)) return 1;
    options.max_memory = least_memory(&o.plan, &options);
    if (executor_memory(&o.plan, &options, &peak, &err) || peak > options.max_memory) return 2;
    if (executor_run(&o.plan, o.folder, &options, &r, &err)) return 3;
    if (most_resident() > options.max_memory) return 4;
    options.max_memory -= 3 << 20; /* rounding is at most 1 MiB, and 1 to 2 are spare */
    if (executor_memory(&o.plan, &options, &peak, &err) != ERR_MEMORY) return 5;
    plan_release(&o.plan);
    return 0;
}

static void the_least_memory_that_is_named_is_enough(void **state)
{
    (void)state;
    struct source s;
    if (SANITIZED) skip(); /* they take memory of their own, at any moment */
    (void)source_of_one(&s, DT_F32, 10 << 20);
    for (unsigned threads = 1; threads <= 4; threads += 3) {
        struct error err;
        pid_t child = fork();
        if (child == 0) _exit(run_with_least_memory(&s, threads));
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        assert_ok(path_remove(path_join(&s.arena, s.folder, "out"), &err));
    }
    source_release(&s);
}

static void each_thread_takes_a_stack_and_its_buffers(void **state)
{
    (void)state;
    static struct output o;
    struct source s;
    struct error err = {0};
    const struct tensor *t = source_of_one(&s, DT_U8, 1000);
    output_init(&o, &s, 0);
    (void)add_whole(&o, t, DT_U8);
    assert_ok(plan_finish(&o.plan, &err));
    const struct executor_options many = {.threads = 129};
    uint64_t more = least_memory(&o.plan, &many) - least_memory(&o.plan, &one_thread);
    /* 128 stacks of 1 MiB, and two buffers of 64 KiB each */
    assert_in_range(more, 143u << 20, 145u << 20);
    output_release(&o);
    source_release(&s);
}

static void buffers_that_the_system_does_not_give_are_an_error(void **state)
{
    (void)state;
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    struct rlimit old, small;
    const struct executor_options options = {.threads = 1000, .progress = PROGRESS_NONE};
    if (SANITIZED || !test_can_limit_address_space()) skip(); /* sanitizers map terabytes */
    const struct tensor *t = source_of_one(&s, DT_U8, 1000);
    output_init(&o, &s, 0);
    (void)add_whole(&o, t, DT_U8);
    assert_ok(plan_finish(&o.plan, &err));
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    small = (struct rlimit){1u << 30, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_AS, &small), 0);
    enum status st = executor_run(&o.plan, o.folder, &options, &r, &err);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    assert_int_equal(st, ERR_MEMORY);
    assert_non_null(strstr(err.text, "no memory for buffers of 1048576 bytes"));
    output_release(&o);
    source_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_files_are_open_than_are_usual),
        cmocka_unit_test(a_low_limit_of_open_files_is_enough),
        cmocka_unit_test(a_limit_that_cannot_do_is_named_by_the_plan),
        cmocka_unit_test(the_least_memory_that_is_named_is_enough),
        cmocka_unit_test(each_thread_takes_a_stack_and_its_buffers),
        cmocka_unit_test(buffers_that_the_system_does_not_give_are_an_error),
    };
    return cmocka_run_group_tests_name("executor_limits", tests, NULL, NULL);
}
