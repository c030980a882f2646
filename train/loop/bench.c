/* bench.c - times of a pass, op by op. */
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/median.h"
#include "common/memory.h"
#include "kernels/ceilings.h"
#include "train/loop/engine_internal.h"

/* Seconds of each call and repeat, [num_calls of all chunks][repeats], and of
 * each run. */
struct samples {
    double *seconds, *whole;
    double *alone; /* [num_calls]: of a call among equal calls; 0: not timed */
    size_t num_calls;
    unsigned repeats;
};

static enum status run_once(struct pass *p, double *seconds, double *whole, struct error *err)
{
    double start = seconds_now();
    for (size_t i = 0, at = 0; i < p->num_chunks; i++) {
        p->runs[i].seconds = seconds ? seconds + at : NULL;
        at += p->chunks[i].program.num_calls;
    }
    TRY(pass_prepare(p, err));
    for (size_t i = 0; i < p->num_chunks; i++)
        TRY(pass_run_chunk(p, i, err));
    *whole = seconds_now() - start;
    return OK;
}

/* Times whole runs first, then runs with marks between all ops, which cost time
 * themselves. */
static enum status take_samples(struct pass *p, const struct bench_request *q, struct samples *s,
                                struct error *err)
{
    double *once = must_calloc(s->num_calls + 1, sizeof *once), ignored;
    enum status st = OK;
    for (unsigned i = 0; i < q->warmups && !st; i++)
        st = run_once(p, NULL, &ignored, err);
    for (unsigned i = 0; i < s->repeats && !st; i++)
        st = run_once(p, NULL, &s->whole[i], err);
    for (unsigned i = 0; i < s->repeats && !st; i++) {
        memset(once, 0, s->num_calls * sizeof *once);
        st = run_once(p, once, &ignored, err);
        for (size_t k = 0; k < s->num_calls; k++)
            s->seconds[k * s->repeats + i] = once[k];
    }
    free(once);
    return st;
}

/* ---- ops by themselves ---- */

/* Marks between ops cost more than an op on a single token. So equal calls
 * (same op and name) of all layers are timed as a graph of their own: one
 * behind the other, each with its layer's weights, which no cache holds in a
 * model of many layers. They read the values left by the whole run. */

/* Name without its layer: "qkv" of "layers.3.qkv". */
static const char *call_name(const struct call *c)
{
    const char *dot = c->layer < 0 ? NULL : strchr(c->label + strlen("layers."), '.');
    return dot ? dot + 1 : c->label;
}

static bool is_made_integer(const struct program *p, value_id id)
{
    if (id == NO_VALUE || p->values[id].type != OPERAND_INT) return false;
    return p->values[program_home(p, id)].class != VALUE_INPUT;
}

/* Integers of other ops may be overwritten by then, and tell an op where to
 * read and write. A collective waits for other ranks. */
static bool can_be_alone(const struct program *p, const struct call *c)
{
    if (c->op >= NUM_OPS) return false;
    for (unsigned i = 0; i < MAX_INPUTS; i++)
        if (is_made_integer(p, c->in[i])) return false;
    return true;
}

/* Whether call k is timed with call `first`, which can be alone. */
static bool is_same_call(const struct program *p, size_t k, size_t first)
{
    const struct call *a = &p->calls[k], *b = &p->calls[first];
    return a->op == b->op && strcmp(call_name(a), call_name(b)) == 0 && can_be_alone(p, a);
}

static enum status record_same_calls(const struct run *r, size_t first, void **graph,
                                     struct error *err)
{
    const struct program *p = r->program;
    TRY(r->device->graphs->begin(err));
    enum status st = OK;
    for (size_t k = first; k < p->num_calls && !st; k++)
        if (is_same_call(p, k, first)) st = run_queue(r, k, k + 1, err);
    if (!st) st = r->device->graphs->end(graph, err);
    if (st) r->device->graphs->cancel();
    return st;
}

static enum status time_replays(const struct device *d, void *graph, double *all, unsigned repeats,
                                struct error *err)
{
    void *timer;
    TRY(d->timers->create(&timer, 2, err));
    enum status st = d->graphs->replay(graph, err);
    for (unsigned i = 0; i < repeats && !st; i++) {
        st = d->timers->mark(timer, 0, err);
        if (!st) st = d->graphs->replay(graph, err);
        if (!st) st = d->timers->mark(timer, 1, err);
        if (!st) st = d->synchronize(err);
        if (!st) st = d->timers->seconds(timer, 0, 1, &all[i], err);
    }
    d->timers->free(timer);
    return st;
}

/* alone: [num_calls] of this program. */
static enum status time_same_calls(const struct run *r, size_t first, unsigned repeats,
                                   double *alone, struct error *err)
{
    const struct program *p = r->program;
    void *graph;
    TRY(record_same_calls(r, first, &graph, err));
    double *all = must_calloc(repeats + 1, sizeof *all), count = 0;
    enum status st = time_replays(r->device, graph, all, repeats, err);
    r->device->graphs->release(graph);
    for (size_t k = first; k < p->num_calls; k++)
        count += is_same_call(p, k, first);
    const double seconds = st ? 0 : median(all, repeats) / count;
    for (size_t k = first; k < p->num_calls; k++)
        if (is_same_call(p, k, first)) alone[k] = seconds;
    free(all);
    return st;
}

static enum status time_alone(const struct pass *p, const struct samples *s, struct error *err)
{
    size_t at = 0;
    for (size_t i = 0; i < p->num_chunks; i++) {
        const struct program *program = &p->chunks[i].program;
        const char *refused;
        const bool graphs = run_count_graphs(&p->runs[i], &refused) > 0;
        for (size_t k = 0; graphs && k < program->num_calls; k++) {
            if (s->alone[at + k] > 0 || !can_be_alone(program, &program->calls[k])) continue;
            TRY(time_same_calls(&p->runs[i], k, s->repeats, s->alone + at, err));
        }
        at += program->num_calls;
    }
    return OK;
}

/* ---- the whole ---- */

/* All ranks measure at once: they share a device for the model, too. A run of
 * few repeats is a rough one. */
static enum status measure_ceilings(const struct model *m, unsigned repeats, struct bench_result *r,
                                    struct error *err)
{
    if (repeats > CEILING_MAX_REPEATS) repeats = CEILING_MAX_REPEATS;
    TRY(ceiling_of_products(m->device, m->options.elem, repeats, &r->product_rate, err));
    return ceiling_of_copies(m->device, repeats, &r->copy_rate, err);
}

static void fill_rows(const struct pass *p, const struct samples *s, struct bench_row *rows)
{
    size_t n = 0;
    for (size_t i = 0; i < p->num_chunks; i++) {
        const struct program *program = &p->chunks[i].program;
        for (size_t k = 0; k < program->num_calls; k++, n++) {
            const struct call *c = &program->calls[k];
            struct op_cost cost = program_cost(program, c);
            double by_marks = median(s->seconds + n * s->repeats, s->repeats);
            rows[n] = (struct bench_row){.name = call_name(c),
                                         .op = op_row(c->op)->name,
                                         .alone = s->alone[n] > 0,
                                         .seconds = s->alone[n] > 0 ? s->alone[n] : by_marks,
                                         .flops = cost.flops,
                                         .bytes = cost.bytes};
        }
    }
}

static enum status give_result(const struct pass *p, const struct bench_request *q,
                               struct samples *s, struct bench_result *r, struct error *err)
{
    struct bench_row *rows = must_calloc(s->num_calls + 1, sizeof *rows);
    fill_rows(p, s, rows);
    r->rows = rows;
    r->num_rows = s->num_calls;
    r->seconds = median(s->whole, s->repeats); /* sorts them */
    r->fastest = s->whole[0];
    r->slowest = s->whole[s->repeats - 1];
    r->device = p->model->device->describe();
    r->collectives = collectives_name(&p->model->collectives);
    for (size_t i = 0; i < p->num_chunks; i++) {
        const char *refused;
        r->graphs += run_count_graphs(&p->runs[i], &refused);
        if (refused) r->refused = refused;
    }
    enum status st = q->visit(q->context, r, err);
    free(rows);
    return st;
}

static enum status measure_pass(struct worker *w, struct pass *p, const struct bench_request *q,
                                struct bench_result *r, struct error *err)
{
    struct samples s = {.repeats = q->repeats};
    for (size_t i = 0; i < p->num_chunks; i++)
        s.num_calls += p->chunks[i].program.num_calls;
    s.seconds = must_calloc(s.num_calls * s.repeats + 1, sizeof *s.seconds);
    s.whole = must_calloc(s.repeats + 1, sizeof *s.whole);
    s.alone = must_calloc(s.num_calls + 1, sizeof *s.alone);
    enum status st = pass_set(p, &q->batch, err);
    if (!st) st = take_samples(p, q, &s, err);
    if (!st) st = pass_is_finite(p, &r->finite, err);
    if (!st) st = time_alone(p, &s, err);
    if (!st && w->comm.rank == 0) st = give_result(p, q, &s, r, err);
    free(s.seconds);
    free(s.whole);
    free(s.alone);
    return st;
}

/* Measures ceilings first, while device memory is free. */
enum status bench_rank(struct worker *w, const void *request, struct error *err)
{
    const struct bench_request *q = request;
    struct bench_result r = {0};
    struct pass p = {0};
    const struct work work = {&p, "a run"};
    enum status st = pass_make(&p, &w->model, &q->batch, &q->pass, err);
    if (!st) st = worker_fit(w, &work, 1, false, err);
    if (!st) st = measure_ceilings(&w->model, q->repeats, &r, err);
    if (!st) st = worker_load(w, err);
    if (!st) st = pass_allocate(&p, err);
    if (!st) st = measure_pass(w, &p, q, &r, err);
    st = worker_end(w, &work, 1, st, err);
    pass_release(&p);
    return st;
}
