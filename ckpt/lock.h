/* lock.h - a file that names the process at work in a folder and shows that it
 * is alive.
 *
 * A record of LOCK_BYTES bytes, written in place:
 *
 * 1. the line "HOST PID START SCOPE RUN BEAT SINCE". START: field 22 of
 *    /proc/PID/stat. SCOPE: boot and process namespace. RUN: 16 hex digits
 *    that all ranks of a run share. BEAT: a counter that grows each second
 *    while the process lives. SINCE: seconds since 1970 when it took the lock.
 * 2. the line WORK: a description of the run
 * 3. the line STATE: "at work", or how the run ended
 * 4. blanks up to a line end
 *
 * A process of the same host and scope is looked up in /proc. A process of
 * another host lives if its BEAT changes; clocks are not compared, so a slow
 * network file system only costs time. */
#ifndef FERRY_CKPT_LOCK_H
#define FERRY_CKPT_LOCK_H

#include <stdbool.h>

#include "common/arena.h"
#include "common/status.h"

enum {
    LOCK_BYTES = 1024,
    LOCK_PATIENCE = 30 /* seconds without a beat until it counts as dead */
};

enum lock_life {
    LOCK_FREE,   /* no lock, or its process is dead */
    LOCK_UNSURE, /* of another host, not watched long enough yet */
    LOCK_HELD,
};

/* The contents of a lock. */
struct lock_record {
    char host[256], scope[64], run[17], work[160], state[480];
    long pid;
    unsigned long long start, beat, since; /* since 0: not known */
};

/* Repeated looks at one lock; initialise with zeros. patience 0: LOCK_PATIENCE. */
struct lock_watch {
    struct lock_record record;
    bool found;       /* there is a lock */
    int error_number; /* why it cannot be read; else 0 */
    unsigned patience, unchanged;
    bool seen_beating;
    double last_look;
};

/* This boot of this machine and this process namespace, within which a PID is
 * unique. Letters, digits and dashes. */
void lock_own_scope(char scope[64]);

bool lock_is_same_process(const struct lock_record *a, const struct lock_record *b);
/* Looks once. A lock that says "ended" or "failed" is free. */
enum lock_life lock_look(struct lock_watch *w, const char *path);
/* Looks until *life is not LOCK_UNSURE, for up to `patience` seconds.
 * ERR_INTERRUPTED; ERR_IO if the lock cannot be read. */
MUST_CHECK enum status lock_watch_until_sure(struct lock_watch *w, const char *path,
                                             enum lock_life *life, struct error *err);

/* " since 2026-11-22 14:02:11 UTC", for a message; "" if not known. In the
 * arena. */
const char *lock_since(struct arena *a, const struct lock_record *r);

/* Whether the lock is unchanged since w saw it free. */
bool lock_is_still_free(const struct lock_watch *w, const char *path);

struct lock; /* of this process; a thread increments its beat each second */

/* Takes the lock `name` in a folder, which may be renamed afterwards. w saw the
 * lock free. ERR_EXISTS "busy" if another process took it since. run and work
 * as above; run NULL: a new run. */
MUST_CHECK enum status lock_take(struct lock **out, const char *folder, const char *name,
                                 const struct lock_watch *w, const char *run, const char *work,
                                 struct error *err);
const char *lock_run(const struct lock *l);
const char *lock_state(const struct lock *l);
/* Whether another process took the lock, believing this one dead. */
bool lock_is_lost(struct lock *l);
void lock_say(struct lock *l, const char *state);
/* Releases the lock. The file stays, with this state unless it is NULL. l may
 * be NULL. */
void lock_drop(struct lock *l, const char *state);

#endif
