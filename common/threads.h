/* threads.h - runs many tasks on a few threads; ends long work after a signal or a failure of
 * another process. */
#ifndef FERRY_COMMON_THREADS_H
#define FERRY_COMMON_THREADS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/status.h"

/* Runs task(context, index, worker, err) for index 0..num_tasks-1, in this order, on num_threads
 * threads (at least 1, the calling one included). worker is the thread's number, from 0. Returns
 * the first failure, when all threads have stopped; no task starts after a failure or while
 * work_check() fails. */
MUST_CHECK enum status threads_run(unsigned num_threads, size_t num_tasks,
                                   enum status (*task)(void *context, size_t index, unsigned worker,
                                                       struct error *err),
                                   void *context, struct error *err);

unsigned threads_available(void); /* CPUs that this process may use */
/* The most that --threads may ask of a command that computes: OpenMP ends the process, or crashes,
 * where it cannot start a thread. */
enum { MAX_THREADS = 1024 };

/* Makes SIGINT, SIGTERM and SIGHUP set a flag that long work checks; the second SIGINT ends the
 * process at once, with a line on stderr (exit code 130). Signals that are ignored when the process
 * starts, as SIGHUP under nohup, stay ignored. SIGPIPE is ignored. */
void interrupt_install(void);
bool interrupted(void);
/* While it is held, interrupted() is false and the first signal ends no work: the holder asks
 * interrupt_pending(), and ends by itself. The second one, of any kind, ends the process at once.
 */
bool interrupt_pending(void);
void interrupt_hold(bool held);

/* For a thread that learns that the work is useless: work_check() fails with `why` until
 * work_resume(). Of several calls the first counts. */
void work_stop(const struct error *why);
void work_resume(void);
/* Long work calls it between steps: OK; ERR_INTERRUPTED after a signal; the failure of work_stop().
 * work_stopped() is for loops that cannot return a status: they may stop early, since the next
 * work_check() fails and their results are not used. */
MUST_CHECK enum status work_check(struct error *err);
bool work_stopped(void);

#endif
