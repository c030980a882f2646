/* Sources that changed, what cannot be written, interrupts. */
#include "ckpt/executor.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/testing_output.h"
#include "common/threads.h"

/* ---- failures ---- */

/* Plans one tensor of 100,000 bytes as two files, changes something by `spoil`,
 * runs. */
static void check_failure(void (*spoil)(struct output *o), enum status status, const char *text)
{
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    const struct tensor *t = source_of_one(&s, DT_U8, 100000);
    output_init(&o, &s, 0);
    (void)add_whole(&o, t, DT_U8);
    (void)add_whole(&o, t, DT_U8);
    assert_ok(plan_finish(&o.plan, &err));
    spoil(&o);
    assert_fails(executor_run(&o.plan, o.folder, &one_thread, &r, &err), status, text);
    output_release(&o);
    source_release(&s);
}

static void truncate_source(struct output *o)
{
    assert_int_equal(truncate(source_path(o->source, 0), 50000), 0);
}

static void remove_source(struct output *o)
{
    assert_int_equal(unlink(source_path(o->source, 0)), 0);
}

static void replace_source(struct output *o)
{
    struct error err;
    const char *path = source_path(o->source, 0);
    assert_ok(
        file_replace_all(path, o->source->files[0].bytes, o->source->files[0].size, false, &err));
}

/* As a file that is overwritten while it is being read. */
static enum status touch_source(const struct plan *plan, uint32_t file, void *context,
                                const struct file_writer *writer, struct error *err)
{
    struct output *o = context;
    const struct timespec times[2] = {{1, 0}, {1, 0}};
    (void)plan, (void)file, (void)writer, (void)err;
    return utimensat(AT_FDCWD, source_path(o->source, 0), times, 0) ? ERR_OURS : OK;
}

static void touch_source_at_the_end(struct output *o)
{
    o->plan.files[1].finish = touch_source;
    o->plan.files[1].finish_context = o;
}

/* The stamp of a file that was already shorter when it was opened: a header
 * that lies. */
static void shorten_source_behind_our_back(struct output *o)
{
    struct stored_file *f = &o->source->catalog.stored.files[0];
    truncate_source(o);
    struct error err;
    uint64_t size = f->size_bytes;
    assert_ok(file_stamp(f->path, &f->stamp, &err));
    f->size_bytes = size;
}

static void a_source_that_changed_is_named(void **state)
{
    (void)state;
    check_failure(truncate_source, ERR_IO, "source-0: changed while it was read");
    check_failure(replace_source, ERR_IO, "tensor.0: ");
    check_failure(replace_source, ERR_IO, "source-0: changed while it was read");
    check_failure(remove_source, ERR_IO, "source-0: No such file");
    check_failure(touch_source_at_the_end, ERR_IO, "source-0: changed while it was read");
    check_failure(shorten_source_behind_our_back, ERR_CORRUPT, "source-0: ends at 50000");
}

static void make_output(struct output *o)
{
    struct error err;
    assert_ok(folder_create(o->folder, &err));
    assert_ok(file_write_all(path_join(&o->plan.arena, o->folder, "whole-1"), "x", 1, false, &err));
}

static void same_path_twice(struct output *o)
{
    o->plan.files[1].path = o->plan.files[0].path;
}

static void output_below_a_file(struct output *o)
{
    make_output(o);
    o->plan.files[0].path = "whole-1/x";
}

static enum status refuse(const struct plan *plan, uint32_t file, void *context,
                          const struct file_writer *writer, struct error *err)
{
    (void)plan, (void)context, (void)writer;
    return fail(err, ERR_NUMERIC, "file %u cannot be finished", file);
}

static void finish_refuses(struct output *o)
{
    o->plan.files[1].finish = refuse;
}

static void finish_of_a_file_without_segments_refuses(struct output *o)
{
    uint32_t file = plan_add_file(&o->plan, "empty");
    o->plan.files[file].finish = refuse;
}

/* Plans that plan_finish() would have refused. */
static void forget_a_segment(struct output *o)
{
    o->plan.copies[0].num_pieces = 1;
}

static void write_a_half(struct output *o)
{
    o->plan.copies[0].pieces[1].pair.count /= 2;
}

static void write_a_half_twice(struct output *o)
{
    struct target_piece *pieces = arena_array(&o->plan.arena, 3, sizeof *pieces);
    pieces[0] = o->plan.copies[0].pieces[0];
    pieces[1] = pieces[2] = o->plan.copies[0].pieces[1];
    pieces[1].pair.count = pieces[2].pair.count /= 2;
    o->plan.copies[0].pieces = pieces;
    o->plan.copies[0].num_pieces = 3;
}

static void what_cannot_be_written_is_an_error_that_names_it(void **state)
{
    (void)state;
    check_failure(make_output, ERR_IO, "out/whole-1: File exists");
    check_failure(same_path_twice, ERR_IO, "out/whole-0: File exists");
    check_failure(output_below_a_file, ERR_IO, "out/whole-1: ");
    check_failure(finish_refuses, ERR_NUMERIC, "file 1 cannot be finished");
    check_failure(finish_of_a_file_without_segments_refuses, ERR_NUMERIC, "file 2 cannot");
}

static void a_file_that_was_not_filled_is_noticed(void **state)
{
    (void)state;
    check_failure(forget_a_segment, ERR_OURS, "whole-1: not complete");
    check_failure(write_a_half, ERR_OURS, "whole-1: not complete");
    check_failure(write_a_half_twice, ERR_OURS, "a segment was written to byte 50000 of 100000");
}

static void a_file_that_outgrows_the_system_is_an_error_that_names_it(void **state)
{
    (void)state;
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){65536, old.rlim_max};
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    const struct tensor *t = source_of_one(&s, DT_U8, 100000);
    output_init(&o, &s, 0);
    (void)add_whole(&o, t, DT_U8);
    assert_ok(plan_finish(&o.plan, &err));
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum status st = executor_run(&o.plan, o.folder, &one_thread, &r, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(st, ERR_IO);
    assert_non_null(strstr(err.text, "out/whole-0: cannot set its size: File too large"));
    output_release(&o);
    source_release(&s);
}

/* ---- interrupts; no test that runs a plan stands behind these ---- */

/* Ends the process's work once the output file is there. */
static void *terminate_when_begun(void *path)
{
    while (!path_exists(path))
        sched_yield();
    raise(SIGTERM);
    return NULL;
}

/* In a process of its own: 1 where a run of a single task was cut short. */
static int run_and_be_terminated(struct source *s)
{
    static struct output o;
    struct error err = {0};
    struct executor_result r;
    pthread_t killer;
    char path[TEMPORARY_PATH + 64];
    output_init(&o, s, 0);
    (void)add_whole(&o, &s->catalog.tensors[1], DT_F32);
    if (plan_finish(&o.plan, &err)) return 2;
    interrupt_install();
    snprintf(path, sizeof path, "%s/whole-0", o.folder);
    if (pthread_create(&killer, NULL, terminate_when_begun, path)) return 2;
    enum status st = executor_run(&o.plan, o.folder, &one_thread, &r, &err);
    pthread_join(killer, NULL);
    return st == ERR_INTERRUPTED && r.written_bytes < o.plan.files[0].size_bytes;
}

/* The signal may come too late where the machine is busy; it must not each
 * time. */
static void an_interrupt_ends_a_task_between_panels(void **state)
{
    (void)state;
    struct source s;
    const uint64_t numel = 15 << 20; /* a little less than TASK_BYTES */
    (void)source_of_one(&s, DT_U8, 10);
    struct tensor *t = source_new_tensor(&s, DT_F32, 1, &numel);
    struct piece made = {.origin = ORIGIN_RANDOM, .dtype = DT_F32};
    const struct pair pair = pair_whole(0, 0, numel);
    tensor_add_piece(&s.arena, t, &made, &pair);
    bool cut = false;
    for (int i = 0; i < 30 && !cut; i++) {
        struct error err;
        int status;
        pid_t child = fork();
        if (child == 0) _exit(run_and_be_terminated(&s));
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
        cut = WEXITSTATUS(status) == 1;
        assert_ok(path_remove(path_join(&s.arena, s.folder, "out"), &err));
    }
    assert_true(cut);
    source_release(&s);
}

static enum status terminate(const struct plan *plan, uint32_t file, void *context,
                             const struct file_writer *writer, struct error *err)
{
    (void)plan, (void)file, (void)context, (void)writer, (void)err;
    raise(SIGTERM);
    return OK;
}

static void an_interrupt_ends_the_run_between_tasks(void **state)
{
    (void)state;
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    struct sigaction old[3];
    const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    const struct tensor *t = source_of_one(&s, DT_U8, 100000);
    struct tensor *later = source_new_tensor(&s, DT_U8, 1, &t->numel);
    tensor_add_pieces(&s.arena, later, &s.catalog.tensors[0]);
    output_init(&o, &s, 0);
    (void)add_whole(&o, &s.catalog.tensors[0], DT_U8);
    (void)add_whole(&o, later, DT_U8);
    assert_ok(plan_finish(&o.plan, &err));
    o.plan.files[0].finish = terminate;
    for (size_t i = 0; i < 3; i++)
        sigaction(signals[i], NULL, &old[i]);
    interrupt_install();
    assert_fails(executor_run(&o.plan, o.folder, &one_thread, &r, &err), ERR_INTERRUPTED,
                 "interrupted");
    assert_int_equal(r.written_bytes, 100000); /* of the first file, and nothing of the second */
    assert_true(path_exists(path_join(&s.arena, o.folder, "whole-0")));
    assert_false(path_exists(path_join(&s.arena, o.folder, "whole-1")));

    raise(SIGINT); /* the first one only asks */
    output_release(&o);
    output_init(&o, &s, 0);
    (void)add_whole(&o, &s.catalog.tensors[0], DT_U8);
    assert_ok(plan_finish(&o.plan, &err));
    assert_fails(executor_run(&o.plan, o.folder, &two_threads, &r, &err), ERR_INTERRUPTED,
                 "interrupted");
    assert_int_equal(r.written_bytes, 0);
    for (size_t i = 0; i < 3; i++)
        sigaction(signals[i], &old[i], NULL);
    output_release(&o);
    source_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_source_that_changed_is_named),
        cmocka_unit_test(what_cannot_be_written_is_an_error_that_names_it),
        cmocka_unit_test(a_file_that_was_not_filled_is_noticed),
        cmocka_unit_test(a_file_that_outgrows_the_system_is_an_error_that_names_it),
        cmocka_unit_test(an_interrupt_ends_a_task_between_panels),
        cmocka_unit_test(an_interrupt_ends_the_run_between_tasks),
    };
    return cmocka_run_group_tests_name("executor_failures", tests, NULL, NULL);
}
