/* clock.h - time for measurements, by the monotonic clock. */
#ifndef FERRY_COMMON_CLOCK_H
#define FERRY_COMMON_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t nanoseconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Seconds since an arbitrary moment. */
static inline double seconds_now(void)
{
    return 1e-9 * (double)nanoseconds_now();
}

#endif
