#include "common/threads.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h> /* (fail) is ours, fail its macro */

enum { NUM_TASKS = 1000 };

struct log {
    atomic_uint runs[NUM_TASKS];
    atomic_uint workers; /* a bit each */
    atomic_size_t started;
    size_t failing;
    enum status status;
};

static enum status count(void *context, size_t index, unsigned worker, struct error *err)
{
    (void)err;
    struct log *log = context;
    atomic_fetch_add(&log->runs[index], 1);
    atomic_fetch_or(&log->workers, 1u << worker);
    return OK;
}

static void every_task_runs_once_whatever_the_number_of_threads(void **state)
{
    (void)state;
    for (unsigned num_threads = 0; num_threads <= 5; num_threads++) {
        struct log log = {0};
        assert_int_equal(threads_run(num_threads, NUM_TASKS, count, &log, NULL), OK);
        for (size_t i = 0; i < NUM_TASKS; i++)
            assert_int_equal(log.runs[i], 1);
        assert_int_equal(log.workers >> (num_threads ? num_threads : 1), 0);
    }
}

static void no_tasks_are_no_failure(void **state)
{
    (void)state;
    struct log log = {0};
    assert_int_equal(threads_run(4, 0, count, &log, NULL), OK);
    assert_int_equal(log.workers, 0);
}

struct order {
    pthread_t caller;
    size_t next;
};

static enum status in_order_here(void *context, size_t index, unsigned worker, struct error *err)
{
    struct order *o = context;
    if (!pthread_equal(pthread_self(), o->caller)) return (fail)(err, ERR_OURS, "another thread");
    if (worker != 0 || index != o->next++) return (fail)(err, ERR_OURS, "out of order");
    return OK;
}

static void one_thread_is_the_calling_one_and_takes_the_tasks_in_order(void **state)
{
    (void)state;
    struct order o = {.caller = pthread_self()};
    assert_int_equal(threads_run(1, NUM_TASKS, in_order_here, &o, NULL), OK);
    assert_int_equal(o.next, NUM_TASKS);
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* All of two wait for each other, so that they pass only if they run at the
 * same time. */
static enum status meet(void *context, size_t index, unsigned worker, struct error *err)
{
    (void)index, (void)worker;
    struct log *log = context;
    atomic_fetch_add(&log->started, 1);
    for (int i = 0; i < 5000; i++) {
        if (atomic_load(&log->started) == 2) return OK;
        sleep_ms(1);
    }
    return (fail)(err, ERR_OURS, "the other task did not start");
}

static void tasks_run_at_the_same_time(void **state)
{
    (void)state;
    struct log log = {0};
    struct error err = {0};
    assert_int_equal(threads_run(2, 2, meet, &log, &err), OK);
}

/* Task `failing` fails at once, the one before it later. */
static enum status fail_late_and_early(void *context, size_t index, unsigned worker,
                                       struct error *err)
{
    (void)worker;
    struct log *log = context;
    atomic_fetch_add(&log->started, 1);
    if (index == log->failing) return (fail)(err, log->status, "task %zu", index);
    sleep_ms(100);
    return (fail)(err, ERR_IO, "task %zu, too late", index);
}

static void the_first_failure_by_time_wins_and_ends_the_run(void **state)
{
    (void)state;
    struct log log = {.failing = 1, .status = ERR_CORRUPT};
    struct error err = {0};
    assert_int_equal(threads_run(2, NUM_TASKS, fail_late_and_early, &log, &err), ERR_CORRUPT);
    assert_string_equal(err.text, "task 1");
    assert_int_equal(err.code, ERR_CORRUPT);
    assert_int_equal(log.started, 2);
}

static enum status fail_without_text(void *context, size_t index, unsigned worker,
                                     struct error *err)
{
    (void)context, (void)index, (void)worker, (void)err;
    return DIFFERENT;
}

static void a_failure_without_a_text_keeps_its_status(void **state)
{
    (void)state;
    struct error err = {.code = ERR_OURS, .text = "left over"};
    assert_int_equal(threads_run(3, 3, fail_without_text, NULL, &err), DIFFERENT);
    assert_int_equal(err.code, DIFFERENT);
    assert_string_equal(err.text, "");
    assert_int_equal(threads_run(3, 3, fail_without_text, NULL, NULL), DIFFERENT);
}

static void success_leaves_the_error_alone(void **state)
{
    (void)state;
    struct log log = {0};
    struct error err = {.text = "left over"};
    assert_int_equal(threads_run(2, 10, count, &log, &err), OK);
    assert_string_equal(err.text, "left over");
}

static void cpus_are_those_that_the_process_may_use(void **state)
{
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(threads_available(), CPU_COUNT(&before));
    size_t first = 0;
    while (!CPU_ISSET(first, &before))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(threads_available(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

/* ---- signals: in a child each, since the flag stays set ---- */

/* The wait status of a child that runs `body` and leaves with what it returns. */
static int in_child(int (*body)(void))
{
    int status;
    pid_t child = fork();
    if (child == 0) _exit(body());
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void assert_exits(int (*body)(void), int code)
{
    int status = in_child(body);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), code);
}

static enum status interrupt_in_the_third(void *context, size_t index, unsigned worker,
                                          struct error *err)
{
    (void)worker, (void)err;
    *(size_t *)context = index + 1;
    if (index == 2) raise(SIGINT);
    return OK;
}

static int run_interrupted(void)
{
    size_t done = 0;
    struct error err = {0};
    interrupt_install();
    enum status st = threads_run(1, 10, interrupt_in_the_third, &done, &err);
    return st == ERR_INTERRUPTED && done == 3 && strcmp(err.text, "interrupted") == 0 ? 0 : 1;
}

static int run_interrupted_in_the_last(void)
{
    size_t done = 0;
    interrupt_install();
    return threads_run(1, 3, interrupt_in_the_third, &done, NULL) == OK && done == 3 ? 0 : 1;
}

static void no_task_starts_after_an_interrupt(void **state)
{
    (void)state;
    assert_exits(run_interrupted, 0);
    assert_exits(run_interrupted_in_the_last, 0);
}

static int flag_after(int number)
{
    interrupt_install();
    if (interrupted()) return 2;
    raise(number);
    return interrupted() ? 0 : 1;
}

static int flag_after_int(void)
{
    return flag_after(SIGINT);
}

static int flag_after_term(void)
{
    return flag_after(SIGTERM);
}

static int flag_after_hup(void)
{
    return flag_after(SIGHUP);
}

static void int_term_and_hup_set_the_flag(void **state)
{
    (void)state;
    assert_exits(flag_after_int, 0);
    assert_exits(flag_after_term, 0);
    assert_exits(flag_after_hup, 0);
}

static int two_sigints(void)
{
    interrupt_install();
    raise(SIGINT);
    raise(SIGINT);
    return 0;
}

static int one_sigint_after_sigterm(void)
{
    interrupt_install();
    raise(SIGTERM);
    raise(SIGINT);
    return 0;
}

static void the_second_sigint_ends_the_process(void **state)
{
    (void)state;
    assert_exits(two_sigints, 130);
    assert_exits(one_sigint_after_sigterm, 0);
}

static int write_to_a_closed_pipe(void)
{
    int ends[2];
    interrupt_install();
    if (pipe(ends) || close(ends[0])) return 2;
    return write(ends[1], "x", 1) < 0 && !interrupted() ? 0 : 1;
}

static void a_closed_pipe_does_not_end_the_process(void **state)
{
    (void)state;
    assert_exits(write_to_a_closed_pipe, 0);
}

static int hang_up_under_nohup(void)
{
    signal(SIGHUP, SIG_IGN);
    return flag_after(SIGHUP) == 1 ? 0 : 1;
}

static void a_signal_that_was_ignored_stays_so(void **state)
{
    (void)state;
    assert_exits(hang_up_under_nohup, 0);
}

static enum status stop_in_the_middle(void *context, size_t index, unsigned worker,
                                      struct error *err)
{
    struct log *log = context;
    struct error why = {.code = ERR_RANK, .text = "rank 3 has died"}, later = {.code = ERR_IO};
    (void)worker, (void)err;
    atomic_fetch_add(&log->started, 1);
    if (index == log->failing) work_stop(&why);
    if (index == log->failing) work_stop(&later);
    return OK;
}

static void work_that_is_for_nothing_ends_with_what_was_told(void **state)
{
    (void)state;
    struct log log = {.failing = 7};
    struct error err;
    assert_false(work_stopped());
    assert_int_equal(work_check(&err), OK);
    assert_int_equal(threads_run(1, NUM_TASKS, stop_in_the_middle, &log, &err), ERR_RANK);
    assert_string_equal(err.text, "rank 3 has died");
    assert_int_equal(log.started, 8);
    assert_true(work_stopped());
    work_resume();
    assert_false(work_stopped());
    assert_int_equal(work_check(&err), OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once_whatever_the_number_of_threads),
        cmocka_unit_test(no_tasks_are_no_failure),
        cmocka_unit_test(one_thread_is_the_calling_one_and_takes_the_tasks_in_order),
        cmocka_unit_test(tasks_run_at_the_same_time),
        cmocka_unit_test(the_first_failure_by_time_wins_and_ends_the_run),
        cmocka_unit_test(a_failure_without_a_text_keeps_its_status),
        cmocka_unit_test(success_leaves_the_error_alone),
        cmocka_unit_test(cpus_are_those_that_the_process_may_use),
        cmocka_unit_test(no_task_starts_after_an_interrupt),
        cmocka_unit_test(work_that_is_for_nothing_ends_with_what_was_told),
        cmocka_unit_test(int_term_and_hup_set_the_flag),
        cmocka_unit_test(the_second_sigint_ends_the_process),
        cmocka_unit_test(a_closed_pipe_does_not_end_the_process),
        cmocka_unit_test(a_signal_that_was_ignored_stays_so),
    };
    return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
