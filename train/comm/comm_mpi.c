/* comm_mpi.c - collectives over MPI: the library libferry_mpi.so, so that the
 * program runs without MPI. It has its own copies of common/status.c, call.c
 * and reduce.c.
 *
 * 1. Sums are computed here, not by MPI, whose order depends on the data size: so
 *    they have the same bits as with any other backend.
 * 2. Collectives move data through buffers in rounds below 2^31 bytes, MPI's limit.
 * 3. Members exchange a header when a collective call begins; a message begins with
 *    its size. Ranks that wait for each other in different groups, or one in a
 *    message and one in a collective call, wait for ever.
 * 4. A failing rank sends its message to all others. Only opening a group and
 *    closing the job block in MPI: every other wait polls for such a message and
 *    for SIGINT. A pidfd shows the death of a rank on this host; on other hosts
 *    mpirun or srun sees it and ends the job.
 * 5. A thread, the watch, looks for such a message while the rank makes no call.
 *    One thread at a time uses MPI: each function of the backend holds the lock.
 */
#include "train/comm/comm_mpi.h"

#include <mpi.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/memory.h"
#include "train/comm/comm_internal.h"
#include "train/comm/watch.h"

enum {
    TAG_MESSAGE = 1,
    TAG_FAILURE,
    TAG_BYE,
    TAG_GROUP,
    ROUND_BYTES = 8 << 20,     /* of all members together */
    SMALL_BYTES = 4096,        /* up to which every member adds up everything */
    MESSAGE_BYTES = 256 << 20, /* of a message, sent at once */
    PATIENCE = 2,              /* seconds in which a failure reaches the others */
    LAST_WORDS = 30, /* seconds for rank 0, if on this host, to report the failure and end */
};

struct failure {
    enum status status;
    char text[sizeof((struct error *)NULL)->text];
};

/* A message under way to one rank; our caller does not wait for it. */
struct sent {
    MPI_Request request; /* MPI_REQUEST_NULL where there is none */
    char *data;
};

/* Another rank of this host. */
struct peer_process {
    unsigned rank;
    int fd; /* a pidfd: readable once the process has ended */
};

struct mpi {
    MPI_Comm world;
    struct comm_mpi_program program;
    pthread_mutex_t lock; /* of all below, and of MPI */
    struct watch watch;
    struct peer_process *peers; /* [num_peers] */
    unsigned num_peers;
    unsigned rank, size;
    bool has_failed;
    struct failure failure;                         /* the first that this rank knows of */
    char *out, *in;                                 /* what a round sends and gets */
    int *counts, *offsets, *in_counts, *in_offsets; /* [size], of its bytes */
    const void **shares;                            /* [size], what is added up */
    struct sent *sent;                              /* [size] */
};

/* Exchanged by members when a collective call begins. */
struct call_header {
    struct comm_call call;
    uint64_t most; /* of all_to_all: the most bytes from one member to another */
};

/* A round, plus uneven parts and the call headers of very many ranks. */
static size_t buffer_bytes(unsigned size)
{
    return ROUND_BYTES + size * sizeof(struct call_header);
}

static struct mpi *mpi_of(const struct comm_group *g)
{
    return g->comm->own;
}

static struct mpi *lock_mpi(struct mpi *m)
{
    pthread_mutex_lock(&m->lock);
    return m;
}

static void unlock_mpi(struct mpi **m)
{
    pthread_mutex_unlock(&(*m)->lock);
}

/* Holds the lock until the enclosing function returns. */
#define HOLD_LOCK(m) struct mpi *holds __attribute__((cleanup(unlock_mpi), unused)) = lock_mpi(m)

static MPI_Comm comm_of(const struct comm_group *g)
{
    return *(MPI_Comm *)g->own;
}

/* ---- failures ---- */

static bool has_ended(const struct peer_process *peer_process)
{
    struct pollfd p = {.fd = peer_process->fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

/* NULL: it is not on this host. */
static const struct peer_process *process_of(const struct mpi *m, unsigned rank)
{
    for (unsigned i = 0; i < m->num_peers; i++)
        if (m->peers[i].rank == rank) return &m->peers[i];
    return NULL;
}

/* A message to a dead rank never arrives. */
static bool is_dead(const struct mpi *m, unsigned rank)
{
    const struct peer_process *p = process_of(m, rank);
    return p && has_ended(p);
}

/* Gives up after PATIENCE seconds. */
static void send_to_all(struct mpi *m, const void *data, size_t bytes, int tag)
{
    double until = seconds_now() + PATIENCE;
    for (unsigned r = 0; r < m->size; r++) {
        MPI_Request request = MPI_REQUEST_NULL;
        int done = 0;
        if (r == m->rank || is_dead(m, r)) continue;
        MPI_Isend(data, (int)bytes, MPI_BYTE, (int)r, tag, m->world, &request);
        while (!done && seconds_now() < until)
            MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
}

static void set_failure(struct mpi *m, enum status st, const char *text)
{
    if (m->has_failed) return;
    m->has_failed = true;
    m->failure.status = st;
    snprintf(m->failure.text, sizeof m->failure.text, "%s", text);
    send_to_all(m, &m->failure, sizeof m->failure, TAG_FAILURE);
}

/* Reports processes that have ended during the job. */
static void look_for_deaths(struct mpi *m)
{
    for (unsigned i = 0; i < m->num_peers; i++) {
        char text[64];
        if (!has_ended(&m->peers[i])) continue;
        (void)snprintf(text, sizeof text, "rank %u has died", m->peers[i].rank);
        set_failure(m, ERR_RANK, text);
    }
}

static void look_for_failure(struct mpi *m)
{
    int there = 0;
    MPI_Status from;
    if (m->has_failed) return;
    MPI_Iprobe(MPI_ANY_SOURCE, TAG_FAILURE, m->world, &there, &from);
    if (there) {
        m->has_failed = true;
        MPI_Recv(&m->failure, sizeof m->failure, MPI_BYTE, from.MPI_SOURCE, TAG_FAILURE, m->world,
                 MPI_STATUS_IGNORE);
    } else if (m->program.interrupted()) {
        set_failure(m, ERR_INTERRUPTED, "interrupted");
    } else {
        look_for_deaths(m);
    }
}

static enum status check_failure(struct mpi *m, struct error *err)
{
    look_for_failure(m);
    if (!m->has_failed) return OK;
    return fail(err, m->failure.status == ERR_INTERRUPTED ? ERR_INTERRUPTED : ERR_RANK, "%s",
                m->failure.text);
}

static enum status fail_mismatch(struct mpi *m, const struct error *why, struct error *err)
{
    set_failure(m, ERR_RANK, why->text);
    return check_failure(m, err);
}

static enum status check_mpi(int code, struct error *err)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (code == MPI_SUCCESS) return OK;
    MPI_Error_string(code, text, &length);
    return fail(err, ERR_RANK, "MPI: %s", text);
}

/* Called between two polls of MPI. */
static enum status wait_a_little(struct mpi *m, unsigned looks, struct error *err)
{
    if (looks % 16 == 0) sched_yield();
    return looks % 1024 == 0 ? check_failure(m, err) : OK;
}

/* Waits for a request. begun: MPI's code for its start. */
static enum status wait_request(struct mpi *m, int begun, MPI_Request *request, struct error *err)
{
    TRY(check_mpi(begun, err));
    int done = 0;
    for (unsigned looks = 1;; looks++) {
        TRY(check_mpi(MPI_Test(request, &done, MPI_STATUS_IGNORE), err));
        if (done) return OK;
        TRY(wait_a_little(m, looks, err));
    }
}

/* ---- rounds: everybody's m->out to everybody's m->in ---- */

/* Every member sends the same bytes to all. */
static enum status gather_round(const struct comm_group *g, size_t bytes, struct error *err)
{
    struct mpi *m = mpi_of(g);
    MPI_Request r;
    int n = (int)bytes;
    return wait_request(m, MPI_Iallgather(m->out, n, MPI_BYTE, m->in, n, MPI_BYTE, comm_of(g), &r),
                        &r, err);
}

/* Every member sends equal shares, a different one to each. */
static enum status exchange_round(const struct comm_group *g, size_t bytes, struct error *err)
{
    struct mpi *m = mpi_of(g);
    MPI_Request r;
    int n = (int)bytes;
    return wait_request(m, MPI_Ialltoall(m->out, n, MPI_BYTE, m->in, n, MPI_BYTE, comm_of(g), &r),
                        &r, err);
}

/* Every member sends m->counts[i] bytes to member i. */
static enum status uneven_round(const struct comm_group *g, struct error *err)
{
    struct mpi *m = mpi_of(g);
    MPI_Request r;
    return wait_request(m,
                        MPI_Ialltoallv(m->out, m->counts, m->offsets, MPI_BYTE, m->in, m->in_counts,
                                       m->in_offsets, MPI_BYTE, comm_of(g), &r),
                        &r, err);
}

static enum status exchange_headers(const struct comm_group *g, const struct comm_call *call,
                                    uint64_t *most, struct error *err)
{
    struct mpi *m = mpi_of(g);
    struct call_header *mine = (struct call_header *)m->out, *all = (struct call_header *)m->in;
    *mine = (struct call_header){.call = *call, .most = *most};
    TRY(check_failure(m, err));
    TRY(gather_round(g, sizeof *mine, err));
    for (unsigned i = 0; i < g->size; i++) {
        struct error why;
        if (comm_call_compare(m->rank, call, g->ranks[i], &all[i].call, &why))
            return fail_mismatch(m, &why, err);
        if (all[i].most > *most) *most = all[i].most;
    }
    return OK;
}

static enum status begin_collective(const struct comm_group *g, const struct comm_call *call,
                                    struct error *err)
{
    uint64_t most = 0;
    return exchange_headers(g, call, &most, err);
}

/* ---- collectives ---- */

/* Sums n elements of each member, contiguous in m->in. */
static void reduce_shares(const struct comm_group *g, void *out, size_t n,
                          const struct comm_call *call)
{
    struct mpi *m = mpi_of(g);
    for (unsigned i = 0; i < g->size; i++)
        m->shares[i] = m->in + i * n * comm_type_bytes(call->type);
    comm_reduce(out, m->shares, g->size, n, call->type, call->reduction);
}

static enum status reduce_all(const struct comm_group *g, char *data, size_t count,
                              const struct comm_call *call, struct error *err)
{
    struct mpi *m = mpi_of(g);
    size_t bytes = comm_type_bytes(call->type);
    copy(m->out, data, count * bytes);
    TRY(gather_round(g, count * bytes, err));
    reduce_shares(g, data, count, call);
    return OK;
}

/* Member p sums part p, then all gather all parts. */
static enum status reduce_by_parts(const struct comm_group *g, char *data, size_t count,
                                   const struct comm_call *call, struct error *err)
{
    struct mpi *m = mpi_of(g);
    size_t bytes = comm_type_bytes(call->type);
    size_t first = count * g->index / g->size, n = count * (g->index + 1) / g->size - first;
    for (unsigned i = 0; i < g->size; i++) {
        m->offsets[i] = (int)(count * i / g->size * bytes);
        m->counts[i] = (int)(count * (i + 1) / g->size * bytes) - m->offsets[i];
        m->in_offsets[i] = (int)(i * n * bytes);
        m->in_counts[i] = (int)(n * bytes);
    }
    copy(m->out, data, count * bytes);
    TRY(uneven_round(g, err));
    reduce_shares(g, m->out + first * bytes, n, call);
    MPI_Request r;
    TRY(wait_request(m,
                     MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, m->out, m->counts, m->offsets,
                                     MPI_BYTE, comm_of(g), &r),
                     &r, err));
    copy(data, m->out, count * bytes);
    return OK;
}

static enum status all_reduce(struct comm_group *g, void *data, size_t count, enum comm_type type,
                              enum comm_reduction reduction, struct error *err)
{
    HOLD_LOCK(mpi_of(g));
    size_t bytes = comm_type_bytes(type);
    struct comm_call call = comm_call_of(g, COMM_ALL_REDUCE, count * bytes);
    call.type = type, call.reduction = reduction;
    if (g->size == 1) return check_failure(mpi_of(g), err);
    TRY(begin_collective(g, &call, err));
    for (size_t at = 0, n; at < count; at += n) {
        char *part = past(data, at * bytes);
        n = at_most(count - at, ROUND_BYTES / bytes);
        if (n * bytes <= SMALL_BYTES && n * bytes * g->size <= ROUND_BYTES)
            TRY(reduce_all(g, part, n, &call, err));
        else
            TRY(reduce_by_parts(g, part, n, &call, err));
    }
    return OK;
}

static enum status all_gather(struct comm_group *g, const void *in, void *out, size_t bytes,
                              struct error *err)
{
    struct mpi *m = mpi_of(g);
    HOLD_LOCK(m);
    struct comm_call call = comm_call_of(g, COMM_ALL_GATHER, bytes);
    copy(past(out, g->index * bytes), in, bytes);
    if (g->size == 1) return check_failure(m, err);
    TRY(begin_collective(g, &call, err));
    for (size_t at = 0, n; at < bytes; at += n) {
        n = at_most(bytes - at, ROUND_BYTES / g->size);
        copy(m->out, past(in, at), n);
        TRY(gather_round(g, n, err));
        for (unsigned i = 0; i < g->size; i++)
            if (i != g->index) copy(past(out, i * bytes + at), m->in + i * n, n);
    }
    return OK;
}

static enum status reduce_scatter(struct comm_group *g, const void *in, void *out, size_t count,
                                  enum comm_type type, struct error *err)
{
    struct mpi *m = mpi_of(g);
    HOLD_LOCK(m);
    size_t bytes = comm_type_bytes(type), most = ROUND_BYTES / bytes / g->size;
    struct comm_call call = comm_call_of(g, COMM_REDUCE_SCATTER, count * bytes);
    call.type = type;
    if (g->size == 1) copy(out, in, count * bytes);
    if (g->size == 1) return check_failure(m, err);
    TRY(begin_collective(g, &call, err));
    for (size_t at = 0, n; at < count; at += n) {
        n = at_most(count - at, most);
        for (unsigned p = 0; p < g->size; p++)
            copy(m->out + p * n * bytes, past(in, (p * count + at) * bytes), n * bytes);
        TRY(exchange_round(g, n * bytes, err));
        reduce_shares(g, past(out, at * bytes), n, &call);
    }
    return OK;
}

/* ---- all to all ---- */

static enum status check_expected(const struct comm_group *g, const size_t *in_bytes,
                                  const size_t *out_bytes, struct error *err)
{
    struct mpi *m = mpi_of(g);
    copy(m->out, in_bytes, g->size * sizeof *in_bytes);
    TRY(exchange_round(g, sizeof *in_bytes, err));
    const size_t *sent = (const size_t *)m->in;
    for (unsigned i = 0; i < g->size; i++) {
        struct error why;
        if (comm_expect(g->ranks[i], sent[i], m->rank, out_bytes[i], &why))
            return fail_mismatch(m, &why, err);
    }
    return OK;
}

/* Counts and offsets of each share in the round from `at` on. */
static void set_round(const struct comm_group *g, const size_t *bytes, size_t at, size_t most,
                      int *counts, int *offsets)
{
    for (unsigned i = 0; i < g->size; i++) {
        counts[i] = (int)(bytes[i] > at ? at_most(bytes[i] - at, most) : 0);
        offsets[i] = (int)(i * most);
    }
}

static enum status share_round(const struct comm_group *g, const void *in, const size_t *in_bytes,
                               void *out, const size_t *out_bytes, size_t at, size_t most,
                               struct error *err)
{
    struct mpi *m = mpi_of(g);
    set_round(g, in_bytes, at, most, m->counts, m->offsets);
    set_round(g, out_bytes, at, most, m->in_counts, m->in_offsets);
    for (size_t i = 0, share = 0; i < g->size; share += in_bytes[i], i++)
        copy(m->out + i * most, past(in, m->counts[i] ? share + at : 0), (size_t)m->counts[i]);
    TRY(uneven_round(g, err));
    for (size_t i = 0, share = 0; i < g->size; share += out_bytes[i], i++)
        copy(past(out, m->in_counts[i] ? share + at : 0), m->in + i * most,
             (size_t)m->in_counts[i]);
    return OK;
}

static enum status all_to_all(struct comm_group *g, const void *in, const size_t *in_bytes,
                              void *out, const size_t *out_bytes, struct error *err)
{
    HOLD_LOCK(mpi_of(g));
    struct comm_call call = comm_call_of(g, COMM_ALL_TO_ALL, 0);
    uint64_t most = 0;
    for (unsigned i = 0; i < g->size; i++)
        if (in_bytes[i] > most) most = in_bytes[i];
    TRY(exchange_headers(g, &call, &most, err));
    TRY(check_expected(g, in_bytes, out_bytes, err));
    const size_t share = ROUND_BYTES / g->size;
    for (size_t at = 0; at < most; at += share)
        TRY(share_round(g, in, in_bytes, out, out_bytes, at, share, err));
    return OK;
}

/* ---- messages ---- */

/* Waits until the last message sent ahead to this rank is received. */
static enum status finish_sent(struct mpi *m, unsigned rank, struct error *err)
{
    struct sent *s = &m->sent[rank];
    TRY(wait_request(m, MPI_SUCCESS, &s->request, err));
    free(s->data);
    s->data = NULL;
    return OK;
}

static enum status send_ahead(struct mpi *m, unsigned rank, const void *data, size_t bytes,
                              struct error *err)
{
    struct sent *s = &m->sent[rank];
    s->data = malloc(bytes + 1);
    if (!s->data)
        return fail(err, ERR_MEMORY, "no memory for a message of %zu bytes to rank %u", bytes,
                    rank);
    copy(s->data, data, bytes);
    return check_mpi(
        MPI_Isend(s->data, (int)bytes, MPI_BYTE, (int)rank, TAG_MESSAGE, m->world, &s->request),
        err);
}

/* A message under way. */
struct moving {
    const struct comm_message *m;
    unsigned rank; /* the peer */
    MPI_Request request;
    size_t at, under_way; /* bytes done; bytes that the request moves */
    bool done;
};

static enum status begin_send(struct mpi *m, struct moving *x, struct error *err)
{
    const size_t n = at_most(x->m->bytes - x->at, MESSAGE_BYTES);
    struct sent *before = &m->sent[x->rank];
    int done = 1;
    TRY(check_mpi(MPI_Test(&before->request, &done, MPI_STATUS_IGNORE), err));
    if (!done) return OK;
    if (x->m->bytes <= COMM_SENT_AHEAD) {
        TRY(finish_sent(m, x->rank, err));
        x->done = true;
        return send_ahead(m, x->rank, x->m->data, x->m->bytes, err);
    }
    x->under_way = n;
    return check_mpi(MPI_Isend(past(x->m->data, x->at), (int)n, MPI_BYTE, (int)x->rank, TAG_MESSAGE,
                               m->world, &x->request),
                     err);
}

static enum status begin_receive(struct mpi *m, struct moving *x, struct error *err)
{
    const size_t n = at_most(x->m->bytes - x->at, MESSAGE_BYTES);
    int there = 0, sent;
    MPI_Message message;
    MPI_Status status;
    struct error why;
    TRY(check_mpi(MPI_Improbe((int)x->rank, TAG_MESSAGE, m->world, &there, &message, &status),
                  err));
    if (!there) return OK;
    TRY(check_mpi(MPI_Get_count(&status, MPI_BYTE, &sent), err));
    if (comm_expect(x->rank, (uint64_t)sent, m->rank, n, &why)) return fail_mismatch(m, &why, err);
    x->under_way = n;
    return check_mpi(MPI_Imrecv(past(x->m->data, x->at), (int)n, MPI_BYTE, &message, &x->request),
                     err);
}

/* An empty message is a message, too. *moved: something has begun or ended. */
static enum status move_message(struct mpi *m, struct moving *x, bool *moved, struct error *err)
{
    int done = 0;
    if (x->request == MPI_REQUEST_NULL) {
        TRY(x->m->sends ? begin_send(m, x, err) : begin_receive(m, x, err));
        *moved |= x->done || x->request != MPI_REQUEST_NULL;
        return OK;
    }
    TRY(check_mpi(MPI_Test(&x->request, &done, MPI_STATUS_IGNORE), err));
    if (!done) return OK;
    x->at += x->under_way;
    x->done = x->at == x->m->bytes;
    *moved = true;
    return OK;
}

/* Messages of one rank in one direction go one after the other. */
static bool is_next(const struct moving *all, unsigned i)
{
    for (unsigned k = 0; k < i; k++)
        if (!all[k].done && all[k].rank == all[i].rank && all[k].m->sends == all[i].m->sends)
            return false;
    return !all[i].done;
}

static enum status move_all(struct mpi *m, struct moving *all, unsigned count, struct error *err)
{
    unsigned left = count;
    for (unsigned looks = 1; left; looks++) {
        bool moved = false;
        left = 0;
        for (unsigned i = 0; i < count; i++) {
            if (is_next(all, i)) TRY(move_message(m, &all[i], &moved, err));
            left += !all[i].done;
        }
        if (left && !moved) TRY(wait_a_little(m, looks, err));
    }
    return OK;
}

static enum status exchange_messages(struct comm_group *g, const struct comm_message *messages,
                                     unsigned count, struct error *err)
{
    struct mpi *m = mpi_of(g);
    HOLD_LOCK(m);
    if (!count) return OK;
    struct moving *all = must_calloc(count, sizeof *all);
    for (unsigned i = 0; i < count; i++)
        all[i] = (struct moving){
            .m = &messages[i], .rank = g->ranks[messages[i].peer], .request = MPI_REQUEST_NULL};
    enum status st = check_failure(m, err);
    if (!st) st = move_all(m, all, count, err);
    free(all);
    return st;
}

/* ---- the job ---- */

/* The world needs no communicator of its own: making one would wait for failed
 * ranks. */
static bool is_world(const struct comm_group *g)
{
    for (unsigned i = 0; i < g->size; i++)
        if (g->ranks[i] != i) return false;
    return g->size == mpi_of(g)->size;
}

static enum status group_open(struct comm_group *g, struct error *err)
{
    struct mpi *m = mpi_of(g);
    HOLD_LOCK(m);
    MPI_Group all, some;
    g->own = &m->world;
    if (is_world(g)) return check_failure(m, err);
    int *ranks = must_malloc(g->size * sizeof *ranks);
    for (unsigned i = 0; i < g->size; i++)
        ranks[i] = (int)g->ranks[i];
    MPI_Comm *own = must_malloc(sizeof *own);
    MPI_Comm_group(m->world, &all);
    MPI_Group_incl(all, (int)g->size, ranks, &some);
    int code = MPI_Comm_create_group(m->world, some, TAG_GROUP, own);
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    free(ranks);
    g->own = own;
    if (code) free(own);
    return check_mpi(code, err);
}

static void group_close(struct comm_group *g)
{
    struct mpi *m = mpi_of(g);
    HOLD_LOCK(m);
    if (g->own == &m->world) return;
    /* After a failure, not all members may come here. */
    if (!m->has_failed) MPI_Comm_free(g->own);
    free(g->own);
}

static enum status check_job(struct comm *c, struct error *err)
{
    HOLD_LOCK(c->own);
    return check_failure(c->own, err);
}

static void report_failure(struct comm *c, const struct error *why)
{
    struct mpi *m = c->own;
    HOLD_LOCK(m);
    struct error error = *why;
    if (m->size > 1) (void)!fail_in(&error, "rank %u", m->rank);
    look_for_failure(m); /* another rank's failure may be first */
    set_failure(m, why->code, error.text);
}

static enum status meet_at_end(struct comm *c, struct error *err)
{
    struct mpi *m = c->own;
    for (unsigned r = 0; r < m->size; r++)
        TRY(finish_sent(m, r, err));
    unsigned *ranks = must_malloc(m->size * sizeof *ranks);
    for (unsigned r = 0; r < m->size; r++)
        ranks[r] = r;
    struct comm_group all = {
        .comm = c, .size = m->size, .index = m->rank, .ranks = ranks, .own = &m->world};
    struct comm_call call = comm_call_of(&all, COMM_CLOSE, 0);
    enum status st = begin_collective(&all, &call, err);
    free(ranks);
    return st;
}

/* mpirun ends the job once a process ends with a failure. So the others wait
 * for rank 0, which reports the failure: until it knows of it, then until it
 * has ended, so that a busy host loses no output. Returns whether rank 0 knows.
 */
static bool wait_for_rank_0(struct mpi *m)
{
    double until = seconds_now() + PATIENCE;
    int there = m->rank == 0;
    if (m->rank == 0) send_to_all(m, NULL, 0, TAG_BYE);
    while (!there && seconds_now() < until)
        MPI_Iprobe(0, TAG_BYE, m->world, &there, MPI_STATUS_IGNORE);
    if (process_of(m, 0)) until += LAST_WORDS;
    while (there && m->rank && !is_dead(m, 0) && seconds_now() < until)
        (void)poll(NULL, 0, 1);
    return there;
}

/* The watch's look. A thread that holds the lock looks itself. */
static enum status look_for_watch(void *context, struct error *err)
{
    struct mpi *m = context;
    if (pthread_mutex_trylock(&m->lock)) return OK;
    enum status st = check_failure(m, err);
    pthread_mutex_unlock(&m->lock);
    return st;
}

static void mpi_release(struct mpi *m)
{
    pthread_mutex_destroy(&m->lock);
    for (unsigned i = 0; i < m->num_peers; i++)
        close(m->peers[i].fd);
    free(m->peers);
    free(m->out);
    free(m->in);
    free(m->counts);
    free(m->shares);
    free(m->sent);
    free(m);
}

static enum status close_job(struct comm *c, enum status st, struct error *err)
{
    struct mpi *m = c->own;
    watch_end(&m->watch);
    if (!st) st = meet_at_end(c, err);
    if (!st) {
        MPI_Comm_free(&m->world);
        st = check_mpi(MPI_Finalize(), err);
        mpi_release(m);
        return st;
    }
    err->code = st;
    report_failure(c, err);
    bool told = wait_for_rank_0(m) && m->rank;
    /* MPI stays as it is, with its requests and buffers: finalizing would wait. */
    return fail(err, m->failure.status, "%s", told ? "" : m->failure.text);
}

/* Without MPI's own memory. */
static struct comm_memory backend_memory(const struct comm *c)
{
    const uint64_t bytes = 2 * buffer_bytes(c->size);
    return (struct comm_memory){bytes, bytes};
}

static const struct comm_backend mpi = {
    .name = "mpi",
    .memory = backend_memory,
    .group_open = group_open,
    .group_close = group_close,
    .all_reduce = all_reduce,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .all_to_all = all_to_all,
    .exchange = exchange_messages,
    .check = check_job,
    .fail = report_failure,
    .close = close_job,
};

/* Identity of a process, for other processes of its host. */
struct whereabouts {
    uint64_t process_numbers; /* PID namespace: a container may have another */
    int64_t process;
    unsigned rank;
    cpu_set_t cpus; /* that it may run on */
};

static struct whereabouts own_whereabouts(const struct mpi *m)
{
    struct stat space = {.st_ino = 0};
    (void)stat("/proc/self/ns/pid", &space);
    struct whereabouts own = {
        .process_numbers = space.st_ino, .process = getpid(), .rank = m->rank};
    (void)sched_getaffinity(0, sizeof own.cpus, &own.cpus);
    return own;
}

static unsigned count_cpu_sharers(const struct whereabouts *own, const struct whereabouts *all,
                                  unsigned count)
{
    unsigned sharers = 0;
    for (unsigned i = 0; i < count; i++) {
        cpu_set_t both;
        CPU_AND(&both, &own->cpus, &all[i].cpus);
        sharers += CPU_COUNT(&both) > 0 || all[i].rank == own->rank;
    }
    return sharers;
}

static void open_peers(struct mpi *m, const struct whereabouts *all, unsigned count)
{
    const struct whereabouts own = own_whereabouts(m);
    m->peers = must_calloc(count + 1, sizeof *m->peers);
    for (unsigned i = 0; i < count; i++) {
        if (all[i].rank == m->rank || all[i].process_numbers != own.process_numbers) continue;
        int fd = (int)syscall(SYS_pidfd_open, (pid_t)all[i].process, 0);
        if (fd >= 0) m->peers[m->num_peers++] = (struct peer_process){all[i].rank, fd};
    }
}

static void find_host_ranks(struct comm *c, struct mpi *m)
{
    MPI_Comm host;
    int size = 1, rank = 0;
    const struct whereabouts own = own_whereabouts(m);
    MPI_Comm_split_type(m->world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &size);
    MPI_Comm_rank(host, &rank);
    struct whereabouts *all = must_calloc((size_t)size, sizeof *all);
    MPI_Allgather(&own, sizeof own, MPI_BYTE, all, sizeof own, MPI_BYTE, host);
    open_peers(m, all, (unsigned)size);
    c->cpu_sharers = count_cpu_sharers(&own, all, (unsigned)size);
    free(all);
    MPI_Comm_free(&host);
    c->host_size = (unsigned)size;
    c->host_rank = (unsigned)rank;
}

static void make_buffers(struct mpi *m)
{
    size_t bytes = buffer_bytes(m->size);
    m->out = must_malloc(bytes);
    m->in = must_malloc(bytes);
    m->counts = must_calloc(4ul * m->size, sizeof *m->counts);
    m->offsets = m->counts + m->size;
    m->in_counts = m->offsets + m->size;
    m->in_offsets = m->in_counts + m->size;
    m->shares = must_calloc(m->size, sizeof *m->shares);
    m->sent = must_calloc(m->size, sizeof *m->sent);
    for (unsigned r = 0; r < m->size; r++)
        m->sent[r].request = MPI_REQUEST_NULL;
}

__attribute__((visibility("default"))) enum status
comm_mpi_start(struct comm *c, const struct comm_mpi_program *program, struct error *err)
{
    int rank, size, level;
    TRY(check_mpi(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level), err));
    struct mpi *m = must_calloc(1, sizeof *m);
    pthread_mutex_init(&m->lock, NULL);
    m->watch.end = -1;
    MPI_Comm_dup(MPI_COMM_WORLD, &m->world);
    MPI_Comm_set_errhandler(m->world, MPI_ERRORS_RETURN);
    MPI_Comm_rank(m->world, &rank);
    MPI_Comm_size(m->world, &size);
    m->rank = (unsigned)rank;
    m->size = (unsigned)size;
    m->program = *program;
    make_buffers(m);
    *c = (struct comm){.backend = &mpi, .rank = m->rank, .size = m->size, .own = m};
    find_host_ranks(c, m);
    if (size > 1 && level >= MPI_THREAD_SERIALIZED)
        watch_start(&m->watch, look_for_watch, m, m->program.work_stop);
    return OK;
}
