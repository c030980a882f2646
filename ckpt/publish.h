/* publish.h - a destination appears complete, or not at all.
 *
 * Files are written to a staging folder, .NAME.ferry-partial, beside the
 * destination; one rename moves it into place when it is complete and on disk.
 *
 * - The *unit* is the destination folder itself, or a part of it (iter_0000010
 *   of an existing root, whose other parts stay untouched).
 * - Root files (a tracker, an index) are written last, each replaced by a
 *   rename.
 * - An empty destination that cannot be renamed over, as a mount point or below
 *   a parent without write permission, stays: staging is inside, and its
 *   entries move up one by one, last the one that makes it a model
 *   (publish_options.last_entry).
 *
 * A lock in the staging folder (lock.h) keeps a second run out: ERR_EXISTS
 * "busy" while its process lives. The staging folder of an interrupted run is
 *
 * - continued by a run of the same work, even if it ended between the rename
 *   and the root files;
 * - refused by a run of other work (ERR_EXISTS) if a journal has a finished
 *   task;
 * - discarded with the option restart, by other work with overwrite, or if no
 *   task is finished.
 *
 * Names that begin with ".ferry-" are locks and journals, and are removed from
 * the destination. */
#ifndef FERRY_CKPT_PUBLISH_H
#define FERRY_CKPT_PUBLISH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/lock.h"
#include "common/arena.h"
#include "common/status.h"

/* A small file of the root, beside the unit: text, or a link if link is not
 * NULL. */
struct root_file {
    const char *name;
    const void *bytes;
    size_t num_bytes;
    const char *link; /* the target of a symbolic link of this name */
};

/* A folder that will be replaced. */
struct publish_replaced {
    const char *folder; /* NULL: none */
    size_t num_files;
    uint64_t bytes;
};

/* Sets *out to the contents of a folder to be removed and replaced. ERR_EXISTS
 * if it must not be removed. */
typedef enum status publish_may_replace(void *context, const char *folder,
                                        struct publish_replaced *out, struct error *err);

struct publish_options {
    publish_may_replace *may_replace; /* NULL: only empty folders are replaced */
    /* Whether a folder holds the result of this work. NULL: never. */
    bool (*is_made)(void *context, const char *unit_folder);
    void *context;       /* for both functions */
    const char *work;    /* identifies the run, in one line */
    const char *command; /* the command line of the run; NULL: not known */
    bool overwrite;      /* replace the destination, discard an interrupted run of other work */
    bool restart;        /* discard an interrupted run of any work */
    bool resume;         /* a complete destination is a success */
    bool joins;          /* a rank above 0: rank 0 decides all of this */
    unsigned patience;   /* with a lock of another host, as in lock.h */
    /* For a root of units: globs (NULL at the end), one of which must match a
     * name in the root; and the title of the format, as in "holds no TITLE
     * checkpoint". */
    const char *const *root_signs;
    const char *root_title;
    const char *last_entry; /* makes the folder a checkpoint, moved last; NULL: none */
};

/* The staging folder of an interrupted run. */
struct publish_left {
    bool found; /* a journal has a finished task */
    bool same_work;
    uint64_t bytes;             /* written by finished tasks */
    const char *work, *command; /* of that run; NULL: not known */
};

struct publishing {
    struct arena *arena;
    const char *destination;
    const char *unit;        /* NULL: the destination itself */
    const char *staging;     /* the staging folder, which is renamed */
    const char *folder;      /* where the unit's files go, or are (finished) */
    const char *unit_folder; /* where these files end up */
    const char *final;       /* the path that staging is renamed to */
    const char *old_parent;  /* the nearest parent of final that existed before publish_begin() */
    bool unit_in_root;       /* the root exists: staging is the unit */
    bool stays;              /* the destination stays: staging is inside, its entries move up */
    struct publish_options options;
    struct publish_replaced replaces;
    struct publish_left left;
    bool durable, moved;
    bool continues; /* takes over the staging folder of an interrupted run */
    /* An interrupted run of the same work moved everything but root files into
     * place: only publish_begin() and publish_commit() are left. */
    bool finished;
    bool complete;     /* the destination is the result of this work */
    struct lock *lock; /* from publish_begin() on */
};

extern const char publish_lock[], publish_journal[]; /* their names in the staging folder */

/* Whether a name is a lock, a journal or a temporary file of one: not
 * published. */
bool publish_is_private(const char *name);

/* The destination or its nearest existing parent, to ask for free space. In the
 * arena. */
const char *publish_existing_parent(struct arena *a, const char *destination);

/* Checks the destination without changing anything. ERR_EXISTS: it (or unit, if
 * not NULL) exists, is not empty and may not be replaced, or the root is not a
 * root of such units. ERR_USAGE: one of source and destination lies in the
 * other. Sets p->left, but does not refuse an interrupted run: publish_begin()
 * does. */
MUST_CHECK enum status publish_check(struct publishing *p, struct arena *a, const char *destination,
                                     const char *unit, const char *source,
                                     const struct publish_options *o, struct error *err);
/* Whether publish_begin() will refuse, or discard, the staging folder of an
 * interrupted run. */
bool publish_refuses_left(const struct publishing *p);
bool publish_discards_left(const struct publishing *p);
/* Creates the staging folder with its lock, or takes over that of an
 * interrupted run of the same work. ERR_EXISTS while a rank of another run
 * works there. One of publish_commit, _abandon and _keep must follow, the last
 * two also after publish_commit failed. */
MUST_CHECK enum status publish_begin(struct publishing *p, bool durable, struct error *err);
/* During the work: ERR_EXISTS if another process took over, believing this one
 * dead. */
MUST_CHECK enum status publish_check_ours(const struct publishing *p, struct error *err);
/* Removes the journals of the staging folder: no run continues it. */
MUST_CHECK enum status publish_forget(struct publishing *p, struct error *err);
/* Bytes on disk of the staging folder that publish_begin() will continue or
 * discard. */
uint64_t publish_staged_bytes(const struct publishing *p);
/* Bytes written by finished tasks, by the journals in the staging folder. */
uint64_t publish_done_bytes(const struct publishing *p);
/* Moves the unit into place, then the root files, in order. */
MUST_CHECK enum status publish_commit(struct publishing *p, const struct root_file *files,
                                      size_t num_files, struct error *err);
/* Removes the staging folder, and parents made for it. */
void publish_abandon(struct publishing *p);
/* Keeps the staging folder for a later run. why: written to the lock. */
void publish_keep(struct publishing *p, const char *why);

#endif
