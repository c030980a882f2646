/* rendezvous.h - several processes, of one host or of many, fill one staging folder.
 *
 * They meet by files in that folder alone, on a file system that all of them see:
 *
 *   .ferry-lock        rank 0's: it makes the folder (publish.h), and publishes it
 *   .ferry-lock-R      rank R's: "at work"; "done N", its files are on disk and its journal has N
 *                      bytes; or "failed: WHY"
 *   .ferry-journal[-R]
 *
 * A rank above 0 waits until rank 0 is at work on the same (lock.h: run, work), does its share, and
 * waits until the destination is there. Rank 0 waits until all others are done. Who is waited for
 * may die and be run again by the same command, as long as that takes no more than a timeout; what
 * is done of a share is in its journal, also for a later run of all. Rank 0 alone decides whether
 * what an interrupted run has left is continued or discarded (publish.h). A rank that fails ends
 * them all. Files that a network file system shows late are waited for. */
#ifndef FERRY_CKPT_RENDEZVOUS_H
#define FERRY_CKPT_RENDEZVOUS_H

#include "ckpt/plan.h"
#include "ckpt/publish.h"
#include "common/ranks.h"

struct rendezvous {
    struct publishing *publishing; /* checked by publish_check(); for rank 0, begun */
    struct ranks ranks;
    const char *plan; /* its fingerprint */
    unsigned timeout_seconds;
    bool quiet; /* says nothing of whom it waits for */
    /* Whether what is published at the destination is of this run, or, where run is NULL, whether
     * it is what this plan makes. */
    bool (*is_there)(const char *unit_folder, const char *run, const char *plan);

    /* set by rendezvous_init */
    const char *work;                /* the same for all, or they do not belong together */
    const char *final_lock;          /* where rank 0's will be when it has moved its folder */
    const char **locks, **journals;  /* [size] */
    struct rendezvous_other *others; /* [size], what is seen of the other ranks */
    struct lock *lock;               /* of a rank above 0 that has its share left */
    char run[17];                    /* of a rank above 0, from rendezvous_join() on */
};

/* To be called before publish_begin(). */
void rendezvous_init(struct rendezvous *r);

/* A rank above 0, first: waits for rank 0, and takes its own place. *left: what is left to be done,
 * which is less where this rank was done before, or rank 0 has published by now. ERR_RANK;
 * ERR_EXISTS where another process is the same rank. */
enum rendezvous_left { LEFT_SHARE, LEFT_WAITING, LEFT_NOTHING };
MUST_CHECK enum status rendezvous_join(struct rendezvous *r, enum rendezvous_left *left,
                                       struct error *err);
/* A rank above 0, when its share is on disk: says so, and returns OK once the destination is
 * there. */
MUST_CHECK enum status rendezvous_wait_published(struct rendezvous *r, struct error *err);
/* A rank above 0 that fails, or does not wait any longer. */
void rendezvous_leave(struct rendezvous *r, const char *why);

/* Each rank that was interrupted, when it has let go of its lock: waits for at most a second until
 * the others have, too. A launcher kills all once one of them has ended. */
void rendezvous_end_together(const struct rendezvous *r);

/* Each rank while it is at work (executor_options.keep_going): ERR_RANK or ERR_EXISTS where another
 * has failed, has begun anew, or has taken this one's place. */
MUST_CHECK enum status rendezvous_keep_going(void *rendezvous, struct error *err);
/* The last of these alone (executor_options.is_ours). */
MUST_CHECK enum status rendezvous_is_ours(void *rendezvous, struct error *err);

/* Rank 0, when its share is on disk: returns OK once all others are done, and all files of the plan
 * have their sizes. ERR_RANK names the rank, and what it said. */
MUST_CHECK enum status rendezvous_wait_ranks(struct rendezvous *r, const struct plan *p,
                                             struct error *err);

#endif
