/* A timer is an array of events, one a mark, ended by NULL. */
#include <stdlib.h>

#include "kernels/cuda/cuda.h"
#include "kernels/device.h"

static void timer_free(void *timer)
{
    cudaEvent_t *const events = static_cast<cudaEvent_t *>(timer);
    for (cudaEvent_t *e = events; e && *e; e++)
        (void)cudaEventDestroy(*e);
    free(events);
}

static enum status timer_create(void **timer, size_t num_marks, struct error *err)
{
    cudaEvent_t *const events =
        static_cast<cudaEvent_t *>(calloc(num_marks + 1, sizeof(cudaEvent_t)));
    enum status st = events ? OK : fail(err, ERR_MEMORY, "no memory for a timer");
    for (size_t i = 0; i < num_marks && !st; i++)
        st = cuda_status("a timer", cudaEventCreate(&events[i]), err);
    if (st) timer_free(events);
    *timer = st ? NULL : events;
    return st;
}

static enum status timer_mark(void *timer, size_t mark, struct error *err)
{
    const cudaEvent_t *const events = static_cast<const cudaEvent_t *>(timer);
    return cuda_status("a timer", cudaEventRecord(events[mark], cuda_stream), err);
}

static enum status timer_seconds(void *timer, size_t from, size_t to, double *seconds,
                                 struct error *err)
{
    const cudaEvent_t *const events = static_cast<const cudaEvent_t *>(timer);
    float ms = 0;
    TRY(cuda_status("a timer", cudaEventElapsedTime(&ms, events[from], events[to]), err));
    *seconds = (double)ms * 1e-3;
    return OK;
}

const struct device_timers cuda_timers = {timer_create, timer_free, timer_mark, timer_seconds};
