#include "train/engine/collectives.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/checked.h"
#include "common/memory.h"

/* ---- operands ---- */

/* One collective call of a program. */
struct collective_call {
    struct collectives *c;
    const struct call *call;
    struct comm_group *group;
    void *link;
    enum elem_type elem;
    struct operand in[2], out[2];
};

static uint64_t collective_bytes(const struct collective_call *m, const struct operand *o)
{
    return operand_numel(o) * operand_bytes_of(o->type, m->elem);
}

/* Sets bytes to or from each member. ERR_OURS if they exceed the planned rows.
 */
static enum status member_bytes(const struct collective_call *m, const struct operand *rows,
                                const int32_t *counts, uint64_t num_counts, size_t *bytes,
                                struct error *err)
{
    unsigned size = m->group->size;
    uint64_t each = num_counts / size, sum = 0;
    for (unsigned i = 0; i < size; i++) {
        uint64_t n = 0;
        for (uint64_t e = 0; e < each; e++)
            n += (uint64_t)counts[i * each + e];
        bytes[i] = n * rows->shape[1] * operand_bytes_of(rows->type, m->elem);
        sum += n;
    }
    if (sum <= rows->shape[0]) return OK;
    return fail(err, ERR_OURS, "%s: %" PRIu64 " rows, planned for %" PRIu64, m->call->label, sum,
                rows->shape[0]);
}

/* Bytes of all_to_all's counts for each member. */
static uint64_t count_bytes(const struct collective_call *m)
{
    return m->in[1].shape[0] / m->group->size * sizeof(int32_t);
}

static unsigned next_member(const struct collective_call *m)
{
    return (m->group->index + 1) % m->group->size;
}

static unsigned previous_member(const struct collective_call *m)
{
    return (m->group->index + m->group->size - 1) % m->group->size;
}

/* ---- by the ranks' backend, in the host's memory ---- */

static const struct comm_backend *backend_of(const struct collective_call *m)
{
    return m->group->comm->backend;
}

static enum comm_type comm_type_of(const struct collective_call *m, enum operand_type type)
{
    if (type == OPERAND_INT) return COMM_INT32;
    if (m->elem == ELEM_F64) return COMM_F64;
    if (type == OPERAND_REAL || m->elem == ELEM_F32) return COMM_F32;
    return m->elem == ELEM_BF16 ? COMM_BF16 : COMM_F16;
}

static enum status host_all_reduce(const struct collective_call *m, struct error *err)
{
    const struct operand *x = &m->in[0], *y = &m->out[0];
    if (y->data != x->data) memcpy(y->data, x->data, collective_bytes(m, x));
    return backend_of(m)->all_reduce(m->group, y->data, operand_numel(y), comm_type_of(m, y->type),
                                     m->call->collective.reduction, err);
}

static enum status host_all_gather(const struct collective_call *m, struct error *err)
{
    return backend_of(m)->all_gather(m->group, m->in[0].data, m->out[0].data,
                                     collective_bytes(m, &m->in[0]), err);
}

static enum status host_reduce_scatter(const struct collective_call *m, struct error *err)
{
    return backend_of(m)->reduce_scatter(m->group, m->in[0].data, m->out[0].data,
                                         operand_numel(&m->out[0]), comm_type_of(m, m->out[0].type),
                                         err);
}

static enum status host_all_to_all(const struct collective_call *m, struct error *err)
{
    unsigned size = m->group->size;
    size_t *bytes = must_calloc(3 * size, sizeof *bytes), *counted = bytes + 2 * size;
    for (unsigned i = 0; i < size; i++)
        counted[i] = count_bytes(m);
    enum status st =
        backend_of(m)->all_to_all(m->group, m->in[1].data, counted, m->out[1].data, counted, err);
    if (!st) st = member_bytes(m, &m->in[0], m->in[1].data, m->in[1].shape[0], bytes, err);
    if (!st)
        st = member_bytes(m, &m->out[0], m->out[1].data, m->out[1].shape[0], bytes + size, err);
    if (!st)
        st = backend_of(m)->all_to_all(m->group, m->in[0].data, bytes, m->out[0].data, bytes + size,
                                       err);
    free(bytes);
    return st;
}

static enum status host_shift(const struct collective_call *m, struct error *err)
{
    const struct comm_message messages[] = {
        {true, next_member(m), m->in[0].data, collective_bytes(m, &m->in[0])},
        {false, previous_member(m), m->out[0].data, collective_bytes(m, &m->out[0])}};
    return backend_of(m)->exchange(m->group, messages, 2, err);
}

/* ---- by the device ---- */

static const struct device_collectives *library_of(const struct collective_call *m)
{
    return m->c->device->collectives;
}

static struct device_number device_number_of(const struct collective_call *m,
                                             const struct operand *o)
{
    return (struct device_number){o->type, m->elem};
}

static enum status device_all_reduce(const struct collective_call *m, struct error *err)
{
    return library_of(m)->all_reduce(m->link, m->in[0].data, m->out[0].data,
                                     operand_numel(&m->in[0]), device_number_of(m, &m->in[0]),
                                     m->call->collective.reduction == COMM_MAX, err);
}

static enum status device_all_gather(const struct collective_call *m, struct error *err)
{
    return library_of(m)->all_gather(m->link, m->in[0].data, m->out[0].data,
                                     collective_bytes(m, &m->in[0]), err);
}

static enum status device_reduce_scatter(const struct collective_call *m, struct error *err)
{
    return library_of(m)->reduce_scatter(m->link, m->in[0].data, m->out[0].data,
                                         operand_numel(&m->out[0]), device_number_of(m, &m->out[0]),
                                         err);
}

/* Copies an operand from the device, behind the queued calls. */
static enum status fetch_operand(const struct collective_call *m, const struct operand *o,
                                 int32_t *to, struct error *err)
{
    TRY(collectives_finish(m->c, err));
    return m->c->device->download(to, o->data, collective_bytes(m, o), err);
}

static enum status device_rows(const struct collective_call *m, int32_t *counts, size_t *bytes,
                               struct error *err)
{
    unsigned size = m->group->size;
    uint64_t sent = m->in[1].shape[0], received = m->out[1].shape[0];
    TRY(fetch_operand(m, &m->in[1], counts, err));
    TRY(fetch_operand(m, &m->out[1], counts + sent, err));
    TRY(member_bytes(m, &m->in[0], counts, sent, bytes, err));
    TRY(member_bytes(m, &m->out[0], counts + sent, received, bytes + size, err));
    return library_of(m)->all_to_all(m->link, size, m->in[0].data, bytes, m->out[0].data,
                                     bytes + size, err);
}

/* Exchanges counts first: the host must know how many rows arrive. */
static enum status device_all_to_all(const struct collective_call *m, struct error *err)
{
    unsigned size = m->group->size;
    size_t *bytes = must_calloc(3 * size, sizeof *bytes), *counted = bytes + 2 * size;
    int32_t *counts = must_calloc(m->in[1].shape[0] + m->out[1].shape[0] + 1, sizeof *counts);
    for (unsigned i = 0; i < size; i++)
        counted[i] = count_bytes(m);
    enum status st = library_of(m)->all_to_all(m->link, size, m->in[1].data, counted,
                                               m->out[1].data, counted, err);
    if (!st) st = device_rows(m, counts, bytes, err);
    free(counts);
    free(bytes);
    return st;
}

static enum status device_shift(const struct collective_call *m, struct error *err)
{
    const struct device_message messages[] = {
        {true, next_member(m), m->in[0].data, collective_bytes(m, &m->in[0])},
        {false, previous_member(m), m->out[0].data, collective_bytes(m, &m->out[0])}};
    return library_of(m)->exchange(m->link, messages, 2, err);
}

/* ---- both ---- */

static enum status host_slice(const struct collective_call *m, struct error *err)
{
    uint64_t bytes = collective_bytes(m, &m->out[0]);
    return m->c->device->copy(m->out[0].data, (const char *)m->in[0].data + m->group->index * bytes,
                              bytes, err);
}

static enum status device_slice(const struct collective_call *m, struct error *err)
{
    return host_slice(m, err); /* the device copies by itself in both ways */
}

/* y is a view of x. */
static enum status host_replicate(const struct collective_call *m, struct error *err)
{
    (void)m, (void)err;
    return OK;
}

static enum status device_replicate(const struct collective_call *m, struct error *err)
{
    return host_replicate(m, err);
}

typedef enum status collective_function(const struct collective_call *m, struct error *err);

/* Each collective of the list has both. */
static const struct {
    collective_function *on_host, *by_device;
} functions[] = {
#define X(id, name, ...) [id - NUM_OPS] = {host_##name, device_##name},
    COLLECTIVES(X)
#undef X
};

static bool is_local(const struct call *c)
{
    return op_row(c->op)->flags & OP_IS_LOCAL;
}

/* ---- through the host ---- */

enum { STAGED_ALIGNMENT = 256 };

static uint64_t staged_bytes(const struct program *p, const struct call *c)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < 2; i++) {
        if (c->in[i] != NO_VALUE) bytes += p->values[c->in[i]].bytes + STAGED_ALIGNMENT;
        if (c->out[i] != NO_VALUE) bytes += p->values[c->out[i]].bytes + STAGED_ALIGNMENT;
    }
    return bytes;
}

enum status collectives_reserve_bytes(struct collectives *c, uint64_t most, struct error *err)
{
    if (c->device->is_host || c->linked || most <= c->staging_bytes) return OK;
    free(c->staging);
    c->staging_bytes = most;
    c->staging = malloc(most);
    if (c->staging) return OK;
    c->staging_bytes = 0;
    return fail(err, ERR_MEMORY, "no %.2f GB of memory for communication buffers",
                (double)most / 1e9);
}

enum status collectives_reserve(struct collectives *c, const struct program *p, struct error *err)
{
    uint64_t most = 0;
    for (size_t i = 0; i < p->num_calls; i++)
        if (p->calls[i].op >= NUM_OPS && !is_local(&p->calls[i]))
            most = max_u64(most, staged_bytes(p, &p->calls[i]));
    return collectives_reserve_bytes(c, most, err);
}

/* Places an operand in the staging buffer at *at. */
static void stage_operand(const struct collective_call *m, struct operand *o, char **at)
{
    if (!o->data) return;
    o->data = *at;
    *at += ceil_div_u64(collective_bytes(m, o), STAGED_ALIGNMENT) * STAGED_ALIGNMENT;
}

static enum status run_staged(const struct collective_call *m, collective_function *f,
                              struct error *err)
{
    const struct device *device = m->c->device;
    struct collective_call staged = *m;
    char *at = m->c->staging;
    for (unsigned i = 0; i < 2; i++) {
        stage_operand(m, &staged.in[i], &at);
        if (m->in[i].data)
            TRY(device->download(staged.in[i].data, m->in[i].data, collective_bytes(m, &m->in[i]),
                                 err));
        stage_operand(m, &staged.out[i], &at);
    }
    TRY(f(&staged, err));
    for (unsigned i = 0; i < 2; i++)
        if (m->out[i].data)
            TRY(device->upload(m->out[i].data, staged.out[i].data, collective_bytes(m, &m->out[i]),
                               err));
    return OK;
}

enum status collectives_run(struct collectives *c, const struct program *p, const struct call *call,
                            const struct operand *in, const struct operand *out, struct error *err)
{
    unsigned kind = call->collective.group, op = call->op - NUM_OPS;
    struct collective_call m = {.c = c,
                                .call = call,
                                .group = &c->groups->of[kind],
                                .link = c->links[kind],
                                .elem = p->elem,
                                .in = {in[0], in[1]},
                                .out = {out[0], out[1]}};
    if (is_local(call) || c->device->is_host) return functions[op].on_host(&m, err);
    if (c->linked) return functions[op].by_device(&m, err);
    return run_staged(&m, functions[op].on_host, err);
}

/* ---- messages ---- */

/* Sent and received messages lie one behind the other in the staging buffer. */
static enum status exchange_staged(struct collectives *c, struct comm_group *g,
                                   const struct comm_message *messages, unsigned count,
                                   struct error *err)
{
    struct comm_message *staged = must_calloc(count, sizeof *staged);
    enum status st = OK;
    size_t at = 0;
    for (unsigned i = 0; i < count && !st; at += messages[i].bytes, i++) {
        staged[i] = messages[i];
        staged[i].data = (char *)c->staging + at;
        if (at + messages[i].bytes > c->staging_bytes)
            st = fail(err, ERR_OURS, "messages of %zu bytes exceed the buffer",
                      at + messages[i].bytes);
        else if (messages[i].sends)
            st = c->device->download(staged[i].data, messages[i].data, messages[i].bytes, err);
    }
    if (!st) st = g->comm->backend->exchange(g, staged, count, err);
    for (unsigned i = 0; i < count && !st; i++)
        if (!messages[i].sends)
            st = c->device->upload(messages[i].data, staged[i].data, messages[i].bytes, err);
    free(staged);
    return st;
}

static enum status exchange_linked(struct collectives *c, void *link,
                                   const struct comm_message *messages, unsigned count,
                                   struct error *err)
{
    struct device_message *all = must_calloc(count, sizeof *all);
    for (unsigned i = 0; i < count; i++)
        all[i] = (struct device_message){messages[i].sends, messages[i].peer, messages[i].data,
                                         messages[i].bytes};
    enum status st = c->device->collectives->exchange(link, all, count, err);
    free(all);
    return st;
}

enum status collectives_exchange(struct collectives *c, enum group_kind kind,
                                 const struct comm_message *messages, unsigned count,
                                 struct error *err)
{
    struct comm_group *g = &c->groups->of[kind];
    if (!count) return OK;
    if (c->device->is_host) return g->comm->backend->exchange(g, messages, count, err);
    if (c->linked) return exchange_linked(c, c->links[kind], messages, count, err);
    return exchange_staged(c, g, messages, count, err);
}

bool collectives_wait_for_host(const struct collectives *c, const struct call *call)
{
    if (call->op < NUM_OPS || is_local(call)) return false;
    return !c->linked || op_row(call->op)->flags & OP_WAITS_FOR_HOST;
}

/* ---- waiting ---- */

/* Polls often at first: a step of decoding is short. */
static void sleep_briefly(unsigned round)
{
    struct timespec t = {.tv_nsec = round < 1000 ? 0 : 100000};
    if (round >= 100) (void)nanosleep(&t, NULL);
}

enum status collectives_finish(struct collectives *c, struct error *err)
{
    struct comm *comm = c->groups->of[GROUP_WORLD].comm;
    bool done = false;
    if (!c->linked) return c->device->synchronize(err);
    for (unsigned round = 0; !done; round++) {
        TRY(c->device->collectives->done(&done, err));
        if (!done && round % 100 == 99) TRY(comm->backend->check(comm, err));
        if (!done) sleep_briefly(round);
    }
    return c->device->synchronize(err);
}

/* ---- opening ---- */

/* Facts about a rank's device, which ranks exchange. */
struct rank_device {
    uint64_t device;
    bool has_library;
};

/* 0: the device's library can do it. All ranks find the same. */
enum { NO_LIBRARY = 1, SAME_DEVICE = 2 };

static int unsupported_reason(const struct rank_device *all, unsigned size)
{
    int unsupported = 0;
    for (unsigned i = 0; i < size; i++) {
        for (unsigned k = 0; k < i; k++)
            if (all[i].device == all[k].device) unsupported = SAME_DEVICE;
    }
    for (unsigned i = 0; i < size; i++)
        if (!all[i].has_library) unsupported = NO_LIBRARY;
    return unsupported;
}

static enum status find_unsupported(const struct device *d, struct groups *g, int *unsupported,
                                    struct error *why, struct error *err)
{
    struct comm_group *world = &g->of[GROUP_WORLD];
    struct rank_device own = {0}, *all = must_calloc(world->size, sizeof *all);
    if (d->collectives)
        own.has_library = !d->collectives->available(why);
    else
        (void)!fail(why, ERR_UNSUPPORTED, "%s has no collectives", d->name);
    enum status st = d->identity(&own.device, err);
    if (!st) st = world->comm->backend->all_gather(world, &own, all, sizeof own, err);
    if (!st) *unsupported = unsupported_reason(all, world->size);
    free(all);
    return st;
}

static enum status refuse_nccl(int unsupported, const struct error *why, struct error *err)
{
    if (unsupported == SAME_DEVICE)
        return fail(err, ERR_UNSUPPORTED,
                    "--collectives nccl: two ranks share a GPU; use --collectives staged");
    return fail(err, ERR_UNSUPPORTED, "--collectives nccl: %s",
                why->text[0] ? why->text : "another rank has no NCCL");
}

static enum status open_link(struct collectives *c, unsigned kind, struct error *err)
{
    struct comm_group *group = &c->groups->of[kind];
    const struct device_collectives *library = c->device->collectives;
    char id[DEVICE_GROUP_ID_BYTES] = {0};
    char *all = must_calloc(group->size, sizeof id);
    enum status st = group->index ? OK : library->new_id(id, err);
    if (!st) st = group->comm->backend->all_gather(group, id, all, sizeof id, err);
    if (!st) st = library->open(&c->links[kind], all, group->size, group->index, err);
    free(all);
    return st;
}

/* First kind of group with the same members; `kind` itself if there is none. */
static unsigned first_same_group(const struct groups *g, unsigned kind)
{
    unsigned k = 0;
    while (k < kind && (g->of[k].size != g->of[kind].size ||
                        memcmp(g->of[k].ranks, g->of[kind].ranks,
                               g->of[kind].size * sizeof *g->of[kind].ranks) != 0))
        k++;
    return k;
}

static enum status open_links(struct collectives *c, struct error *err)
{
    c->linked = true;
    for (unsigned k = 0; k < NUM_GROUP_KINDS; k++) {
        unsigned same = first_same_group(c->groups, k);
        if (c->groups->of[k].size == 1) continue;
        if (same < k)
            c->links[k] = c->links[same];
        else
            TRY(open_link(c, k, err));
    }
    return OK;
}

enum status collectives_open(struct collectives *c, struct groups *groups,
                             const struct device *device, enum collectives_way way,
                             struct error *err)
{
    struct error why = {0};
    int unsupported;
    *c = (struct collectives){.groups = groups, .device = device};
    if (device->is_host && way == COLLECTIVES_DEVICE)
        return fail(err, ERR_UNSUPPORTED, "--collectives nccl: --device %s has no GPUs",
                    device->name);
    if (device->is_host || way == COLLECTIVES_STAGED || groups->of[GROUP_WORLD].size == 1)
        return OK;
    TRY(find_unsupported(device, groups, &unsupported, &why, err));
    if (unsupported && way == COLLECTIVES_CHOOSE) return OK;
    if (unsupported) return refuse_nccl(unsupported, &why, err);
    return open_links(c, err);
}

void collectives_close(struct collectives *c)
{
    struct error ignored;
    free(c->staging);
    c->staging = NULL;
    if (!c->linked) return;
    /* After a failure, other ranks do not come here. */
    bool give_up = comm_barrier(&c->groups->of[GROUP_WORLD], &ignored) != OK;
    void *links[NUM_GROUP_KINDS];
    unsigned count = 0;
    for (unsigned k = 0; k < NUM_GROUP_KINDS; k++)
        if (c->links[k] && first_same_group(c->groups, k) == k) links[count++] = c->links[k];
    c->device->collectives->close(links, count, give_up);
    c->linked = false;
}

const char *collectives_name(const struct collectives *c)
{
    if (c->groups->of[GROUP_WORLD].size == 1) return "none";
    if (c->linked) return c->device->collectives->name;
    return c->device->is_host ? c->groups->of[GROUP_WORLD].comm->backend->name : "staged";
}
