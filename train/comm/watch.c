#include "train/comm/watch.h"

#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void *watch_main(void *argument)
{
    const struct watch *w = argument;
    struct pollfd end = {.fd = w->end, .events = POLLIN};
    struct error why;
    while (poll(&end, 1, WATCH_MS) == 0)
        if (w->look(w->context, &why)) {
            w->stop(&why);
            break;
        }
    return NULL;
}

static void close_end(struct watch *w)
{
    if (w->end >= 0) (void)close(w->end);
    w->end = -1;
}

/* Blocks signals in the watch: they must interrupt calls of other threads. */
void watch_start(struct watch *w, enum status (*look)(void *context, struct error *err),
                 void *context, void (*stop)(const struct error *why))
{
    sigset_t all, before;
    *w = (struct watch){.look = look, .context = context, .stop = stop};
    w->end = eventfd(0, EFD_CLOEXEC);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (w->end >= 0 && pthread_create(&w->thread, NULL, watch_main, w)) close_end(w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void watch_end(struct watch *w)
{
    const uint64_t one = 1;
    if (w->end >= 0) {
        (void)!write(w->end, &one, sizeof one);
        pthread_join(w->thread, NULL);
    }
    close_end(w);
}
