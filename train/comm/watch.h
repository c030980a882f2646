/* watch.h - a thread that looks for failures while its rank loads or computes, without a call. */
#ifndef FERRY_TRAIN_COMM_WATCH_H
#define FERRY_TRAIN_COMM_WATCH_H

#include <pthread.h>

#include "common/status.h"

enum { WATCH_MS = 100 }; /* between two looks */

struct watch {
    /* Returns a failure of the job; runs while another thread works. */
    enum status (*look)(void *context, struct error *err);
    void *context;
    void (*stop)(const struct error *why); /* work_stop() of common/threads.h */
    pthread_t thread;
    int end; /* an eventfd that ends it; -1: there is no watch */
};

/* Looks until there is a failure, which it passes to `stop`, or until watch_end(). w must not be
 * moved. If no thread can be created there is no watch, and failures are seen by the next call. */
void watch_start(struct watch *w, enum status (*look)(void *context, struct error *err),
                 void *context, void (*stop)(const struct error *why));
/* Also for a watch that was not started, if its `end` is -1. */
void watch_end(struct watch *w);

#endif
