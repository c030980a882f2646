/* run.h - carries a program out, call by call, on a device.
 *
 * A program that runs many times can be run as *graphs* where the device has them: all calls
 * between two that wait for the host are queued as one. The first run is made without them. */
#ifndef FERRY_TRAIN_ENGINE_RUN_H
#define FERRY_TRAIN_ENGINE_RUN_H

#include "kernels/device.h"
#include "train/engine/collectives.h"

struct run {
    const struct program *program;
    struct collectives *collectives;
    const struct device *device;
    const struct op_kernel *kernels; /* [NUM_OPS] of the device */
    /* Where the values of each class lie. Parameters and states are in one region. */
    void *regions[NUM_VALUE_CLASSES];
    double *seconds;    /* [num_calls] added up, by the device's timers; NULL: none are wanted */
    bool check_numbers; /* after each call: the first that makes NaN or infinities is ERR_NUMERIC */
    struct graphs *graphs; /* run.c's; NULL: none */
};

/* Clocks and checks of numbers go without graphs. */
MUST_CHECK enum status run_program(const struct run *r, struct error *err);

/* From the second run on; run_release_graphs before memory is released. */
void run_use_graphs(struct run *r);
void run_release_graphs(struct run *r);
/* How many there are now; *refused: why there are none, or not all; NULL. */
unsigned run_count_graphs(const struct run *r, const char **refused);

void *run_data(const struct run *r, value_id id); /* where it lies on the device */

/* Whether all elements of a value are finite. */
MUST_CHECK enum status run_is_finite(const struct run *r, value_id id, bool *finite,
                                     struct error *err);

#endif
