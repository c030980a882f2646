/* cold.h - times kernels whose operands are not in the L2 cache: as in a model,
 * where other weights come between. For searches; waits for the GPU. */
#ifndef FERRY_KERNELS_CUDA_COLD_H
#define FERRY_KERNELS_CUDA_COLD_H

#include "kernels/cuda/cuda.h"

struct cold_clock {
    void *timer;
    void *filler; /* twice the cache's bytes; NULL: not enough memory */
    size_t filler_bytes;
};

MUST_CHECK enum status cold_clock_open(struct cold_clock *c, struct error *err);
void cold_clock_close(struct cold_clock *c);

/* Queues the work to time. */
typedef enum status cold_run(const void *context, struct error *err);

/* Seconds of the fastest of as many runs as take 2 ms in total, after one
 * warm-up run; INFINITY if the run fails. */
MUST_CHECK enum status cold_time(const struct cold_clock *c, cold_run *run, const void *context,
                                 double *seconds, struct error *err);

#endif
