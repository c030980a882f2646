/* cold.h - how long kernels take whose operands are not in the second-level cache: as in a model,
 * whose other weights came in between. For searches; the GPU is waited for. */
#ifndef FERRY_KERNELS_CUDA_COLD_H
#define FERRY_KERNELS_CUDA_COLD_H

#include "kernels/cuda/cuda.h"

struct cold_clock {
    void *timer;
    void *filler; /* twice as many bytes as the cache has; NULL: there is no memory for it */
    size_t filler_bytes;
};

MUST_CHECK enum status cold_clock_open(struct cold_clock *c, struct error *err);
void cold_clock_close(struct cold_clock *c);

/* Queues what is timed. */
typedef enum status cold_run(const void *context, struct error *err);

/* Seconds of the fastest run, of as many as take 2 ms together, behind one that is not timed;
 * INFINITY where it fails. */
MUST_CHECK enum status cold_time(const struct cold_clock *c, cold_run *run, const void *context,
                                 double *seconds, struct error *err);

#endif
