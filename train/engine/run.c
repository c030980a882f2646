#include "train/engine/run.h"

#include <math.h>
#include <stdlib.h>

#include "common/memory.h"
#include "common/threads.h"

void *run_data(const struct run *r, value_id id)
{
    const struct program_value *v = &r->program->values[id];
    const struct program_value *home = &r->program->values[program_home(r->program, id)];
    return (char *)r->regions[home->class] + home->offset + (v == home ? 0 : v->offset);
}

static struct operand operand_of(const struct run *r, value_id id)
{
    struct operand o = program_operand(r->program, id);
    if (id != NO_VALUE) o.data = run_data(r, id);
    return o;
}

static uint64_t operand_data_bytes(const struct run *r, const struct operand *o)
{
    return operand_numel(o) * operand_bytes_of(o->type, r->program->elem);
}

/* ---- numbers ---- */

static bool numbers_are_finite(const struct operand *o, enum elem_type elem)
{
    const uint64_t n = operand_numel(o);
    const uint16_t infinite = elem == ELEM_F16 ? 0x7c00 : 0x7f80; /* of 16 bits */
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
            finite &= (((const uint16_t *)o->data)[i] & infinite) != infinite;
    return finite;
}

enum status run_is_finite(const struct run *r, value_id id, bool *finite, struct error *err)
{
    struct operand o = operand_of(r, id);
    enum elem_type elem = r->program->elem;
    *finite = true; /* scales are, since they were loaded */
    if (!o.data || o.type == OPERAND_INT || o.coding) return OK;
    void *copy = r->device->is_host ? NULL : must_malloc(operand_data_bytes(r, &o) + 1);
    enum status st = OK;
    if (copy) st = r->device->download(copy, o.data, operand_data_bytes(r, &o), err);
    if (copy) o.data = copy;
    if (!st) *finite = numbers_are_finite(&o, elem);
    free(copy);
    return st;
}

/* Names the cause of NaN or infinity: a parameter among the inputs, or the op.
 */
static enum status fail_with_culprit(const struct run *r, const struct call *c, struct error *err)
{
    unsigned rank = r->collectives->groups->of[GROUP_WORLD].comm->rank;
    for (unsigned i = 0; i < MAX_INPUTS; i++) {
        bool finite = true;
        if (c->in[i] == NO_VALUE) continue;
        const struct program_value *v = &r->program->values[c->in[i]];
        if (v->class == VALUE_PARAMETER) TRY(run_is_finite(r, c->in[i], &finite, err));
        if (!finite)
            return fail(err, ERR_NUMERIC, "%s: has NaN or infinity (seen in %s, on rank %u)",
                        v->name, c->label, rank);
    }
    return fail(err, ERR_NUMERIC,
                "%s (%s, on rank %u) computes NaN or infinity from finite numbers", c->label,
                op_row(c->op)->name, rank);
}

static enum status check_numbers(const struct run *r, const struct call *c, struct error *err)
{
    const struct op_row *row = op_row(c->op);
    for (unsigned i = 0; i < row->num_out; i++) {
        bool finite = true;
        if (c->out[i] == NO_VALUE || row->out[i].may_be_infinite) continue;
        if (!r->program->values[c->out[i]].is_partial)
            TRY(run_is_finite(r, c->out[i], &finite, err));
        if (!finite) return fail_with_culprit(r, c, err);
    }
    return OK;
}

/* ---- calls ---- */

static enum status run_call(const struct run *r, const struct call *c, struct error *err)
{
    struct operand in[MAX_INPUTS], out[MAX_OUTPUTS];
    for (unsigned i = 0; i < MAX_INPUTS; i++)
        in[i] = operand_of(r, c->in[i]);
    for (unsigned i = 0; i < MAX_OUTPUTS; i++)
        out[i] = operand_of(r, c->out[i]);
    if (c->op >= NUM_OPS) return collectives_run(r->collectives, r->program, c, in, out, err);
    if (!r->kernels[c->op].run)
        return fail(err, ERR_UNSUPPORTED, "device %s has no kernel for %s", r->device->name,
                    op_row(c->op)->name);
    void *workspace = c->workspace == NO_VALUE ? NULL : run_data(r, c->workspace);
    return r->kernels[c->op].run(&c->params, in, out, workspace, err);
}

/* Mark i + 1 of the timer, if any, stands behind call i. */
static enum status run_calls(const struct run *r, size_t first, size_t end, void *timer,
                             struct error *err)
{
    for (size_t i = first; i < end; i++) {
        const struct call *c = &r->program->calls[i];
        TRY(work_check(err));
        enum status st = run_call(r, c, err);
        if (st == ERR_INTERRUPTED || st == ERR_RANK) return st; /* not of this op */
        if (st) return fail_in(err, "%s", c->label);
        if (timer) TRY(r->device->timers->mark(timer, i + 1, err));
        if (r->check_numbers) TRY(collectives_finish(r->collectives, err));
        if (r->check_numbers) TRY(check_numbers(r, c, err));
    }
    return OK;
}

enum status run_queue(const struct run *r, size_t first, size_t end, struct error *err)
{
    return run_calls(r, first, end, NULL, err);
}

enum status run_wait(const struct run *r, struct error *err)
{
    TRY(work_check(err));
    return collectives_finish(r->collectives, err);
}

/* ---- clocks ---- */

static enum status add_seconds(const struct run *r, void *timer, struct error *err)
{
    for (size_t i = 0; i < r->program->num_calls; i++) {
        double seconds;
        TRY(r->device->timers->seconds(timer, i, i + 1, &seconds, err));
        r->seconds[i] += seconds;
    }
    return OK;
}

/* The host does not wait between calls: a launch overlaps with the call before
 * it, as in a run without timers. */
static enum status run_timed(const struct run *r, struct error *err)
{
    const struct device_timers *timers = r->device->timers;
    void *timer;
    TRY(timers->create(&timer, r->program->num_calls + 1, err));
    enum status st = timers->mark(timer, 0, err);
    if (!st) st = run_calls(r, 0, r->program->num_calls, timer, err);
    if (!st) st = collectives_finish(r->collectives, err);
    if (!st) st = add_seconds(r, timer, err);
    timers->free(timer);
    return st;
}

/* ---- graphs ---- */

/* Calls [first, end) without waits for the host, or a single one that waits. */
struct stretch {
    size_t first, end;
    bool waits;
    void *graph;
};

struct graphs {
    bool has_run, recorded; /* it runs once without them */
    struct stretch *stretches;
    size_t count;
    bool refused; /* the device cannot record these calls */
    struct error why;
};

static void cut_into_stretches(const struct run *r, struct graphs *g)
{
    g->stretches = must_calloc(r->program->num_calls + 1, sizeof *g->stretches);
    for (size_t i = 0; i < r->program->num_calls; i++) {
        bool waits = collectives_wait_for_host(r->collectives, &r->program->calls[i]);
        if (waits || !g->count || g->stretches[g->count - 1].waits)
            g->stretches[g->count++] = (struct stretch){.first = i, .waits = waits};
        g->stretches[g->count - 1].end = i + 1;
    }
}

void run_use_graphs(struct run *r)
{
    if (!r->device->graphs || r->graphs) return;
    r->graphs = must_calloc(1, sizeof *r->graphs);
    cut_into_stretches(r, r->graphs);
}

static void forget_graphs(const struct run *r)
{
    for (size_t i = 0; i < r->graphs->count; i++) {
        if (r->graphs->stretches[i].graph)
            r->device->graphs->release(r->graphs->stretches[i].graph);
        r->graphs->stretches[i].graph = NULL;
    }
}

void run_release_graphs(struct run *r)
{
    struct graphs *g = r->graphs;
    if (!g) return;
    forget_graphs(r);
    free(g->stretches);
    free(g);
    r->graphs = NULL;
}

unsigned run_count_graphs(const struct run *r, const char **refused)
{
    unsigned n = 0;
    *refused = r->graphs && r->graphs->refused ? r->graphs->why.text : NULL;
    for (size_t i = 0; r->graphs && i < r->graphs->count; i++)
        n += r->graphs->stretches[i].graph != NULL;
    return n;
}

static enum status record_graph(const struct run *r, struct stretch *s, struct error *err)
{
    TRY(r->device->graphs->begin(err));
    enum status st = run_calls(r, s->first, s->end, NULL, err);
    if (!st) st = r->device->graphs->end(&s->graph, err);
    if (st) r->device->graphs->cancel();
    return st;
}

/* Recording computes nothing. All ranks have graphs, or none: calls of several
 * ranks are in a graph on each of them, or on none. */
static enum status record_graphs(const struct run *r, struct error *err)
{
    struct graphs *g = r->graphs;
    struct comm_group *world = &r->collectives->groups->of[GROUP_WORLD];
    for (size_t i = 0; i < g->count && !g->refused; i++)
        if (!g->stretches[i].waits) g->refused = record_graph(r, &g->stretches[i], &g->why) != OK;
    int32_t refused = g->refused;
    g->recorded = true;
    TRY(world->comm->backend->all_reduce(world, &refused, 1, COMM_INT32, COMM_MAX, err));
    if (!refused) return OK;
    if (!g->refused) (void)!fail(&g->why, ERR_DEVICE, "another rank could not record its graphs");
    g->refused = true;
    forget_graphs(r);
    return OK;
}

static enum status run_stretches(const struct run *r, struct error *err)
{
    for (size_t i = 0; i < r->graphs->count; i++) {
        const struct stretch *s = &r->graphs->stretches[i];
        TRY(work_check(err));
        if (s->graph)
            TRY(r->device->graphs->replay(s->graph, err));
        else
            TRY(run_calls(r, s->first, s->end, NULL, err));
    }
    return OK;
}

/* ---- the whole ---- */

static bool runs_as_graphs(const struct run *r)
{
    return r->graphs && r->graphs->has_run && !r->seconds && !r->check_numbers;
}

enum status run_prepare(const struct run *r, struct error *err)
{
    return runs_as_graphs(r) && !r->graphs->recorded ? record_graphs(r, err) : OK;
}

enum status run_start(const struct run *r, struct error *err)
{
    const bool as_graphs = runs_as_graphs(r);
    TRY(run_prepare(r, err));
    if (as_graphs)
        TRY(run_stretches(r, err));
    else if (r->seconds)
        TRY(run_timed(r, err));
    else
        TRY(run_calls(r, 0, r->program->num_calls, NULL, err));
    if (r->graphs) r->graphs->has_run = true;
    return OK;
}

enum status run_program(const struct run *r, struct error *err)
{
    TRY(run_start(r, err));
    return run_wait(r, err);
}
