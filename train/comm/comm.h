/* comm.h - communication between the ranks of a job.
 *
 * Each rank is a process of the same program. All members of a group make all
 * calls on it, in the same order. A *group* is a list of ranks, `index` a
 * rank's place in it. Sums are added in the order of the group, bf16 and f16 in
 * f32, so they do not depend on timing.
 *
 * If a rank fails (comm_fail), ends, or makes a different call (another
 * operation or size), every call of every other rank returns ERR_RANK within
 * seconds, with one message that names rank and cause. After SIGINT it is
 * ERR_INTERRUPTED. In a rank that makes no call, work_check() of
 * common/threads.h fails.
 *
 * One thread at a time may use a communicator. */
#ifndef FERRY_TRAIN_COMM_COMM_H
#define FERRY_TRAIN_COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

enum comm_type { COMM_F32, COMM_F64, COMM_BF16, COMM_F16, COMM_INT32 };
enum comm_reduction { COMM_SUM, COMM_MAX }; /* sums of int32 wrap; a maximum with a NaN is NaN */
enum {
    COMM_SENT_AHEAD = 8 << 20,
    COMM_LOCAL_RANKS = 64, /* the most ranks of `local` */
};

struct comm; /* of one process in one job */

struct comm_group {
    struct comm *comm;
    unsigned size, index;
    const unsigned *ranks; /* [size], of the job */
    void *own;             /* the backend's */
};

/* Most bytes for communication of a rank. all: used; ranks of one host may
 * share it. own: its share; the sum over ranks is the memory of the job. */
struct comm_memory {
    uint64_t all, own;
};

/* A message between two members of a group. */
struct comm_message {
    bool sends;    /* to the peer; else from it */
    unsigned peer; /* its index in the group */
    void *data;    /* [bytes] not changed by sending */
    size_t bytes;
};

struct comm_backend {
    const char *name;
    struct comm_memory (*memory)(const struct comm *c);
    enum status (*group_open)(struct comm_group *g, struct error *err);
    void (*group_close)(struct comm_group *g);
    /* In place; count elements. */
    enum status (*all_reduce)(struct comm_group *g, void *data, size_t count, enum comm_type type,
                              enum comm_reduction reduction, struct error *err);
    /* out[i * bytes..] is in of member i. in may be its own part of out. */
    enum status (*all_gather)(struct comm_group *g, const void *in, void *out, size_t bytes,
                              struct error *err);
    /* out is part `index` of the sum of all in, which have size * count
     * elements. out may be that part of in. */
    enum status (*reduce_scatter)(struct comm_group *g, const void *in, void *out, size_t count,
                                  enum comm_type type, struct error *err);
    /* Sends in_bytes[i] bytes to member i, and receives out_bytes[i] from it;
     * parts are contiguous in member order. ERR_RANK if a member sends another
     * number. */
    enum status (*all_to_all)(struct comm_group *g, const void *in, const size_t *in_bytes,
                              void *out, const size_t *out_bytes, struct error *err);
    /* Sends and receives all messages at the same time: none waits for another,
     * so members may send to each other whatever the size.
     *
     * Messages between two members arrive in the order of sending. Returns when
     * all are received and all sent data may be changed. A send may wait for
     * its receiver, unless earlier messages are received and it has at most
     * COMM_SENT_AHEAD bytes.
     *
     * ERR_RANK if a size differs from what its receiver expects. */
    enum status (*exchange)(struct comm_group *g, const struct comm_message *messages,
                            unsigned count, struct error *err);
    /* The failure that any call would return now (a rank failed, died or was
     * interrupted), or OK. For a rank blocked outside of a collective. */
    enum status (*check)(struct comm *c, struct error *err);
    /* Reports this rank's failure with err's text; then all calls of all ranks
     * fail. */
    void (*fail)(struct comm *c, const struct error *err);
    /* With st OK, returns after all ranks have called it. Rank 0 of forked
     * ranks also waits for their processes. */
    enum status (*close)(struct comm *c, enum status st, struct error *err);
};

struct comm {
    const struct comm_backend *backend;
    unsigned rank, size;
    unsigned host_size; /* ranks on this host, this one included */
    /* Ranks of this host that share CPUs with this one, itself included: 1 if a
     * launcher binds each to its own */
    unsigned cpu_sharers;
    unsigned host_rank; /* its index among the ranks of this host */
    void *own;
};

/* Backend `local`: this process becomes rank 0 and forks ranks 1..size-1, which
 * return from this call, too. size: 1 (no fork) to COMM_LOCAL_RANKS. Call it
 * before any thread starts.
 *
 * Ranks communicate through shared memory and end when rank 0's process does.
 * Another rank ends its process in comm_close(), with its status as exit code.
 * If rank 0 closes with a failure, ranks still computing a second later are
 * killed. */
MUST_CHECK enum status comm_local_open(struct comm *c, unsigned size, struct error *err);

/* Backend `mpi`: ranks started by mpirun or srun. ERR_UNSUPPORTED without MPI.
 */
MUST_CHECK enum status comm_mpi_open(struct comm *c, struct error *err);

/* Opens a group of ranks of the job (copied), this rank included. */
MUST_CHECK enum status comm_group_open(struct comm_group *g, struct comm *c, const unsigned *ranks,
                                       unsigned size, struct error *err);
void comm_group_close(struct comm_group *g);

/* Reports this rank's failure to the others at once; so does comm_close() with
 * a failure. */
void comm_fail(struct comm *c, const struct error *err);

/* st: status of this rank's work; a failure is reported with err's text.
 * Returns the job's first failure, its message in err, or OK. `mpi`: the
 * message is empty on other ranks if rank 0 has it. `local`: returns on rank 0
 * only. */
enum status comm_close(struct comm *c, enum status st, struct error *err);

/* "rank 1 has died: signal 9 (Killed)", or "rank 1 has ended too early: exit
 * code 3". wait_status: from waitpid(). */
enum { COMM_DEATH_TEXT = 128 };
void comm_print_death(char text[COMM_DEATH_TEXT], unsigned rank, int wait_status);

/* A single message: backend->exchange(). */
MUST_CHECK enum status comm_send(struct comm_group *g, unsigned to, const void *data, size_t bytes,
                                 struct error *err);
MUST_CHECK enum status comm_receive(struct comm_group *g, unsigned from, void *data, size_t bytes,
                                    struct error *err);

MUST_CHECK enum status comm_barrier(struct comm_group *g, struct error *err);

/* Collective. Returns the first failure, in member order, to every member, or
 * OK. own: status of this member's work. Another member's text begins with
 * "rank N: ". For failures that the job survives; comm_fail() is for those that
 * end it. */
MUST_CHECK enum status comm_agree(struct comm_group *g, enum status own, struct error *err);

/* "Open MPI v4.1.4". ERR_UNSUPPORTED if this build or host has no MPI. Does not
 * start it. */
MUST_CHECK enum status comm_mpi_version(char *text, size_t room, struct error *err);

/* CPU threads of a rank. asked: total for all ranks on its host; 0: number of
 * CPUs. c may be zero: ranks are not open yet. */
unsigned comm_threads(const struct comm *c, unsigned asked);

/* Collective. Sets *any on all members if it is set on one. */
MUST_CHECK enum status comm_any(struct comm_group *g, bool *any, struct error *err);

/* comm_close() at the end of a job. Rank 0 keeps its own message, even if its
 * failure ended the others. */
enum status comm_end(struct comm *c, enum status st, struct error *err);

#endif
