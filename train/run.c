#include "train/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"
#include "common/progress.h"
#include "common/threads.h"
#include "train/ops.h"

void *run_data(const struct run *r, value_id id)
{
    const struct program_value *v = &r->program->values[id];
    return (char *)r->regions[v->class] + v->offset;
}

static struct operand operand_of(const struct run *r, value_id id)
{
    struct operand o = program_operand(r->program, id);
    if (id != NO_VALUE) o.data = run_data(r, id);
    return o;
}

/* ---- collectives ---- */

static enum comm_type comm_type_of(const struct run *r, enum operand_type type)
{
    enum elem_type elem = r->program->elem;
    if (type == OPERAND_INT) return COMM_INT32;
    if (elem == ELEM_F64) return COMM_F64;
    return type == OPERAND_ELEM && elem == ELEM_BF16 ? COMM_BF16 : COMM_F32;
}

static uint64_t elements_of(const struct operand *o)
{
    uint64_t n = 1;
    for (unsigned d = 0; d < o->num_dims; d++)
        n *= o->shape[d];
    return n;
}

static uint64_t bytes_of(const struct run *r, const struct operand *o)
{
    return elements_of(o) * operand_bytes_of(o->type, r->program->elem);
}

/* What is done together, with the operands of the call. */
struct meeting {
    const struct run *r;
    const struct call *call;
    struct comm_group *group;
    struct operand in[2], out[2];
};

static const struct comm_backend *backend_of(const struct meeting *m)
{
    return m->group->comm->backend;
}

static enum status all_reduce(const struct meeting *m, struct error *err)
{
    const struct operand *x = &m->in[0], *y = &m->out[0];
    if (y->data != x->data) memcpy(y->data, x->data, bytes_of(m->r, x));
    return backend_of(m)->all_reduce(m->group, y->data, elements_of(y), comm_type_of(m->r, y->type),
                                     m->call->collective.reduction, err);
}

static enum status all_gather(const struct meeting *m, struct error *err)
{
    return backend_of(m)->all_gather(m->group, m->in[0].data, m->out[0].data,
                                     bytes_of(m->r, &m->in[0]), err);
}

static enum status reduce_scatter(const struct meeting *m, struct error *err)
{
    return backend_of(m)->reduce_scatter(m->group, m->in[0].data, m->out[0].data,
                                         elements_of(&m->out[0]),
                                         comm_type_of(m->r, m->out[0].type), err);
}

/* Bytes to or from each member; ERR_OURS where they are more than `bound` rows. */
static enum status row_bytes(const struct meeting *m, const struct operand *rows,
                             const struct operand *counts, size_t *bytes, struct error *err)
{
    unsigned size = m->group->size;
    uint64_t each = counts->shape[0] / size, sum = 0;
    for (unsigned i = 0; i < size; i++) {
        uint64_t n = 0;
        for (uint64_t e = 0; e < each; e++)
            n += (uint64_t)((const int32_t *)counts->data)[i * each + e];
        bytes[i] = n * rows->shape[1] * operand_bytes_of(rows->type, m->r->program->elem);
        sum += n;
    }
    if (sum <= rows->shape[0]) return OK;
    return fail(err, ERR_OURS, "%s: %" PRIu64 " rows, planned for %" PRIu64, m->call->label, sum,
                rows->shape[0]);
}

static enum status all_to_all(const struct meeting *m, struct error *err)
{
    unsigned size = m->group->size;
    size_t *bytes = must_calloc(3 * size, sizeof *bytes), *counted = bytes + 2 * size;
    for (unsigned i = 0; i < size; i++)
        counted[i] = m->in[1].shape[0] / size * sizeof(int32_t);
    enum status st =
        backend_of(m)->all_to_all(m->group, m->in[1].data, counted, m->out[1].data, counted, err);
    if (!st) st = row_bytes(m, &m->in[0], &m->in[1], bytes, err);
    if (!st) st = row_bytes(m, &m->out[0], &m->out[1], bytes + size, err);
    if (!st)
        st = backend_of(m)->all_to_all(m->group, m->in[0].data, bytes, m->out[0].data, bytes + size,
                                       err);
    free(bytes);
    return st;
}

static enum status send(const struct meeting *m, struct error *err)
{
    return backend_of(m)->send(m->group, m->call->collective.peer, m->in[0].data,
                               bytes_of(m->r, &m->in[0]), err);
}

static enum status receive(const struct meeting *m, struct error *err)
{
    return backend_of(m)->receive(m->group, m->call->collective.peer, m->out[0].data,
                                  bytes_of(m->r, &m->out[0]), err);
}

/* Even members send first and odd ones receive first, so that no ring waits for itself. */
static enum status shift(const struct meeting *m, struct error *err)
{
    unsigned size = m->group->size, i = m->group->index;
    struct call to = *m->call, from = *m->call;
    struct meeting sending = *m, receiving = *m;
    to.collective.peer = (i + 1) % size;
    from.collective.peer = (i + size - 1) % size;
    sending.call = &to;
    receiving.call = &from;
    if (i % 2) {
        TRY(receive(&receiving, err));
        return send(&sending, err);
    }
    TRY(send(&sending, err));
    return receive(&receiving, err);
}

static enum status slice(const struct meeting *m, struct error *err)
{
    uint64_t bytes = bytes_of(m->r, &m->out[0]);
    (void)err;
    memcpy(m->out[0].data, (const char *)m->in[0].data + m->group->index * bytes, bytes);
    return OK;
}

/* ---- operands of collectives on the host ---- */

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

uint64_t run_staging_bytes(const struct program *p)
{
    uint64_t most = 0;
    for (size_t i = 0; i < p->num_calls; i++)
        if (p->calls[i].op >= NUM_OPS) most = max_u64(most, staged_bytes(p, &p->calls[i]));
    return most;
}

/* Gives an operand a place in the staging memory, from *at on. */
static void stage(const struct run *r, struct operand *o, char **at)
{
    if (!o->data) return;
    o->data = *at;
    *at += ceil_div_u64(bytes_of(r, o), STAGED_ALIGNMENT) * STAGED_ALIGNMENT;
}

static enum status stage_inputs(struct meeting *m, struct error *err)
{
    const struct run *r = m->r;
    char *at = r->staging;
    for (unsigned i = 0; i < 2; i++) {
        const void *from = m->in[i].data;
        stage(r, &m->in[i], &at);
        if (from) TRY(r->device->download(m->in[i].data, from, bytes_of(r, &m->in[i]), err));
        stage(r, &m->out[i], &at);
    }
    return OK;
}

static enum status unstage_outputs(const struct meeting *m, struct error *err)
{
    const struct run *r = m->r;
    for (unsigned i = 0; i < 2; i++)
        if (m->out[i].data)
            TRY(r->device->upload(run_data(r, m->call->out[i]), m->out[i].data,
                                  bytes_of(r, &m->out[i]), err));
    return OK;
}

static enum status run_collective(const struct run *r, const struct call *c, struct error *err)
{
    static enum status (*const functions[])(const struct meeting *, struct error *) = {
        [OP_ALL_REDUCE - NUM_OPS] = all_reduce,
        [OP_ALL_GATHER - NUM_OPS] = all_gather,
        [OP_REDUCE_SCATTER - NUM_OPS] = reduce_scatter,
        [OP_ALL_TO_ALL - NUM_OPS] = all_to_all,
        [OP_SHIFT - NUM_OPS] = shift,
        [OP_SEND - NUM_OPS] = send,
        [OP_RECEIVE - NUM_OPS] = receive,
        [OP_SLICE - NUM_OPS] = slice,
    };
    struct meeting m = {.r = r, .call = c, .group = &r->groups->of[c->collective.group]};
    for (unsigned i = 0; i < 2; i++) {
        m.in[i] = operand_of(r, c->in[i]);
        m.out[i] = operand_of(r, c->out[i]);
    }
    if (r->device->is_host) return functions[c->op - NUM_OPS](&m, err);
    TRY(stage_inputs(&m, err));
    TRY(functions[c->op - NUM_OPS](&m, err));
    return unstage_outputs(&m, err);
}

/* ---- numbers ---- */

static bool numbers_are_finite(const struct operand *o, enum elem_type elem)
{
    uint64_t n = elements_of(o);
    bool finite = true;
    if (o->type == OPERAND_INT) return true;
    if (operand_bytes_of(o->type, elem) == 8)
        for (uint64_t i = 0; i < n; i++)
            finite &= isfinite(((const double *)o->data)[i]) != 0;
    else if (operand_bytes_of(o->type, elem) == 4)
        for (uint64_t i = 0; i < n; i++)
            finite &= isfinite(((const float *)o->data)[i]) != 0;
    else
        for (uint64_t i = 0; i < n; i++)
            finite &= (((const uint16_t *)o->data)[i] & 0x7f80) != 0x7f80;
    return finite;
}

enum status run_is_finite(const struct run *r, value_id id, bool *finite, struct error *err)
{
    struct operand o = operand_of(r, id);
    enum elem_type elem = r->program->elem;
    *finite = true;
    if (!o.data || o.type == OPERAND_INT) return OK;
    void *copy = r->device->is_host ? NULL : must_malloc(bytes_of(r, &o) + 1);
    enum status st = OK;
    if (copy) st = r->device->download(copy, o.data, bytes_of(r, &o), err);
    if (copy) o.data = copy;
    if (!st) *finite = numbers_are_finite(&o, elem);
    free(copy);
    return st;
}

/* Rows of experts behind those that hold something are never written. */
static bool has_unwritten_rows(const struct call *c)
{
    return c->op == OP_GROUPED_MATMUL || c->op == OP_PERMUTE || c->op == OP_ALL_TO_ALL ||
           (c->op == OP_ACTIVATION && c->in[1] != NO_VALUE) ||
           (c->op == OP_ALL_GATHER && c->collective.group == GROUP_ETP);
}

/* Why an output is not finite: a parameter among the inputs, or the op itself. */
static enum status tell_culprit(const struct run *r, const struct call *c, struct error *err)
{
    unsigned rank = r->groups->of[GROUP_WORLD].comm->rank;
    for (unsigned i = 0; i < MOST_INPUTS; i++) {
        bool finite = true;
        if (c->in[i] == NO_VALUE) continue;
        const struct program_value *v = &r->program->values[c->in[i]];
        if (v->class == VALUE_PARAMETER) TRY(run_is_finite(r, c->in[i], &finite, err));
        if (!finite)
            return fail(err, ERR_NUMERIC, "%s: has NaN or infinity (seen in %s, on rank %u)",
                        v->name, c->label, rank);
    }
    return fail(err, ERR_NUMERIC, "%s (%s, on rank %u) makes NaN or infinity of finite numbers",
                c->label, op_row(c->op)->name, rank);
}

static enum status check_numbers(const struct run *r, const struct call *c, struct error *err)
{
    if (has_unwritten_rows(c)) return OK;
    for (unsigned i = 0; i < MOST_OUTPUTS; i++) {
        /* Of rows without keys, of columns that are all padding: -infinity. */
        bool lse = c->op == OP_VOCAB_MAX || (c->op == OP_ATTENTION && i == 1), finite = true;
        if (c->out[i] != NO_VALUE && !lse) TRY(run_is_finite(r, c->out[i], &finite, err));
        if (!finite) return tell_culprit(r, c, err);
    }
    return OK;
}

/* ---- the whole ---- */

static enum status run_call(const struct run *r, const struct call *c, struct error *err)
{
    struct operand in[MOST_INPUTS], out[MOST_OUTPUTS];
    if (c->op >= NUM_OPS) return run_collective(r, c, err);
    if (!r->kernels[c->op].run)
        return fail(err, ERR_UNSUPPORTED, "%s has no %s", r->device->name, op_row(c->op)->name);
    for (unsigned i = 0; i < MOST_INPUTS; i++)
        in[i] = operand_of(r, c->in[i]);
    for (unsigned i = 0; i < MOST_OUTPUTS; i++)
        out[i] = operand_of(r, c->out[i]);
    void *workspace = c->workspace == NO_VALUE ? NULL : run_data(r, c->workspace);
    return r->kernels[c->op].run(&c->params, in, out, workspace, err);
}

enum status run_program(const struct run *r, struct error *err)
{
    for (size_t i = 0; i < r->program->num_calls; i++) {
        const struct call *c = &r->program->calls[i];
        double start = r->seconds ? seconds_now() : 0;
        if (interrupted()) return fail(err, ERR_INTERRUPTED, "interrupted");
        enum status st = run_call(r, c, err);
        if (st) return fail_in(err, "%s", c->label);
        if (r->seconds) TRY(r->device->synchronize(err));
        if (r->seconds) r->seconds[i] += seconds_now() - start;
        if (r->check_numbers) TRY(check_numbers(r, c, err));
    }
    return r->device->synchronize(err);
}
