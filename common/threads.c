#include "common/threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/count.h"
#include "common/memory.h"

typedef enum status task_fn(void *context, size_t index, unsigned worker, struct error *err);

/* Shared by the threads of one threads_run(). Tasks are taken under the lock,
 * none after a recorded failure. */
struct run {
    pthread_mutex_t lock;
    size_t next, num_tasks;
    task_fn *task;
    void *context;
    enum status status;
    struct error error;
};

struct worker {
    pthread_t thread;
    struct run *run;
    unsigned number;
};

static bool next_task(struct run *r, size_t *index)
{
    pthread_mutex_lock(&r->lock);
    bool more = !r->status && r->next < r->num_tasks;
    if (more && (r->status = work_check(&r->error))) more = false;
    if (more) *index = r->next++;
    pthread_mutex_unlock(&r->lock);
    return more;
}

static void record_failure(struct run *r, enum status st, const struct error *error)
{
    pthread_mutex_lock(&r->lock);
    if (!r->status) {
        r->status = st;
        r->error = *error;
        r->error.code = st;
    }
    pthread_mutex_unlock(&r->lock);
}

static void *run_tasks(void *argument)
{
    struct worker *w = argument;
    for (size_t index; next_task(w->run, &index);) {
        struct error error = {0};
        enum status st = w->run->task(w->run->context, index, w->number, &error);
        if (st) record_failure(w->run, st, &error);
    }
    return NULL;
}

enum status threads_run(unsigned num_threads, size_t num_tasks, task_fn *task, void *context,
                        struct error *err)
{
    struct run r = {.num_tasks = num_tasks, .task = task, .context = context};
    pthread_mutex_init(&r.lock, NULL);
    if (num_threads > num_tasks) num_threads = (unsigned)num_tasks;
    if (num_threads == 0) num_threads = 1;
    struct worker *workers = must_calloc(num_threads, sizeof *workers);
    workers[0] = (struct worker){.run = &r};

    /* Fewer threads do the same work: a failed pthread_create() is harmless. */
    unsigned started = 1;
    for (; started < num_threads; started++) {
        workers[started] = (struct worker){.run = &r, .number = started};
        if (pthread_create(&workers[started].thread, NULL, run_tasks, &workers[started])) break;
    }
    run_tasks(&workers[0]);
    for (unsigned i = 1; i < started; i++)
        pthread_join(workers[i].thread, NULL);

    free(workers);
    pthread_mutex_destroy(&r.lock);
    if (r.status && err) *err = r.error;
    return r.status;
}

unsigned threads_available(void)
{
    cpu_set_t sets[16]; /* 16,384 CPUs; the call fails if the kernel has more */
    if (sched_getaffinity(0, sizeof sets, sets)) return 1;
    return (unsigned)CPU_COUNT_S(sizeof sets, sets);
}

static atomic_bool interrupt_seen, sigint_seen, interrupt_held;

static void on_signal(int number)
{
    static const char text[] = "\nended at once by a second interrupt\n";
    const bool again = interrupt_held && interrupt_seen; /* of any kind */
    if (again || (number == SIGINT && atomic_exchange(&sigint_seen, true))) {
        (void)!write(STDERR_FILENO, text, sizeof text - 1);
        _exit(ERR_INTERRUPTED);
    }
    atomic_store(&interrupt_seen, true);
}

void interrupt_install(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < COUNT(signals); i++) {
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old;
        sigemptyset(&action.sa_mask);
        sigaction(signals[i], NULL, &old);
        /* nohup, and shells for background jobs, ignore a signal on purpose. */
        if (old.sa_handler != SIG_IGN) sigaction(signals[i], &action, NULL);
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* the write fails and is reported */
}

bool interrupt_pending(void)
{
    return atomic_load_explicit(&interrupt_seen, memory_order_relaxed);
}

bool interrupted(void)
{
    return interrupt_pending() && !atomic_load_explicit(&interrupt_held, memory_order_relaxed);
}

void interrupt_hold(bool held)
{
    atomic_store(&interrupt_held, held);
}

/* ---- stopping useless work ---- */

static pthread_mutex_t stop_lock = PTHREAD_MUTEX_INITIALIZER;
static struct error stop_error; /* under the lock; valid once stop_seen is true */
static atomic_bool stop_seen;

void work_stop(const struct error *why)
{
    pthread_mutex_lock(&stop_lock);
    if (!stop_seen) stop_error = *why;
    atomic_store(&stop_seen, true);
    pthread_mutex_unlock(&stop_lock);
}

void work_resume(void)
{
    atomic_store(&stop_seen, false);
}

bool work_stopped(void)
{
    return interrupted() || atomic_load_explicit(&stop_seen, memory_order_relaxed);
}

enum status work_check(struct error *err)
{
    if (interrupted()) return fail(err, ERR_INTERRUPTED, "interrupted");
    if (!work_stopped()) return OK;
    pthread_mutex_lock(&stop_lock);
    enum status st = fail(err, stop_error.code, "%s", stop_error.text);
    pthread_mutex_unlock(&stop_lock);
    return st;
}
