/* trial.h - an op with random operands, on the host and on a device. */
#ifndef FERRY_TESTS_GPU_TRIAL_H
#define FERRY_TESTS_GPU_TRIAL_H

#include "kernels/device.h"

struct trial {
    unsigned op;
    enum elem_type elem;
    const struct op_kernel *kernel; /* NULL: the device's op */
    union op_params params;
    struct operand in[MAX_INPUTS], out[MAX_OUTPUTS]; /* on the host; outputs have random contents */
    struct operand device_in[MAX_INPUTS], device_out[MAX_OUTPUTS];
    struct weight_coding coding; /* of a coded input */
    void *host_workspace, *device_workspace;
    double depth; /* largest number of summed numbers */
};

/* An operand of random numbers: INT 0.5 of the largest on average, others about
 * N(0, 1). */
void trial_make(struct trial *t, struct operand *o, enum operand_type type, unsigned num_dims,
                const uint64_t *shape);

/* A coded weight of any encoding; bits are whole bytes if the last dimension is
 * even. */
void trial_make_coded(struct trial *t, struct operand *o, unsigned num_dims, const uint64_t *shape);

/* Uniform in [0, 1), and in [low, high]. */
double random_double(void);
uint64_t random_between(uint64_t low, uint64_t high);
void random_start(uint64_t seed);

/* Element i of an operand as a double. */
double operand_get(const struct trial *t, const struct operand *o, size_t i);
void operand_set(const struct trial *t, struct operand *o, size_t i, double x);

/* Copies all operands to the device; outputs in place on the host are so there,
 * too. A workspace is full of NaN. */
MUST_CHECK enum status trial_upload(struct trial *t, const struct device *d, struct error *err);
MUST_CHECK enum status trial_run(const struct trial *t, const struct device *d, struct error *err);
MUST_CHECK enum status trial_run_host(struct trial *t, struct error *err);
/* Whether it can run again on the same operands: none is changed in place. */
bool trial_can_repeat(const struct trial *t);
/* Releases the device's copies, to upload again; or all memory. */
void trial_release_device(struct trial *t, const struct device *d);
void trial_release(struct trial *t, const struct device *d);

#endif
