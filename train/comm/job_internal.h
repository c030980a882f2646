/* job_internal.h - the processes of a `local` job: shared memory, waits,
 * failures.
 *
 * 1. All shared data lie in one mapping, made before the fork, at the same address
 *    in all processes.
 * 2. A gate is a count that others raise and one rank waits for.
 * 3. A waiting rank waits for one gate, needs one other rank, and records both in
 *    the mapping. A ring of such waits is a deadlock, and each of its ranks finds
 *    it.
 * 4. A waiting rank checks every tenth of a second for a failure, a death, a
 *    deadlock and SIGINT.
 * 5. A thread of each rank, the watch, checks as often during work: it ends long
 *    work (work_stop of common/threads.h) once the job has failed.
 * 6. The first failure is kept; all calls of all ranks return it from then on.
 */
#ifndef FERRY_TRAIN_COMM_JOB_INTERNAL_H
#define FERRY_TRAIN_COMM_JOB_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "train/comm/comm_internal.h"
#include "train/comm/watch.h"

/* The size of a core's own cache, so that data are evicted during writing:
 * another core reads memory or a shared cache several times faster than the
 * writer's cache. */
enum {
    MAX_RANKS = COMM_LOCAL_RANKS,
    HALF_BYTES = 1 << 20,  /* shown to the others at once */
    PIECE_BYTES = 1 << 20, /* of a message from one rank to another */
    PIECES = 8,            /* most pieces of a message that are sent and not yet received */
};

struct gate {
    _Atomic uint32_t count, asleep;
};

/* Messages from one rank to another. */
struct channel {
    _Atomic uint32_t written, read; /* pieces, so far */
    uint64_t message_bytes[PIECES];
    _Alignas(4096) char pieces[PIECES][PIECE_BYTES];
};

struct failure {
    enum status status;
    int died; /* the rank that died, or -1 */
    char text[sizeof((struct error *)NULL)->text];
};

struct job_rank {
    struct failure failure;  /* found by this rank; used if first in the job */
    struct comm_call now;    /* its present call, for messages about deadlocks */
    struct comm_call call;   /* its collective call; the others compare it with theirs */
    uint64_t out[MAX_RANKS]; /* of all_to_all: the bytes for each member */
    struct gate moved;       /* a piece of a message to or from it, by the other rank */
    _Atomic bool has_ended;  /* after comm_close without a failure */
    struct {
        _Atomic uint32_t number; /* odd while it waits; another for every wait */
        _Atomic uint32_t rank, target;
        _Atomic(struct gate *) gate;
    } wait;
};

struct job {
    _Atomic(struct failure *) failure; /* the first one */
    struct job_rank ranks[MAX_RANKS];
    struct gate arrived[MAX_RANKS][MAX_RANKS]; /* [waiting rank][arrived rank] */
};

/* A rank's view of the job, in its own memory. */
struct local {
    struct job *job;
    char (*slots)[2][HALF_BYTES]; /* [size] */
    struct channel *channels;     /* [size * size], by sender, then receiver */
    size_t mapped_bytes;
    unsigned rank, size, spins;
    uint32_t awaited[MAX_RANKS]; /* the counts that arrived[rank] must reach */
    bool compared;               /* the present call with those of the others */
    int alive[MAX_RANKS];        /* pipes that end when that rank does; nothing is written */
    int own_end;                 /* of this rank's pipe */
    pid_t pids[MAX_RANKS];       /* of rank 0's children */
    pthread_mutex_t recording;   /* this rank's failure is being written */
    struct watch watch;
};

MUST_CHECK enum status job_open(struct local **out, unsigned size, struct error *err);
/* For rank 0: waits for its children, and kills those that outlive a failure by
 * JOB_PATIENCE seconds. Returns the job's first failure. */
enum { JOB_PATIENCE = 1 };
enum status job_close(struct local *l, struct error *err);

/* ERR_RANK with the text of the first failure, if any; ERR_INTERRUPTED after an
 * interrupt. */
MUST_CHECK enum status job_check(struct local *l, struct error *err);
/* The same, and looks for dead ranks. For the watch and for waits. */
MUST_CHECK enum status job_check_deaths(struct local *l, struct error *err);
/* Records a failure, the job's if it is the first, and wakes all ranks. Returns
 * the status of job_check(). */
MUST_CHECK enum status job_fail(struct local *l, struct error *err, enum status status,
                                const char *fmt, ...) PRINTF_LIKE(4, 5);

void gate_raise(struct gate *g);
/* Waits until `rank` has raised the gate to target. */
MUST_CHECK enum status gate_wait(struct local *l, struct gate *g, uint32_t target, unsigned rank,
                                 struct error *err);

#endif
