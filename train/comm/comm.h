/* comm.h - communication between the ranks of a job.
 *
 * Each rank is a process that runs the same program; all calls on a group are made by all its
 * members, in the same order. A *group* is a list of ranks; `index` is one's place in it. Sums are
 * added in the order of the group, in f32 for bf16 and f16, so that they do not depend on time.
 *
 * When a rank fails (comm_fail), ends, or makes another call than the others (another operation or
 * size), every call of all other ranks returns ERR_RANK within seconds, with one message that names
 * the rank and the cause. After SIGINT they return ERR_INTERRUPTED. In a rank that makes no call,
 * work_check() of common/threads.h fails. Only one thread at a time may use a communicator. */
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

/* The most memory for communication of a rank, in bytes. `all`: that it uses; ranks of one host may
 * share it. `own`: its part, so that the sum over all ranks is the memory of the job. */
struct comm_memory {
    uint64_t all, own;
};

/* A message between two members of a group. */
struct comm_message {
    bool sends;    /* to the peer; else it comes from it */
    unsigned peer; /* its index in the group */
    void *data;    /* [bytes] what is sent is not changed */
    size_t bytes;
};

struct comm_backend {
    const char *name;
    struct comm_memory (*memory)(const struct comm *c);
    enum status (*group_open)(struct comm_group *g, struct error *err);
    void (*group_close)(struct comm_group *g);
    /* In place, `count` elements. */
    enum status (*all_reduce)(struct comm_group *g, void *data, size_t count, enum comm_type type,
                              enum comm_reduction reduction, struct error *err);
    /* out[i * bytes..] is `in` of member i. in may lie at its place in out. */
    enum status (*all_gather)(struct comm_group *g, const void *in, void *out, size_t bytes,
                              struct error *err);
    /* out is part `index` of the sum of all members' in: count elements of size * count. out may
     * lie at its place in in. */
    enum status (*reduce_scatter)(struct comm_group *g, const void *in, void *out, size_t count,
                                  enum comm_type type, struct error *err);
    /* Member i gets in_bytes[i] bytes of in. in and out are the members' parts one after the other.
     * out_bytes are the bytes expected from each: ERR_RANK if one sends another number. */
    enum status (*all_to_all)(struct comm_group *g, const void *in, const size_t *in_bytes,
                              void *out, const size_t *out_bytes, struct error *err);
    /* Messages that go on at the same time: none waits for another, so members may send to one
     * another at once, whatever the size. From one member to another they arrive in the order in
     * which they are sent. It returns when all have come and all that is sent may be changed again:
     * that may wait until it is received, unless earlier messages were received and this one has at
     * most COMM_SENT_AHEAD bytes. ERR_RANK if a message has another size than its receiver expects.
     */
    enum status (*exchange)(struct comm_group *g, const struct comm_message *messages,
                            unsigned count, struct error *err);
    /* The failure that any call would return now (a rank failed, died or was interrupted), or OK.
     * For a rank that is blocked outside of a collective. */
    enum status (*check)(struct comm *c, struct error *err);
    /* Reports this rank's failure, with err's text; then the calls of all ranks fail. */
    void (*fail)(struct comm *c, const struct error *err);
    /* With st OK it returns after all ranks have called it. A rank that forked others also waits
     * for their processes. */
    enum status (*close)(struct comm *c, enum status st, struct error *err);
};

struct comm {
    const struct comm_backend *backend;
    unsigned rank, size;
    unsigned host_size; /* ranks on this host, this one included */
    /* Ranks of this host that may run on the CPUs of this one: 1 if a launcher binds each to its
     * own */
    unsigned cpu_sharers;
    unsigned host_rank; /* its index among the ranks of this host */
    void *own;
};

/* `local`: this process becomes rank 0 and forks ranks 1..size-1, which return from this call, too.
 * Call it before any thread is started. size: 1 (nothing is forked) to COMM_LOCAL_RANKS. A rank
 * other than 0 ends its process in comm_close(), with its status as exit code. Ranks communicate
 * through shared memory and end when rank 0's process does. Ranks that still compute a second after
 * rank 0 has called comm_close() with a failure are killed. */
MUST_CHECK enum status comm_local_open(struct comm *c, unsigned size, struct error *err);

/* `mpi`: the ranks that mpirun or srun started. ERR_UNSUPPORTED if this build has no MPI. */
MUST_CHECK enum status comm_mpi_open(struct comm *c, struct error *err);

/* Opens the group of these ranks of the job (copied), which include this one. */
MUST_CHECK enum status comm_group_open(struct comm_group *g, struct comm *c, const unsigned *ranks,
                                       unsigned size, struct error *err);
void comm_group_close(struct comm_group *g);

/* Reports this rank's failure to the others at once; comm_close with a failure does so, too. */
void comm_fail(struct comm *c, const struct error *err);

/* st: the status of this rank's work; a failure is reported to the others with err's text. Returns
 * the first failure of any rank, with its message in err, or OK. `mpi`: the message is empty on
 * other ranks if rank 0 has it. `local`: does not return on other ranks than 0. */
enum status comm_close(struct comm *c, enum status st, struct error *err);

/* "rank 1 has died: signal 9 (Killed)", or "rank 1 has ended too early: exit code 3". wait_status
 * is what waitpid() gives. */
enum { COMM_DEATH_TEXT = 128 };
void comm_print_death(char text[COMM_DEATH_TEXT], unsigned rank, int wait_status);

/* One message alone: backend->exchange(). */
MUST_CHECK enum status comm_send(struct comm_group *g, unsigned to, const void *data, size_t bytes,
                                 struct error *err);
MUST_CHECK enum status comm_receive(struct comm_group *g, unsigned from, void *data, size_t bytes,
                                    struct error *err);

MUST_CHECK enum status comm_barrier(struct comm_group *g, struct error *err);

/* Of members that all make this call, each with the status of its own work: the first failure, in
 * their order, on all of them, or OK. The text of another member's begins with "rank N: ". For
 * failures that the job survives; comm_fail() is for those that end it. */
MUST_CHECK enum status comm_agree(struct comm_group *g, enum status own, struct error *err);

/* CPU threads of a rank: `asked` are of all ranks on its host together, 0: as many as there are
 * CPUs. c may be zero: the ranks are not open yet. */
unsigned comm_threads(const struct comm *c, unsigned asked);

/* Whether any member says so. */
MUST_CHECK enum status comm_any(struct comm_group *g, bool *any, struct error *err);

/* The status of a rank whose work is over, at the end of its job: comm_close(), but a message of
 * rank 0 stays as it is, also where the failure has ended the others. */
enum status comm_end(struct comm *c, enum status st, struct error *err);

#endif
