/* subprocess.h - a request carried out in a process of its own, so that the caller never has a GPU
 * open: processes that are forked behind that cannot use one, and a request may fork its ranks.
 *
 * What is visited comes through a socket and is visited in the caller; batches are asked for in
 * both, so that the state behind them is the same. */
#ifndef FERRY_TRAIN_LOOP_SUBPROCESS_H
#define FERRY_TRAIN_LOOP_SUBPROCESS_H

#include "train/loop/engine.h"

MUST_CHECK enum status apart_forward(const struct forward_request *q,
                                     enum status (*run)(const struct forward_request *q,
                                                        struct error *err),
                                     struct error *err);
MUST_CHECK enum status apart_generate(const struct generate_request *q,
                                      enum status (*run)(const struct generate_request *q,
                                                         struct error *err),
                                      struct error *err);

#endif
