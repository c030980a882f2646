/* run.h - carries a program out, call by call, on a device.
 *
 * Ranks talk through the host's memory: on another device, what a collective takes and gives goes
 * through `staging`. */
#ifndef FERRY_TRAIN_RUN_H
#define FERRY_TRAIN_RUN_H

#include "kernels/device.h"
#include "train/program.h"

struct run {
    const struct program *program;
    struct groups *groups;
    const struct device *device;
    const struct op_kernel *kernels; /* [NUM_OPS] of the device */
    /* Where the values of each class lie. Parameters and states are in one region. */
    void *regions[NUM_VALUE_CLASSES];
    void *staging;      /* host memory for the operands of any collective; NULL on the host */
    double *seconds;    /* [num_calls] added up; NULL: nobody wants to know */
    bool check_numbers; /* after each call: the first that makes NaN or infinities is ERR_NUMERIC */
};

MUST_CHECK enum status run_program(const struct run *r, struct error *err);

void *run_data(const struct run *r, value_id id); /* where it lies on the device */

/* Bytes that `staging` must have. */
uint64_t run_staging_bytes(const struct program *p);

/* Whether all elements of a value are finite. */
MUST_CHECK enum status run_is_finite(const struct run *r, value_id id, bool *finite,
                                     struct error *err);

#endif
