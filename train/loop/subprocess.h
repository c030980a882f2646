/* subprocess.h - a request carried out in a subprocess, so that the caller never opens a GPU: a
 * process that is forked after its parent has opened a GPU cannot use one, and a request forks its
 * ranks.
 *
 * Messages come through a socket and outputs through memory that both processes share, and the
 * caller's visitors get them in the caller. `next` is called in both processes, so that the state
 * behind it is the same in both. */
#ifndef FERRY_TRAIN_LOOP_SUBPROCESS_H
#define FERRY_TRAIN_LOOP_SUBPROCESS_H

#include "train/loop/engine.h"

/* run is called in the subprocess. ERR_RANK if the subprocess dies. */
MUST_CHECK enum status subprocess_forward(const struct forward_request *q,
                                          enum status (*run)(const struct forward_request *q,
                                                             struct error *err),
                                          struct error *err);
MUST_CHECK enum status subprocess_generate(const struct generate_request *q,
                                           enum status (*run)(const struct generate_request *q,
                                                              struct error *err),
                                           struct error *err);

#endif
