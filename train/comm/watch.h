/* watch.h - a thread that looks for failures of the job while its rank makes no
 * call. */
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

/* Looks until a failure, which it passes to `stop`, or watch_end(). w must not
 * move. If no thread can be created, the rank's next call finds failures. */
void watch_start(struct watch *w, enum status (*look)(void *context, struct error *err),
                 void *context, void (*stop)(const struct error *why));
/* w->end -1: there is no watch. */
void watch_end(struct watch *w);

#endif
