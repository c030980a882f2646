/* threads.h - many tasks on a few threads, ended by the first failure or by SIGINT. */
#ifndef FERRY_COMMON_THREADS_H
#define FERRY_COMMON_THREADS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/status.h"

/* Runs task(context, index, worker, err) for index 0..num_tasks-1, handed out in order, on
 * num_threads threads (at least 1; the calling one is among them). worker counts them from 0. The
 * first failure (by time) is returned once all threads have stopped; no further task starts after
 * it, nor after an interrupt (ERR_INTERRUPTED). */
MUST_CHECK enum status threads_run(unsigned num_threads, size_t num_tasks,
                                   enum status (*task)(void *context, size_t index, unsigned worker,
                                                       struct error *err),
                                   void *context, struct error *err);

unsigned threads_available(void); /* CPUs that this process may use */

/* SIGINT, SIGTERM and SIGHUP set a flag that long work looks at; the second SIGINT ends the process
 * at once (exit code 130). Those that are ignored when the process starts, as SIGHUP under nohup,
 * stay so. SIGPIPE is ignored. */
void interrupt_install(void);
bool interrupted(void);

#endif
