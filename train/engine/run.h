/* run.h - runs a program, call by call, on a device.
 *
 * A program that runs many times can run as *graphs*, if the device has them: the calls between two
 * that wait for the host are queued as one. The first run is made without graphs. */
#ifndef FERRY_TRAIN_ENGINE_RUN_H
#define FERRY_TRAIN_ENGINE_RUN_H

#include "kernels/device.h"
#include "train/engine/collectives.h"

struct run {
    const struct program *program;
    struct collectives *collectives;
    const struct device *device;
    const struct op_kernel *kernels; /* [NUM_OPS] of the device */
    /* Where the values of each class lie. Parameters and states are in one region; classes that the
     * program does not use have none. */
    void *regions[NUM_VALUE_CLASSES];
    double *seconds;       /* [num_calls] added up, by the device's timers; NULL: none are wanted */
    bool check_numbers;    /* checks outputs after each call: NaN or infinity is ERR_NUMERIC */
    struct graphs *graphs; /* run.c's; NULL: none */
};

/* Makes the graphs of the next run, if it is one with graphs: all ranks call it together.
 * run_program() does so itself, unless ranks run their programs one after the other, as pipeline
 * stages do. */
MUST_CHECK enum status run_prepare(const struct run *r, struct error *err);
/* With timers or checks of numbers the run is made without graphs. */
MUST_CHECK enum status run_program(const struct run *r, struct error *err);
/* The same, but for the wait at its end: run_wait() waits. */
MUST_CHECK enum status run_start(const struct run *r, struct error *err);

/* Queues calls [first, end) alone, without graphs or timers; run_wait() waits until they are done.
 */
MUST_CHECK enum status run_queue(const struct run *r, size_t first, size_t end, struct error *err);
MUST_CHECK enum status run_wait(const struct run *r, struct error *err);

/* Uses graphs from the second run on. Call run_release_graphs() before memory is released. */
void run_use_graphs(struct run *r);
void run_release_graphs(struct run *r);
/* The number of graphs; *refused: why some or all could not be made, or NULL. */
unsigned run_count_graphs(const struct run *r, const char **refused);

void *run_data(const struct run *r, value_id id); /* its address on the device */

/* Whether all elements of a value are finite. */
MUST_CHECK enum status run_is_finite(const struct run *r, value_id id, bool *finite,
                                     struct error *err);

#endif
