/* run.h - runs a program, call by call, on a device.
 *
 * A program that runs many times can run as *graphs*, if the device has them:
 * calls between two that wait for the host are queued as one. The first run is
 * without graphs. */
#ifndef FERRY_TRAIN_ENGINE_RUN_H
#define FERRY_TRAIN_ENGINE_RUN_H

#include "kernels/device.h"
#include "train/engine/collectives.h"

struct run {
    const struct program *program;
    struct collectives *collectives;
    const struct device *device;
    const struct op_kernel *kernels; /* [NUM_OPS] of the device */
    /* Memory of each class. Parameters and states share a region; unused
     * classes have none. */
    void *regions[NUM_VALUE_CLASSES];
    double *seconds;       /* [num_calls] sums by the device's timers; NULL: not measured */
    bool check_numbers;    /* checks outputs after each call; ERR_NUMERIC: NaN or infinity */
    struct graphs *graphs; /* run.c's; NULL: none */
};

/* Collective. Records the graphs of the next run, if it uses graphs.
 * run_program() does so itself, unless ranks run their programs one after the
 * other, as pipeline stages do. */
MUST_CHECK enum status run_prepare(const struct run *r, struct error *err);
/* Timers and checks of numbers turn graphs off. */
MUST_CHECK enum status run_program(const struct run *r, struct error *err);
/* The same without the wait at its end, for which call run_wait(). */
MUST_CHECK enum status run_start(const struct run *r, struct error *err);

/* Queues calls [first, end), without graphs or timers; run_wait() waits for
 * them. */
MUST_CHECK enum status run_queue(const struct run *r, size_t first, size_t end, struct error *err);
MUST_CHECK enum status run_wait(const struct run *r, struct error *err);

/* Uses graphs from the second run on. Call run_release_graphs() before
 * releasing memory. */
void run_use_graphs(struct run *r);
void run_release_graphs(struct run *r);
/* Number of graphs; *refused: why the device could not record all, or NULL. */
unsigned run_count_graphs(const struct run *r, const char **refused);

void *run_data(const struct run *r, value_id id); /* its address on the device */

/* Whether all elements of a value are finite. */
MUST_CHECK enum status run_is_finite(const struct run *r, value_id id, bool *finite,
                                     struct error *err);

#endif
