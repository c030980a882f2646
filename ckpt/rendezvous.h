/* rendezvous.h - several processes, on one host or many, fill one staging
 * folder.
 *
 * They communicate by files in that folder only, on a shared file system:
 *
 *   .ferry-lock        of rank 0, which creates and publishes the folder
 *                      (publish.h)
 *   .ferry-lock-R      of rank R: "at work"; "done N": its files are on disk,
 *                      its journal has N bytes; or "failed: WHY"
 *   .ferry-journal[-R] of rank 0, of rank R
 *
 * - A rank above 0 waits until rank 0 is at work on the same work (lock.h),
 *   writes its files, and waits until the destination exists.
 * - Rank 0 waits until all other ranks are done. It decides whether files of an
 *   interrupted run are continued or discarded (publish.h).
 * - A rank that dies may be started again by the same command within the
 *   timeout; it continues from its journal, like a later run of all ranks.
 * - A rank that fails ends all ranks.
 * - Files that a network file system shows late are waited for. */
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
    bool quiet; /* does not print the awaited ranks */
    /* Whether this run published the destination; run NULL: whether it has the
     * contents of this plan. */
    bool (*is_there)(const char *unit_folder, const char *run, const char *plan);

    /* set by rendezvous_init */
    const char *work;                /* identifies the job; equal in all its ranks */
    const char *final_lock;          /* the path of rank 0's lock after its rename */
    const char **locks, **journals;  /* [size] */
    struct rendezvous_other *others; /* [size], other ranks as last seen */
    struct lock *lock;               /* this rank's lock, if it is above 0 and has files to write */
    char run[17];                    /* rank 0's run, in ranks above 0, after rendezvous_join() */
};

/* Sets the marked members. Call it before publish_begin(). */
void rendezvous_init(struct rendezvous *r);

/* Called first by a rank above 0: waits for rank 0 and takes its own lock.
 * *left: LEFT_WAITING if an earlier run of this rank finished its files,
 * LEFT_NOTHING if rank 0 has published, else LEFT_SHARE. ERR_RANK if a rank
 * failed or the timeout passed; ERR_EXISTS if another process is this rank. */
enum rendezvous_left { LEFT_SHARE, LEFT_WAITING, LEFT_NOTHING };
MUST_CHECK enum status rendezvous_join(struct rendezvous *r, enum rendezvous_left *left,
                                       struct error *err);
/* Called by a rank above 0 with its files on disk: marks itself done; returns
 * when the destination exists. */
MUST_CHECK enum status rendezvous_wait_published(struct rendezvous *r, struct error *err);
/* Called by a rank above 0 that fails or stops waiting; why: written to its
 * lock. */
void rendezvous_leave(struct rendezvous *r, const char *why);

/* Called by each interrupted rank after it released its lock: waits up to a
 * second for the other ranks to release theirs, since a launcher kills all
 * processes when the first ends. */
void rendezvous_end_together(const struct rendezvous *r);

/* Called by each rank during its work (executor_options.keep_going): ERR_RANK
 * or ERR_EXISTS if another rank failed or started over, or another process is
 * this rank. */
MUST_CHECK enum status rendezvous_keep_going(void *rendezvous, struct error *err);
/* The last check of rendezvous_keep_going() alone: whether another process is
 * this rank (executor_options.is_ours). */
MUST_CHECK enum status rendezvous_is_ours(void *rendezvous, struct error *err);

/* Called by rank 0 with its files on disk: returns when all ranks are done and
 * all files of the plan have their sizes. ERR_RANK names the rank and its
 * message. */
MUST_CHECK enum status rendezvous_wait_ranks(struct rendezvous *r, const struct plan *p,
                                             struct error *err);

#endif
