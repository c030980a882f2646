#include "kernels/cuda/cold.h"

#include <algorithm>

#include "kernels/device.h"

/* Runs between two waits; runs at most; seconds that suffice. */
enum { RUNS = 5, MAX_RUNS = 200 };
#define ENOUGH_SECONDS 2e-3

static void make_filler(struct cold_clock *c)
{
    int device = 0, bytes = 0;
    if (cudaGetDevice(&device) || cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device) ||
        bytes <= 0)
        return;
    c->filler_bytes = 2 * (size_t)bytes;
    if (cudaMalloc(&c->filler, c->filler_bytes)) c->filler = NULL;
    (void)cudaGetLastError();
}

enum status cold_clock_open(struct cold_clock *c, struct error *err)
{
    *c = {};
    TRY(cuda_timers.create(&c->timer, 2 * RUNS, err));
    make_filler(c);
    return OK;
}

void cold_clock_close(struct cold_clock *c)
{
    (void)cudaFree(c->filler);
    cuda_timers.free(c->timer);
}

static enum status fill_cache(const struct cold_clock *c, struct error *err)
{
    if (!c->filler) return OK;
    return cuda_status("a search", cudaMemsetAsync(c->filler, 0, c->filler_bytes, cuda_stream),
                       err);
}

/* Times RUNS runs: adds them to *total, and keeps the fastest. */
static enum status time_runs(const struct cold_clock *c, cold_run *run, const void *context,
                             double *total, double *fastest, struct error *err)
{
    for (int i = 0; i < RUNS; i++) {
        TRY(fill_cache(c, err));
        TRY(cuda_timers.mark(c->timer, 2 * i, err));
        TRY(run(context, err));
        TRY(cuda_timers.mark(c->timer, 2 * i + 1, err));
    }
    TRY(cuda_status("a search", cudaStreamSynchronize(cuda_stream), err));
    for (int i = 0; i < RUNS; i++) {
        double one;
        TRY(cuda_timers.seconds(c->timer, 2 * i, 2 * i + 1, &one, err));
        *total += one;
        *fastest = std::min(*fastest, one);
    }
    return OK;
}

enum status cold_time(const struct cold_clock *c, cold_run *run, const void *context,
                      double *seconds, struct error *err)
{
    double total = 0, fastest = INFINITY;
    *seconds = INFINITY;
    TRY(run(context, err));
    for (int runs = 0; runs < MAX_RUNS && total < ENOUGH_SECONDS; runs += RUNS)
        TRY(time_runs(c, run, context, &total, &fastest, err));
    *seconds = fastest;
    return OK;
}
