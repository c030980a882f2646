/* threads.h - many tasks on a few threads; how a signal, or a failure elsewhere, ends long work. */
#ifndef FERRY_COMMON_THREADS_H
#define FERRY_COMMON_THREADS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/status.h"

/* Runs task(context, index, worker, err) for index 0..num_tasks-1, handed out in order, on
 * num_threads threads (at least 1; the calling one is among them). worker counts them from 0. The
 * first failure (by time) is returned once all threads have stopped; no further task starts after
 * it, nor where work_check fails. */
MUST_CHECK enum status threads_run(unsigned num_threads, size_t num_tasks,
                                   enum status (*task)(void *context, size_t index, unsigned worker,
                                                       struct error *err),
                                   void *context, struct error *err);

unsigned threads_available(void); /* CPUs that this process may use */

/* SIGINT, SIGTERM and SIGHUP set a flag that long work looks at; the second SIGINT ends the process
 * at once, with a line (exit code 130). Those that are ignored when the process starts, as SIGHUP
 * under nohup, stay so. SIGPIPE is ignored. */
void interrupt_install(void);
bool interrupted(void);

/* Another thread has found that this process works for nothing: work_check fails with `why` from
 * now on, until work_resume. The first of several counts. */
void work_stop(const struct error *why);
void work_resume(void);
/* Long work asks it between two steps: OK, or ERR_INTERRUPTED after a signal, or what work_stop was
 * told. work_stopped is for loops that have no way to fail: what they leave undone is thrown away,
 * as the next work_check fails. */
MUST_CHECK enum status work_check(struct error *err);
bool work_stopped(void);

#endif
