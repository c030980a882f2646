/* local.c - collectives of processes on one machine, through shared memory.
 *
 * 1. Each rank has a slot of two halves, written by it alone and read by all. Data
 *    of any size go through in rounds of at most a half.
 * 2. A rendezvous of a group: each member raises a gate of each other member, then
 *    waits for its own gates. The gates of a pair of ranks count all their
 *    rendezvous, of any group, so groups share nothing of their own.
 * 3. A round writes a half, makes a rendezvous, and reads the others' halves. The
 *    next round writes the other half: a member that reaches its rendezvous has
 *    read the first one.
 * 4. At its end, a call raises the gates and does not wait; a rank's next call
 *    first waits for the gates of all ranks.
 * 5. Messages have a channel for each pair and direction, which holds PIECES
 *    pieces. A rank that moves a piece raises a gate of the other rank, which waits
 *    for a piece of any of its messages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/memory.h"
#include "train/comm/job_internal.h"

enum { SMALL_BYTES = 4096 }; /* up to which every member adds up everything */

_Static_assert(COMM_SENT_AHEAD <= PIECES * PIECE_BYTES, "a channel holds what is sent ahead");

static struct local *local_of(const struct comm_group *g)
{
    return g->comm->own;
}

static char *half_of(const struct comm_group *g, unsigned index, size_t round)
{
    return local_of(g)->slots[g->ranks[index]][round % 2];
}

/* ---- rendezvous ---- */

static void raise_gates(const struct comm_group *g)
{
    struct local *l = local_of(g);
    for (unsigned i = 0; i < g->size; i++) {
        if (i == g->index) continue;
        l->awaited[g->ranks[i]]++;
        gate_raise(&l->job->arrived[g->ranks[i]][l->rank]);
    }
}

static enum status wait_for_rank(struct local *l, unsigned rank, struct error *err)
{
    return gate_wait(l, &l->job->arrived[l->rank][rank], l->awaited[rank], rank, err);
}

static enum status compare_with(struct local *l, unsigned rank, struct error *err)
{
    struct error why;
    const struct job_rank *ranks = l->job->ranks;
    if (!comm_call_compare(l->rank, &ranks[l->rank].call, rank, &ranks[rank].call, &why)) return OK;
    return job_fail(l, err, ERR_RANK, "%s", why.text);
}

static enum status rendezvous(const struct comm_group *g, struct error *err)
{
    struct local *l = local_of(g);
    raise_gates(g);
    for (unsigned i = 0; i < g->size; i++) {
        if (i == g->index) continue;
        TRY(wait_for_rank(l, g->ranks[i], err));
        if (!l->compared) TRY(compare_with(l, g->ranks[i], err));
    }
    l->compared = true;
    return OK;
}

static enum status begin_collective(const struct comm_group *g, const struct comm_call *call,
                                    struct error *err)
{
    struct local *l = local_of(g);
    TRY(job_check(l, err));
    struct job_rank *me = &l->job->ranks[l->rank];
    me->now = *call;
    for (unsigned r = 0; r < l->size; r++)
        if (r != l->rank) TRY(wait_for_rank(l, r, err));
    me->call = *call;
    l->compared = false;
    return OK;
}

static void end_collective(const struct comm_group *g)
{
    raise_gates(g);
}

/* ---- collectives ---- */

/* Sums the elements at `offset` of all members' halves. */
static void reduce_halves(const struct comm_group *g, size_t round, size_t offset, void *out,
                          size_t count, const struct comm_call *call)
{
    const void *in[MAX_RANKS];
    for (unsigned i = 0; i < g->size; i++)
        in[i] = half_of(g, i, round) + offset;
    comm_reduce(out, in, g->size, count, call->type, call->reduction);
}

/* Member p sums part p of count elements in its half, and copies the other
 * parts from the others' halves. */
static enum status reduce_by_parts(const struct comm_group *g, size_t round, char *data,
                                   size_t count, const struct comm_call *call, struct error *err)
{
    size_t bytes = comm_type_bytes(call->type);
    size_t first = count * g->index / g->size, next = count * (g->index + 1) / g->size;
    char *own = half_of(g, g->index, round) + first * bytes;
    reduce_halves(g, round, first * bytes, own, next - first, call);
    TRY(rendezvous(g, err));
    for (unsigned i = 0; i < g->size; i++) {
        first = count * i / g->size, next = count * (i + 1) / g->size;
        copy(data + first * bytes, half_of(g, i, round) + first * bytes, (next - first) * bytes);
    }
    return OK;
}

static enum status all_reduce(struct comm_group *g, void *data, size_t count, enum comm_type type,
                              enum comm_reduction reduction, struct error *err)
{
    size_t bytes = comm_type_bytes(type);
    struct comm_call call = comm_call_of(g, COMM_ALL_REDUCE, count * bytes);
    call.type = type, call.reduction = reduction;
    TRY(begin_collective(g, &call, err));
    if (g->size == 1) return OK;
    for (size_t at = 0, round = 0, n; round == 0 || at < count; at += n, round++) {
        char *part = past(data, at * bytes);
        n = at_most(count - at, HALF_BYTES / bytes);
        copy(half_of(g, g->index, round), part, n * bytes);
        TRY(rendezvous(g, err));
        if (n * bytes <= SMALL_BYTES)
            reduce_halves(g, round, 0, part, n, &call);
        else
            TRY(reduce_by_parts(g, round, part, n, &call, err));
    }
    end_collective(g);
    return OK;
}

static enum status all_gather(struct comm_group *g, const void *in, void *out, size_t bytes,
                              struct error *err)
{
    struct comm_call call = comm_call_of(g, COMM_ALL_GATHER, bytes);
    TRY(begin_collective(g, &call, err));
    copy(past(out, g->index * bytes), in, bytes);
    if (g->size == 1) return OK;
    for (size_t at = 0, round = 0, n; round == 0 || at < bytes; at += n, round++) {
        n = at_most(bytes - at, HALF_BYTES);
        copy(half_of(g, g->index, round), past(in, at), n);
        TRY(rendezvous(g, err));
        for (unsigned i = 0; i < g->size; i++)
            if (i != g->index) copy(past(out, i * bytes + at), half_of(g, i, round), n);
    }
    end_collective(g);
    return OK;
}

static enum status reduce_scatter(struct comm_group *g, const void *in, void *out, size_t count,
                                  enum comm_type type, struct error *err)
{
    size_t bytes = comm_type_bytes(type), most = HALF_BYTES / bytes / g->size;
    struct comm_call call = comm_call_of(g, COMM_REDUCE_SCATTER, count * bytes);
    call.type = type;
    TRY(begin_collective(g, &call, err));
    if (g->size == 1) copy(out, in, count * bytes);
    if (g->size == 1) return OK;
    for (size_t at = 0, round = 0, n; round == 0 || at < count; at += n, round++) {
        n = at_most(count - at, most);
        for (unsigned p = 0; p < g->size; p++)
            copy(half_of(g, g->index, round) + p * n * bytes, past(in, (p * count + at) * bytes),
                 n * bytes);
        TRY(rendezvous(g, err));
        reduce_halves(g, round, g->index * n * bytes, past(out, at * bytes), n, &call);
    }
    end_collective(g);
    return OK;
}

/* ---- all to all ---- */

/* The rest of a buffer of contiguous parts. */
struct parts {
    char *at[MAX_RANKS];
    size_t left[MAX_RANKS];
};

static void parts_init(struct parts *p, const void *data, const size_t *bytes, unsigned num)
{
    char *at = (char *)data;
    for (unsigned i = 0; i < num; at = past(at, bytes[i]), i++) {
        p->at[i] = at;
        p->left[i] = bytes[i];
    }
}

/* Copies the next bytes of part i, at most `most`, to data, or from data. */
static void part_move(struct parts *p, unsigned i, char *data, size_t most, bool to_data)
{
    size_t n = at_most(p->left[i], most);
    copy(to_data ? data : p->at[i], to_data ? p->at[i] : data, n);
    p->at[i] = past(p->at[i], n);
    p->left[i] -= n;
}

static enum status check_expected(const struct comm_group *g, const size_t *out_bytes,
                                  struct error *err)
{
    struct local *l = local_of(g);
    for (unsigned i = 0; i < g->size; i++) {
        struct error why;
        uint64_t sent = l->job->ranks[g->ranks[i]].out[g->index];
        if (comm_expect(g->ranks[i], sent, l->rank, out_bytes[i], &why))
            return job_fail(l, err, ERR_RANK, "%s", why.text);
    }
    return OK;
}

static size_t most_bytes_of_a_pair(const struct comm_group *g)
{
    uint64_t most = 0;
    for (unsigned i = 0; i < g->size; i++) {
        const uint64_t *out = local_of(g)->job->ranks[g->ranks[i]].out;
        for (unsigned k = 0; k < g->size; k++)
            if (out[k] > most) most = out[k];
    }
    return (size_t)most;
}

static enum status all_to_all(struct comm_group *g, const void *in, const size_t *in_bytes,
                              void *out, const size_t *out_bytes, struct error *err)
{
    struct local *l = local_of(g);
    struct comm_call call = comm_call_of(g, COMM_ALL_TO_ALL, 0);
    TRY(begin_collective(g, &call, err));
    struct parts from, to;
    parts_init(&from, in, in_bytes, g->size);
    parts_init(&to, out, out_bytes, g->size);
    for (unsigned i = 0; i < g->size; i++)
        l->job->ranks[l->rank].out[i] = in_bytes[i];

    /* The first rendezvous tells the number of rounds. */
    const size_t most = HALF_BYTES / g->size;
    size_t left = 1;
    for (size_t round = 0; left; round++) {
        for (unsigned i = 0; i < g->size; i++)
            part_move(&from, i, half_of(g, g->index, round) + i * most, most, true);
        TRY(rendezvous(g, err));
        if (round == 0) {
            TRY(check_expected(g, out_bytes, err));
            left = most_bytes_of_a_pair(g);
        }
        for (unsigned i = 0; i < g->size; i++)
            part_move(&to, i, half_of(g, i, round) + g->index * most, most, false);
        left -= at_most(left, most);
    }
    end_collective(g);
    return OK;
}

/* ---- messages ---- */

/* A message under way. */
struct moving {
    const struct comm_message *m;
    struct channel *channel;
    unsigned rank; /* the peer */
    size_t at;     /* bytes that have gone or come */
    bool done;
};

static void begin_message(const struct comm_group *g, const struct comm_message *m,
                          struct moving *out)
{
    struct local *l = local_of(g);
    const unsigned peer = g->ranks[m->peer], from = m->sends ? l->rank : peer,
                   to = m->sends ? peer : l->rank;
    *out = (struct moving){.m = m, .channel = &l->channels[from * l->size + to], .rank = peer};
}

/* Its rank may wait for the moved piece. */
static void tell_peer(const struct comm_group *g, const struct moving *x)
{
    gate_raise(&local_of(g)->job->ranks[x->rank].moved);
}

/* A message of no bytes has one piece, too. */
static void end_piece(const struct comm_group *g, struct moving *x, size_t bytes)
{
    x->at += bytes;
    x->done = x->at == x->m->bytes;
    tell_peer(g, x);
}

static bool send_piece(const struct comm_group *g, struct moving *x)
{
    struct channel *ch = x->channel;
    const uint32_t piece = atomic_load(&ch->written);
    const size_t n = at_most(x->m->bytes - x->at, PIECE_BYTES);
    if (piece - atomic_load(&ch->read) == PIECES) return false;
    ch->message_bytes[piece % PIECES] = x->m->bytes;
    copy(ch->pieces[piece % PIECES], past(x->m->data, x->at), n);
    atomic_store(&ch->written, piece + 1);
    end_piece(g, x, n);
    return true;
}

static enum status receive_piece(const struct comm_group *g, struct moving *x, bool *moved,
                                 struct error *err)
{
    struct local *l = local_of(g);
    struct channel *ch = x->channel;
    struct error why;
    const uint32_t piece = atomic_load(&ch->read);
    const size_t n = at_most(x->m->bytes - x->at, PIECE_BYTES);
    *moved = atomic_load(&ch->written) != piece;
    if (!*moved) return OK;
    const uint64_t sent = ch->message_bytes[piece % PIECES];
    if (comm_expect(x->rank, sent, l->rank, x->m->bytes, &why))
        return job_fail(l, err, ERR_RANK, "%s", why.text);
    copy(past(x->m->data, x->at), ch->pieces[piece % PIECES], n);
    atomic_store(&ch->read, piece + 1);
    end_piece(g, x, n);
    return OK;
}

/* Moves all pieces that can move now. Of several messages to one rank the later
 * ones wait. *first: the first unfinished message; NULL: all are done. */
static enum status move_pieces(const struct comm_group *g, struct moving *all, unsigned count,
                               struct moving **first, bool *any, struct error *err)
{
    *first = NULL;
    *any = false;
    for (unsigned i = 0; i < count; i++) {
        struct moving *x = &all[i];
        bool moved = true;
        for (unsigned k = 0; k < i && moved; k++) /* a rank may send to itself */
            moved = all[k].done || all[k].channel != x->channel || all[k].m->sends != x->m->sends;
        while (moved && !x->done) {
            if (x->m->sends)
                moved = send_piece(g, x);
            else
                TRY(receive_piece(g, x, &moved, err));
            *any |= moved;
        }
        if (!x->done && !*first) *first = x;
    }
    return OK;
}

static void note_call(const struct comm_group *g, const struct moving *x)
{
    struct local *l = local_of(g);
    l->job->ranks[l->rank].now = (struct comm_call){
        .op = x->m->sends ? COMM_SEND : COMM_RECEIVE, .peer = x->rank, .bytes = x->m->bytes};
}

static enum status move_all(const struct comm_group *g, struct moving *all, unsigned count,
                            struct error *err)
{
    struct local *l = local_of(g);
    struct gate *bell = &l->job->ranks[l->rank].moved;
    for (;;) {
        const uint32_t seen = atomic_load(&bell->count);
        struct moving *first;
        bool any;
        TRY(move_pieces(g, all, count, &first, &any, err));
        if (!first) return OK;
        note_call(g, first);
        if (!any) TRY(gate_wait(l, bell, seen + 1, first->rank, err));
    }
}

static enum status exchange_messages(struct comm_group *g, const struct comm_message *messages,
                                     unsigned count, struct error *err)
{
    struct moving few[4], *all = few;
    if (!count) return OK;
    if (count > sizeof few / sizeof *few) all = must_calloc(count, sizeof *all);
    for (unsigned i = 0; i < count; i++)
        begin_message(g, &messages[i], &all[i]);
    note_call(g, &all[0]);
    enum status st = job_check(local_of(g), err);
    if (!st) st = move_all(g, all, count, err);
    if (all != few) free(all);
    return st;
}

/* ---- the job ---- */

/* Groups have no state of their own. */
static enum status group_open(struct comm_group *g, struct error *err)
{
    return job_check(local_of(g), err);
}

static void group_close(struct comm_group *g)
{
    (void)g;
}

static enum status check_job(struct comm *c, struct error *err)
{
    TRY(job_check(c->own, err));
    return job_check_deaths(c->own, err);
}

static void report_failure(struct comm *c, const struct error *why)
{
    struct local *l = c->own;
    if (l->size == 1)
        (void)!job_fail(l, NULL, why->code, "%s", why->text);
    else
        (void)!job_fail(l, NULL, why->code, "rank %u: %s", l->rank, why->text);
}

static enum status rendezvous_at_end(struct comm *c, struct error *err)
{
    unsigned ranks[MAX_RANKS];
    for (unsigned r = 0; r < c->size; r++)
        ranks[r] = r;
    struct comm_group all = {.comm = c, .size = c->size, .index = c->rank, .ranks = ranks};
    struct comm_call call = comm_call_of(&all, COMM_CLOSE, 0);
    TRY(begin_collective(&all, &call, err));
    return rendezvous(&all, err);
}

static enum status close_job(struct comm *c, enum status st, struct error *err)
{
    struct local *l = c->own;
    if (!st) {
        st = rendezvous_at_end(c, err);
    } else {
        err->code = st;
        report_failure(c, err);
    }
    l->job->ranks[l->rank].has_ended = !st;
    if (l->rank == 0) return job_close(l, err);
    fflush(NULL);
    _exit((int)st);
}

/* Slots, and the channels that fill: all ranks send their results to rank 0.
 * Messages between pipeline stages fill one channel, too. */
static struct comm_memory backend_memory(const struct comm *c)
{
    const uint64_t slot = 2 * HALF_BYTES, channel = sizeof(struct channel);
    if (c->size == 1) return (struct comm_memory){0, 0};
    return (struct comm_memory){.all = c->size * slot + (c->rank ? 1 : c->size - 1) * channel,
                                .own = slot + (c->rank ? channel : 0)};
}

static const struct comm_backend local = {
    .name = "local",
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

enum status comm_local_open(struct comm *c, unsigned size, struct error *err)
{
    struct local *l;
    TRY(job_open(&l, size, err));
    *c = (struct comm){.backend = &local,
                       .rank = l->rank,
                       .size = size,
                       .host_size = size,
                       .cpu_sharers = size,
                       .host_rank = l->rank,
                       .own = l};
    return OK;
}
