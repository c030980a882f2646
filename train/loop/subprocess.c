/* subprocess.c - messages between a caller and its subprocess.
 *
 * Outputs go through two shared slots: the caller takes one while the
 * subprocess fills the other. So an output is answered later, all other
 * messages at once. */
#include "train/loop/subprocess.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/checked.h"
#include "common/memory.h"
#include "common/threads.h"

enum message_kind { PLAN, OUTPUT, WEIGHTS, BATCH, TOKENS, END };

/* Header of a message; name and data follow. */
struct message {
    enum message_kind kind;
    uint64_t name_bytes, data_bytes; /* the name includes its 0 */
    unsigned slot;                   /* with an output's data */
    union {
        struct collected output;
        struct tensor_digest weights; /* data: the shape */
        uint64_t batch;
        struct error end;
    } of;
};

/* Status of the caller's visitor for a message. */
struct reply {
    enum status status;
    struct error error;
};

/* ---- shared memory ---- */

enum { SLOTS = 2 };

struct shared {
    char *memory; /* [SLOTS, slot_bytes]; NULL: a request without outputs */
    uint64_t slot_bytes;
};

/* Without a name: it ends with the last process. */
static enum status share_memory(struct shared *s, const struct forward_request *q,
                                struct error *err)
{
    s->slot_bytes = q->taking.piece_bytes ? q->taking.piece_bytes : PASS_PIECE_BYTES;
    s->memory = mmap(NULL, SLOTS * s->slot_bytes, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s->memory != MAP_FAILED) return OK;
    s->memory = NULL;
    return fail_errno(err, ERR_MEMORY, "cannot map memory for results of the GPU");
}

static void unshare_memory(const struct shared *s)
{
    if (s->memory) (void)munmap(s->memory, SLOTS * s->slot_bytes);
}

static char *output_slot(const struct shared *s, unsigned number)
{
    return s->memory + number % SLOTS * s->slot_bytes;
}

/* ---- bytes ---- */

static bool write_socket(int fd, const void *data, uint64_t bytes)
{
    for (const char *at = data; bytes;) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        bytes -= (uint64_t)n;
    }
    return true;
}

enum { LOOK_MS = 100 };

/* Waits until fd is readable. Passes an interrupt on to the child (0: none) as
 * SIGTERM, once per message: a terminal interrupts both, and a second SIGINT
 * would end the child at once. */
static void wait_for_bytes(int fd, pid_t child, bool *passed_on)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (poll(&p, 1, LOOK_MS) <= 0) {
        if (child && interrupted() && !*passed_on) (void)kill(child, SIGTERM);
        *passed_on |= interrupted();
    }
}

static bool read_socket(int fd, void *data, uint64_t bytes, pid_t child)
{
    bool passed_on = false;
    for (char *at = data; bytes;) {
        wait_for_bytes(fd, child, &passed_on);
        ssize_t n = recv(fd, at, bytes, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        bytes -= (uint64_t)n;
    }
    return true;
}

/* ---- the subprocess ---- */

struct child {
    int fd;
    pid_t pid; /* of rank 0, which alone talks to the caller */
    struct shared shared;
    unsigned outputs;    /* number sent, in alternating slots */
    unsigned unanswered; /* number without a reply, the last ones */
    const struct forward_request *forward;
    const struct generate_request *generate;
};

static enum status caller_is_gone(struct error *err)
{
    return fail(err, ERR_RANK, "the process that sent this request has ended");
}

static enum status send_only(const struct child *c, struct message *m, const char *name,
                             const void *data, struct error *err)
{
    m->name_bytes = name ? strlen(name) + 1 : 0;
    if (write_socket(c->fd, m, sizeof *m) && write_socket(c->fd, name, m->name_bytes) &&
        write_socket(c->fd, data, m->data_bytes))
        return OK;
    return caller_is_gone(err);
}

static enum status take_reply(const struct child *c, struct error *err)
{
    struct reply reply;
    if (!read_socket(c->fd, &reply, sizeof reply, 0)) return caller_is_gone(err);
    if (reply.status && err) *err = reply.error;
    return reply.status;
}

/* Takes replies until at most `most` outputs are unanswered. */
static enum status take_replies(struct child *c, unsigned most, struct error *err)
{
    while (c->unanswered > most) {
        c->unanswered--;
        TRY(take_reply(c, err));
    }
    return OK;
}

static enum status send_message(struct child *c, struct message *m, const char *name,
                                const void *data, struct error *err)
{
    TRY(take_replies(c, 0, err));
    TRY(send_only(c, m, name, data, err));
    return take_reply(c, err);
}

static enum status send_plan(void *context, const struct fit_memory *ranks, unsigned num_ranks,
                             struct error *err)
{
    struct message m = {.kind = PLAN, .data_bytes = num_ranks * sizeof *ranks};
    return send_message(context, &m, NULL, ranks, err);
}

/* Waits until the caller has emptied the next slot. */
static enum status take_slot(void *context, uint64_t bytes, void **memory, struct error *err)
{
    struct child *c = context;
    if (bytes > c->shared.slot_bytes)
        return fail(err, ERR_UNSUPPORTED,
                    "a result row of %" PRIu64 " bytes exceeds the limit of %" PRIu64 " bytes",
                    bytes, c->shared.slot_bytes);
    TRY(take_replies(c, SLOTS - 1, err));
    *memory = output_slot(&c->shared, c->outputs);
    return OK;
}

static enum status send_slot(struct child *c, const struct collected *o, struct error *err)
{
    struct message m = {.kind = OUTPUT, .of.output = *o, .slot = c->outputs % SLOTS};
    TRY(send_only(c, &m, o->name, NULL, err));
    c->outputs++;
    c->unanswered++;
    return OK;
}

/* Copies data into slots unless they lie there, as many rows at a time as fit.
 */
static enum status send_output(void *context, const struct collected *o, struct error *err)
{
    struct child *c = context;
    const uint64_t row_bytes = dtype_run_bytes(o->dtype, o->columns);
    const uint64_t most = max_u64(c->shared.slot_bytes / max_u64(row_bytes, 1), 1);
    struct collected piece = *o;
    if (o->data == output_slot(&c->shared, c->outputs)) return send_slot(c, o, err);
    for (uint64_t done = 0; done < o->num_rows; done += piece.num_rows) {
        void *slot;
        piece.first_row = o->first_row + done;
        piece.num_rows = min_u64(most, o->num_rows - done);
        TRY(take_slot(c, collected_bytes(&piece), &slot, err));
        memcpy(slot, (const char *)o->data + done * row_bytes, collected_bytes(&piece));
        TRY(send_slot(c, &piece, err));
    }
    return OK;
}

static enum status send_weights(void *context, const struct tensor_digest *d, struct error *err)
{
    struct message m = {
        .kind = WEIGHTS, .data_bytes = d->num_dims * sizeof *d->shape, .of.weights = *d};
    return send_message(context, &m, d->name, d->shape, err);
}

static enum status send_tokens(void *context, const int32_t *tokens, struct error *err)
{
    struct child *c = context;
    struct message m = {.kind = TOKENS};
    m.data_bytes = c->generate->prompts.num_sequences * sizeof *tokens;
    return send_message(c, &m, NULL, tokens, err);
}

static enum status request_batch(void *context, uint64_t number, struct batch *b, bool *more,
                                 struct error *err)
{
    struct child *c = context;
    struct message m = {.kind = BATCH, .of.batch = number};
    if (c->pid == getpid()) TRY(send_message(c, &m, NULL, NULL, err));
    return c->forward->next(c->forward->context, number, b, more, err);
}

/* ---- the caller ---- */

struct caller {
    int fd;
    pid_t child;
    struct shared shared;
    void *whole;         /* output being assembled, or NULL */
    struct reply failed; /* the first failure: nothing is visited after it */
    const struct forward_request *forward;
    const struct generate_request *generate;
};

/* Gives an output once complete, unless the visitor takes pieces. */
static enum status give_output(struct caller *c, struct collected *o, struct error *err)
{
    const struct forward_request *q = c->forward;
    const uint64_t row_bytes = dtype_run_bytes(o->dtype, o->columns);
    if (q->taking.piece_bytes || o->num_rows == o->rows) return q->visit(q->context, o, err);
    if (!c->whole) c->whole = malloc(o->rows * row_bytes + 1);
    if (!c->whole) return fail(err, ERR_MEMORY, "no memory for %s", o->name);
    memcpy((char *)c->whole + o->first_row * row_bytes, o->data, collected_bytes(o));
    if (o->first_row + o->num_rows < o->rows) return OK;
    o->first_row = 0;
    o->num_rows = o->rows;
    o->data = c->whole;
    const enum status st = q->visit(q->context, o, err);
    free(c->whole);
    c->whole = NULL;
    return st;
}

static enum status give_plan(const struct caller *c, const struct fit_memory *ranks,
                             unsigned num_ranks, struct error *err)
{
    if (c->forward) return c->forward->visit_plan(c->forward->context, ranks, num_ranks, err);
    return c->generate->visit_plan(c->generate->context, ranks, num_ranks, err);
}

static enum status give_message(struct caller *c, struct message *m, char *name, void *data,
                                struct error *err)
{
    struct batch ignored = {0};
    bool more;
    switch (m->kind) {
    case PLAN:
        return give_plan(c, data, (unsigned)(m->data_bytes / sizeof(struct fit_memory)), err);
    case OUTPUT:
        m->of.output.name = name;
        m->of.output.data = output_slot(&c->shared, m->slot);
        return give_output(c, &m->of.output, err);
    case WEIGHTS:
        m->of.weights.name = name;
        m->of.weights.shape = data;
        return c->forward->visit_weights(c->forward->context, &m->of.weights, err);
    case BATCH:
        return c->forward->next(c->forward->context, m->of.batch, &ignored, &more, err);
    case TOKENS:
        return c->generate->visit(c->generate->context, data, err);
    case END:
        break;
    }
    return OK;
}

/* Handles one message; false if the subprocess has ended instead. */
static bool handle_message(struct caller *c, struct message *m)
{
    if (!read_socket(c->fd, m, sizeof *m, c->child)) return false;
    char *name = malloc(m->name_bytes + 1), *data = malloc(m->data_bytes + 1);
    bool complete = name && data && read_socket(c->fd, name, m->name_bytes, c->child) &&
                    read_socket(c->fd, data, m->data_bytes, c->child);
    if (complete && !c->failed.status)
        c->failed.status = give_message(c, m, name, data, &c->failed.error);
    free(name);
    free(data);
    return complete && (m->kind == END || write_socket(c->fd, &c->failed, sizeof c->failed));
}

/* Handles messages until the subprocess ends. */
static enum status serve_child(struct caller *c, struct error *err)
{
    struct message m = {.kind = OUTPUT};
    char death[COMM_DEATH_TEXT];
    bool alive = true;
    int wait_status = 0;
    while (alive && m.kind != END)
        alive = handle_message(c, &m);
    (void)close(c->fd);
    free(c->whole);
    unshare_memory(&c->shared);
    while (waitpid(c->child, &wait_status, 0) < 0 && errno == EINTR)
        continue;
    if (!alive) {
        comm_print_death(death, 0, wait_status);
        return fail(err, ERR_RANK, "%s (the subprocess that uses the GPU)", death);
    }
    if (m.of.end.code && err) *err = m.of.end;
    return m.of.end.code;
}

/* ---- both ---- */

static enum status no_child(const struct caller *c, struct error *err)
{
    const enum status st = fail_errno(err, ERR_MEMORY, "cannot start a subprocess for the GPU");
    unshare_memory(&c->shared);
    return st;
}

/* Forks; in the child, out->child is 0. The kernel kills the child if its
 * caller ends. */
static enum status fork_child(struct caller *out, struct error *err)
{
    int fds[2];
    pid_t caller = getpid();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds)) return no_child(out, err);
    (void)fflush(NULL);
    out->child = fork();
    if (out->child < 0) {
        (void)close(fds[0]);
        (void)close(fds[1]);
        return no_child(out, err);
    }
    out->fd = fds[out->child == 0];
    (void)close(fds[out->child != 0]);
    if (out->child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != caller) _exit(ERR_RANK);
    }
    return OK;
}

/* Reads all replies first: the caller takes a child with an unread reply for
 * dead. */
static enum status take_all_replies(struct child *c, enum status st, struct error *err)
{
    while (c->unanswered) {
        struct error own = {0};
        const enum status reply = take_replies(c, c->unanswered - 1, &own);
        if (st || !reply) continue;
        st = reply;
        *err = own;
    }
    return st;
}

static _Noreturn void end_child(struct child *c, enum status st, struct error *err)
{
    struct message m = {.kind = END};
    st = take_all_replies(c, st, err);
    m.of.end = *err;
    m.of.end.code = st;
    (void)write_socket(c->fd, &m, sizeof m);
    (void)fflush(NULL);
    _exit(0);
}

enum status subprocess_forward(const struct forward_request *q,
                               enum status (*run)(const struct forward_request *q,
                                                  struct error *err),
                               struct error *err)
{
    struct caller caller = {.forward = q};
    TRY(share_memory(&caller.shared, q, err));
    TRY(fork_child(&caller, err));
    if (caller.child) return serve_child(&caller, err);
    struct child c = {.fd = caller.fd, .pid = getpid(), .shared = caller.shared, .forward = q};
    struct forward_request own = *q;
    struct error error = {0};
    own.context = &c;
    own.next = request_batch;
    own.visit_plan = q->visit_plan ? send_plan : NULL;
    own.visit = send_output;
    own.taking.piece_bytes = c.shared.slot_bytes;
    own.taking.puts_together = !q->taking.piece_bytes;
    own.taking.room = take_slot;
    own.visit_weights = q->visit_weights ? send_weights : NULL;
    end_child(&c, run(&own, &error), &error);
}

enum status subprocess_generate(const struct generate_request *q,
                                enum status (*run)(const struct generate_request *q,
                                                   struct error *err),
                                struct error *err)
{
    struct caller caller = {.generate = q};
    TRY(fork_child(&caller, err));
    if (caller.child) return serve_child(&caller, err);
    struct child c = {.fd = caller.fd, .pid = getpid(), .generate = q};
    struct generate_request own = *q;
    struct error error = {0};
    own.context = &c;
    own.visit_plan = q->visit_plan ? send_plan : NULL;
    own.visit = send_tokens;
    end_child(&c, run(&own, &error), &error);
}
