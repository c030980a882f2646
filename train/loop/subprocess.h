/* subprocess.h - runs a request in a subprocess, so that the caller never opens
 * a GPU: a request forks its ranks, and a process forked after its parent
 * opened a GPU cannot use one.
 *
 * Messages go through a socket, outputs through shared memory; the caller's
 * visitors run in the caller. `next` is called in both processes, so that its
 * state is the same in both. */
#ifndef FERRY_TRAIN_LOOP_SUBPROCESS_H
#define FERRY_TRAIN_LOOP_SUBPROCESS_H

#include "train/loop/engine.h"

/* Calls run in the subprocess. ERR_RANK if the subprocess dies. */
MUST_CHECK enum status subprocess_forward(const struct forward_request *q,
                                          enum status (*run)(const struct forward_request *q,
                                                             struct error *err),
                                          struct error *err);
MUST_CHECK enum status subprocess_generate(const struct generate_request *q,
                                           enum status (*run)(const struct generate_request *q,
                                                              struct error *err),
                                           struct error *err);

#endif
