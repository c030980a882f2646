/* job.c - starts the ranks of a `local` job, waits on gates, and finds
 * failures, deaths and deadlocks. */
#include "train/comm/job_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/memory.h"
#include "common/threads.h"

enum {
    LOOK_MS = 100,
    SPINS = 2000, /* about 30 microseconds, the cost of a futex; if each rank has a CPU */
    YIELDS = 16,  /* then: without a CPU each, another rank has to run */
};

/* ---- failures ---- */

static void gate_wake(struct gate *g)
{
    syscall(SYS_futex, &g->count, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void wake_all(struct local *l)
{
    for (unsigned r = 0; r < l->size; r++) {
        struct gate *g = l->job->ranks[r].wait.gate;
        if (g) gate_wake(g);
    }
}

static void record_failure(struct local *l, enum status status, int died, const char *text)
{
    struct failure *none = NULL, *mine = &l->job->ranks[l->rank].failure;
    pthread_mutex_lock(&l->recording);
    if (!atomic_load(&l->job->failure)) {
        *mine = (struct failure){.status = status, .died = died};
        snprintf(mine->text, sizeof mine->text, "%s", text);
        if (atomic_compare_exchange_strong(&l->job->failure, &none, mine)) wake_all(l);
    }
    pthread_mutex_unlock(&l->recording);
}

static enum status failure_of_job(struct local *l, struct error *err)
{
    const struct failure *f = atomic_load(&l->job->failure);
    if (!f) return OK;
    return fail(err, f->status == ERR_INTERRUPTED ? ERR_INTERRUPTED : ERR_RANK, "%s", f->text);
}

enum status job_fail(struct local *l, struct error *err, enum status status, const char *fmt, ...)
{
    char text[sizeof((struct failure *)NULL)->text];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    record_failure(l, status, -1, text);
    return failure_of_job(l, err);
}

enum status job_check(struct local *l, struct error *err)
{
    if (interrupted()) return job_fail(l, err, ERR_INTERRUPTED, "interrupted");
    return failure_of_job(l, err);
}

/* A rank is dead if its pipe has no writer and it has not announced its end. */
enum status job_check_deaths(struct local *l, struct error *err)
{
    struct pollfd pipes[MAX_RANKS];
    for (unsigned r = 0; r < l->size; r++)
        pipes[r] = (struct pollfd){.fd = l->alive[r]};
    if (poll(pipes, l->size, 0) <= 0) return OK;

    for (unsigned r = 0; r < l->size; r++) {
        if (!(pipes[r].revents & POLLHUP) || l->job->ranks[r].has_ended) continue;
        char text[64];
        snprintf(text, sizeof text, "rank %u has died", r);
        record_failure(l, ERR_RANK, (int)r, text);
    }
    return failure_of_job(l, err);
}

/* ---- gates ---- */

static bool gate_reached(struct gate *g, uint32_t target)
{
    return (int32_t)(atomic_load(&g->count) - target) >= 0;
}

void gate_raise(struct gate *g)
{
    atomic_fetch_add(&g->count, 1);
    if (atomic_load(&g->asleep)) gate_wake(g);
}

/* Returns false after a timeout. */
static bool gate_sleep(struct gate *g, uint32_t target)
{
    struct timespec time = {.tv_nsec = LOOK_MS * 1000000};
    long result = 0;
    atomic_store(&g->asleep, 1);
    uint32_t seen = atomic_load(&g->count);
    if ((int32_t)(seen - target) < 0)
        result = syscall(SYS_futex, &g->count, FUTEX_WAIT, seen, &time, NULL, 0);
    bool timed_out = result && errno == ETIMEDOUT;
    atomic_store(&g->asleep, 0);
    return !timed_out;
}

static void mark_waiting(struct local *l, struct gate *g, uint32_t target, unsigned rank)
{
    struct job_rank *me = &l->job->ranks[l->rank];
    me->wait.rank = rank;
    me->wait.target = target;
    me->wait.gate = g;
    me->wait.number++;
}

static void mark_awake(struct local *l)
{
    l->job->ranks[l->rank].wait.number++;
}

/* Follows "rank waits for rank" from this one. Returns the length of the ring,
 * 0 if it does not lead back. */
static unsigned follow_waits(struct local *l, unsigned ring[MAX_RANKS], uint32_t numbers[MAX_RANKS])
{
    unsigned rank = l->rank;
    for (unsigned n = 0; n < l->size; n++) {
        struct job_rank *r = &l->job->ranks[rank];
        ring[n] = rank;
        numbers[n] = r->wait.number;
        if (numbers[n] % 2 == 0) return 0;
        rank = r->wait.rank;
        if (rank == l->rank) return n + 1;
    }
    return 0;
}

/* Whether each rank is still in the wait that follow_waits() saw. Then all of
 * them waited at one time, between the two looks, and none can raise another's
 * gate. Other ranks can raise the gate of messages, but end no exchange: that
 * takes the recorded rank, too, and a rank moves all it can before it waits. */
static bool ring_is_stuck(struct local *l, const unsigned *ring, const uint32_t *numbers,
                          unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct job_rank *r = &l->job->ranks[ring[i]];
        if (gate_reached(r->wait.gate, r->wait.target) || r->wait.number != numbers[i])
            return false;
    }
    return true;
}

static enum status fail_of_ring(struct local *l, const unsigned *ring, unsigned n,
                                struct error *err)
{
    char text[sizeof((struct failure *)NULL)->text] = "";
    size_t at = 0;
    for (unsigned i = 0; i < n && at < sizeof text; i++) {
        char call[COMM_CALL_TEXT];
        comm_call_print(call, &l->job->ranks[ring[i]].now);
        at += (size_t)snprintf(text + at, sizeof text - at, "%srank %u waits for rank %u in %s",
                               i ? ", " : "", ring[i], ring[(i + 1) % n], call);
    }
    return job_fail(l, err, ERR_RANK, "%s", text);
}

static enum status check_ring(struct local *l, struct error *err)
{
    unsigned ring[MAX_RANKS];
    uint32_t numbers[MAX_RANKS];
    unsigned n = follow_waits(l, ring, numbers);
    if (!n || !ring_is_stuck(l, ring, numbers, n)) return OK;
    return fail_of_ring(l, ring, n, err);
}

static enum status sleep_until(struct local *l, struct gate *g, uint32_t target, struct error *err)
{
    while (!gate_reached(g, target)) {
        TRY(job_check(l, err));
        if (gate_sleep(g, target) || gate_reached(g, target)) continue;
        TRY(job_check_deaths(l, err));
        TRY(check_ring(l, err));
    }
    return OK;
}

/* Tells the core that it spins. */
static void pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

enum status gate_wait(struct local *l, struct gate *g, uint32_t target, unsigned rank,
                      struct error *err)
{
    for (unsigned i = 0; i < l->spins; i++) {
        if (gate_reached(g, target)) return OK;
        pause_core();
    }
    for (unsigned i = 0; i < YIELDS; i++) {
        if (gate_reached(g, target)) return OK;
        sched_yield();
    }
    mark_waiting(l, g, target, rank);
    enum status st = sleep_until(l, g, target, err);
    mark_awake(l);
    return st;
}

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static enum status check_all(void *context, struct error *err)
{
    TRY(job_check(context, err));
    return job_check_deaths(context, err);
}

/* ---- processes ---- */

static enum status map_shared(struct local *l, struct error *err)
{
    size_t head = (sizeof *l->job + 4095) / 4096 * 4096;
    size_t channels = (size_t)l->size * l->size * sizeof *l->channels;
    l->mapped_bytes = head + channels + l->size * sizeof *l->slots;
    /* Untouched pages cost nothing; most channels are never used. */
    char *base = mmap(NULL, l->mapped_bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return fail_errno(err, ERR_MEMORY, "cannot map %zu bytes shared by %u ranks",
                          l->mapped_bytes, l->size);
    madvise(base, l->mapped_bytes, MADV_DONTDUMP); /* a core dump would touch them */
    l->job = (struct job *)base;
    l->channels = (struct channel *)(base + head);
    l->slots = (char(*)[2][HALF_BYTES])(base + head + channels);
    return OK;
}

static enum status open_pipes(struct local *l, int ends[MAX_RANKS], struct error *err)
{
    for (unsigned r = 0; r < l->size; r++) {
        int both[2];
        if (pipe2(both, O_CLOEXEC))
            return fail_errno(err, ERR_IO, "cannot open a pipe for rank %u", r);
        l->alive[r] = both[0];
        ends[r] = both[1];
    }
    return OK;
}

/* A rank keeps only the write end of its own pipe. */
static void keep_own_end(struct local *l, int ends[MAX_RANKS])
{
    l->own_end = ends[l->rank];
    ends[l->rank] = -1;
    for (unsigned r = 0; r < l->size; r++)
        close_fd(&ends[r]);
}

static void become_child(struct local *l, unsigned rank, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(ERR_RANK); /* the parent died before prctl() */
    l->rank = rank;
    memset(l->pids, 0, sizeof l->pids);
}

static enum status start_children(struct local *l, struct error *err)
{
    pid_t parent = getpid();
    fflush(NULL); /* else every rank would print the buffered text */
    for (unsigned r = 1; r < l->size && l->rank == 0; r++) {
        pid_t pid = fork();
        if (pid < 0) return fail_errno(err, ERR_MEMORY, "cannot start rank %u of %u", r, l->size);
        if (pid == 0)
            become_child(l, r, parent);
        else
            l->pids[r] = pid;
    }
    return OK;
}

static void job_release(struct local *l)
{
    for (unsigned r = 0; r < l->size; r++)
        close_fd(&l->alive[r]);
    close_fd(&l->own_end);
    if (l->job) munmap(l->job, l->mapped_bytes);
    pthread_mutex_destroy(&l->recording);
    free(l);
}

static void kill_children(struct local *l)
{
    for (unsigned r = 1; r < l->size; r++)
        if (l->pids[r]) kill(l->pids[r], SIGKILL);
    for (unsigned r = 1; r < l->size; r++)
        if (l->pids[r]) waitpid(l->pids[r], NULL, 0);
}

enum status job_open(struct local **out, unsigned size, struct error *err)
{
    if (size < 1 || size > MAX_RANKS)
        return fail(err, ERR_USAGE, "%u ranks on one machine: expected 1 to %d", size, MAX_RANKS);
    struct local *l = must_calloc(1, sizeof *l);
    pthread_mutex_init(&l->recording, NULL);
    l->size = size;
    l->spins = size <= threads_available() ? SPINS : 0;
    l->own_end = l->watch.end = -1;
    int ends[MAX_RANKS];
    for (unsigned r = 0; r < MAX_RANKS; r++)
        l->alive[r] = ends[r] = -1;

    enum status st = map_shared(l, err);
    if (!st) st = open_pipes(l, ends, err);
    if (!st) st = start_children(l, err);
    keep_own_end(l, ends);
    if (st) {
        kill_children(l);
        job_release(l);
        return st;
    }
    if (size > 1)
        watch_start(&l->watch, check_all, l, work_stop); /* a single rank sees its signals itself */
    *out = l;
    return OK;
}

/* Returns the status of waitpid(). After a failure, kills the child at
 * kill_after. */
static int wait_for_child(struct local *l, unsigned rank, double kill_after)
{
    int how = 0;
    while (waitpid(l->pids[rank], &how, WNOHANG) == 0) {
        if (atomic_load(&l->job->failure) && seconds_now() > kill_after)
            kill(l->pids[rank], SIGKILL);
        usleep(1000);
    }
    return how;
}

/* Only the parent, rank 0, knows how a process died: it replaces that failure's
 * text. */
static void explain_death(struct local *l, unsigned rank, int how)
{
    char text[COMM_DEATH_TEXT];
    comm_print_death(text, rank, how);
    if (how) record_failure(l, ERR_RANK, (int)rank, text);
    struct failure *f = atomic_load(&l->job->failure);
    if (f && f->died == (int)rank) snprintf(f->text, sizeof f->text, "%s", text);
}

enum status job_close(struct local *l, struct error *err)
{
    double kill_after = seconds_now() + JOB_PATIENCE;
    for (unsigned r = 1; r < l->size; r++)
        explain_death(l, r, wait_for_child(l, r, kill_after));
    enum status st = OK;
    const struct failure *f = atomic_load(&l->job->failure);
    if (f) st = fail(err, f->status, "%s", f->text);
    watch_end(&l->watch);
    work_resume();
    job_release(l);
    return st;
}
