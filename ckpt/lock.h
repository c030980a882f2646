/* lock.h - a file that says which process is at work in a folder, and that it still is.
 *
 * A record of LOCK_BYTES bytes, written in place:
 *
 *     HOST PID START SCOPE RUN BEAT SINCE\n    START as in proc(5), field 22; SCOPE: boot and
 * process namespace; RUN: 16 hex digits, who shares the work has the same; BEAT grows each second
 * while the process lives; SINCE: when it took the lock, in seconds since 1970 WORK\n what is done,
 * as one line of text STATE\n                            "at work", or how it ended; then blanks
 * and a line end
 *
 * Whether a process of our own host and scope lives, the system says. One of another host lives if
 * its beat goes on: clocks are not compared, and what a network file system shows late costs time
 * only. */
#ifndef FERRY_CKPT_LOCK_H
#define FERRY_CKPT_LOCK_H

#include <stdbool.h>

#include "common/arena.h"
#include "common/status.h"

enum { LOCK_BYTES = 1024, LOCK_PATIENCE = 30 /* seconds without a beat, and it is dead */ };

enum lock_life {
    LOCK_FREE,   /* there is none, or its process is dead */
    LOCK_UNSURE, /* of another host, and not watched for long enough */
    LOCK_HELD,
};

/* What a lock says. */
struct lock_record {
    char host[256], scope[64], run[17], work[160], state[480];
    long pid;
    unsigned long long start, beat, since; /* since 0: not known */
};

/* One who looks at a lock now and then; begin with zeros. patience 0 is LOCK_PATIENCE. */
struct lock_watch {
    struct lock_record record;
    bool found;       /* there is a lock */
    int error_number; /* why it cannot be read; else 0 */
    unsigned patience, unchanged;
    bool seen_beating;
    double last_look;
};

/* In which process numbers mean something: this boot of this machine, this namespace. Letters,
 * digits and dashes. */
void lock_own_scope(char scope[64]);

bool lock_is_same_process(const struct lock_record *a, const struct lock_record *b);
/* Looks once. A lock that says "ended" or "failed" is free. */
enum lock_life lock_look(struct lock_watch *w, const char *path);
/* Looks until it is sure, which may take `patience` seconds. ERR_INTERRUPTED; ERR_IO where it
 * cannot be read. */
MUST_CHECK enum status lock_watch_until_sure(struct lock_watch *w, const char *path,
                                             enum lock_life *life, struct error *err);

/* " since 2026-11-22 14:02:11 UTC", for a message; "" where that is not known. In the arena. */
const char *lock_since(struct arena *a, const struct lock_record *r);

/* Whether what was seen to be free is what is there. */
bool lock_is_still_free(const struct lock_watch *w, const char *path);

struct lock; /* of this process; a thread of its own keeps it beating */

/* Takes the lock `name` in a folder, which may be renamed afterwards. w: what was seen of it, and
 * not held. ERR_EXISTS "busy" where another was quicker. run and work as above; run may be NULL:
 * a new one. */
MUST_CHECK enum status lock_take(struct lock **out, const char *folder, const char *name,
                                 const struct lock_watch *w, const char *run, const char *work,
                                 struct error *err);
const char *lock_run(const struct lock *l);
const char *lock_state(const struct lock *l);
/* Whether another has taken it for dead, and works on. */
bool lock_is_lost(struct lock *l);
void lock_say(struct lock *l, const char *state);
/* Lets go of it; the file stays, with this state if it is not NULL. NULL l is allowed. */
void lock_drop(struct lock *l, const char *state);

#endif
