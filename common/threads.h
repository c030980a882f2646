/* threads.h - runs many tasks on a few threads; ends long work after a signal
 * or a failure of another process. */
#ifndef FERRY_COMMON_THREADS_H
#define FERRY_COMMON_THREADS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/status.h"

/* Runs task(context, index, worker, err) for index 0..num_tasks-1, in this
 * order, on num_threads threads (at least 1, the calling one included). worker
 * is the thread's number, from 0. Returns the first failure once all threads
 * have stopped; no task starts after a failure or while work_check() fails. */
MUST_CHECK enum status threads_run(unsigned num_threads, size_t num_tasks,
                                   enum status (*task)(void *context, size_t index, unsigned worker,
                                                       struct error *err),
                                   void *context, struct error *err);

unsigned threads_available(void); /* CPUs available to this process */
/* The largest --threads of a command that computes: OpenMP ends the process or
 * crashes if it cannot start a thread. */
enum { MAX_THREADS = 1024 };

/* Makes SIGINT, SIGTERM and SIGHUP set a flag that long work checks; the second
 * SIGINT ends the process at once, with a line on stderr (exit code 130).
 * Signals ignored at the start, such as SIGHUP under nohup, stay ignored.
 * Ignores SIGPIPE. */
void interrupt_install(void);
bool interrupted(void);
/* While held, interrupted() is false and the first signal ends no work: the
 * holder asks interrupt_pending() and ends by itself. The second signal of any
 * kind ends the process at once. */
bool interrupt_pending(void);
void interrupt_hold(bool held);

/* For a thread that finds the work useless: work_check() fails with `why` until
 * work_resume(). The first call counts. */
void work_stop(const struct error *why);
void work_resume(void);
/* Long work calls it between steps: OK; ERR_INTERRUPTED after a signal; the
 * failure of work_stop(). Loops without a status call work_stopped() and may
 * stop early: the next work_check() fails, and their results are dropped. */
MUST_CHECK enum status work_check(struct error *err);
bool work_stopped(void);

#endif
