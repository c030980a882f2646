/* watch.h - a thread that looks around while its rank loads or computes, and calls nothing. */
#ifndef FERRY_TRAIN_COMM_WATCH_H
#define FERRY_TRAIN_COMM_WATCH_H

#include <pthread.h>

#include "common/status.h"

enum { WATCH_MS = 100 }; /* between two looks */

struct watch {
    /* Whether all is well; another thread may be at work. */
    enum status (*look)(void *context, struct error *err);
    void *context;
    void (*stop)(const struct error *why); /* work_stop() of common/threads.h */
    pthread_t thread;
    int end; /* an eventfd that ends it; -1: there is no watch */
};

/* Looks until something is wrong, which it tells `stop`, or until watch_end. w stays where it is.
 * Where the system gives no thread there is no watch: failures are seen by the next call. */
void watch_start(struct watch *w, enum status (*look)(void *context, struct error *err),
                 void *context, void (*stop)(const struct error *why));
/* For a watch that was not started, too, if its end is -1. */
void watch_end(struct watch *w);

#endif
