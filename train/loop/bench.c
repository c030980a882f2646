/* bench.c - how long a pass takes, op by op. */
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/median.h"
#include "common/memory.h"
#include "kernels/ceilings.h"
#include "train/loop/engine_internal.h"

/* Seconds of each call in each repeat: [num_calls of all chunks][repeats]. */
struct samples {
    double *seconds, *whole;
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

/* First the runs as a whole, then with marks between all ops, which cost time themselves. */
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

/* ---- the whole ---- */

/* All ranks measure at once: a device that they share is shared for the model, too. */
static enum status measure_ceilings(const struct model *m, struct bench_result *r,
                                    struct error *err)
{
    TRY(ceiling_of_products(m->device, m->options.elem, CEILING_MAX_REPEATS, &r->product_rate,
                            err));
    return ceiling_of_copies(m->device, CEILING_MAX_REPEATS, &r->copy_rate, err);
}

static void fill_rows(const struct pass *p, const struct samples *s, struct bench_row *rows)
{
    size_t n = 0;
    for (size_t i = 0; i < p->num_chunks; i++) {
        const struct program *program = &p->chunks[i].program;
        for (size_t k = 0; k < program->num_calls; k++, n++) {
            const struct call *c = &program->calls[k];
            struct op_cost cost = program_cost(program, c);
            rows[n] = (struct bench_row){.label = c->label,
                                         .op = op_row(c->op)->name,
                                         .layer = c->layer,
                                         .seconds = median(s->seconds + n * s->repeats, s->repeats),
                                         .flops = cost.flops,
                                         .bytes = cost.bytes};
        }
    }
}

static enum status tell(const struct pass *p, const struct bench_request *q, struct samples *s,
                        struct bench_result *r, struct error *err)
{
    struct bench_row *rows = must_calloc(s->num_calls + 1, sizeof *rows);
    fill_rows(p, s, rows);
    r->rows = rows;
    r->num_rows = s->num_calls;
    r->seconds = median(s->whole, s->repeats); /* which sorts them */
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

static enum status measure(struct worker *w, struct pass *p, const struct bench_request *q,
                           struct bench_result *r, struct error *err)
{
    struct samples s = {.repeats = q->repeats};
    for (size_t i = 0; i < p->num_chunks; i++)
        s.num_calls += p->chunks[i].program.num_calls;
    s.seconds = must_calloc(s.num_calls * s.repeats + 1, sizeof *s.seconds);
    s.whole = must_calloc(s.repeats + 1, sizeof *s.whole);
    enum status st = pass_set(p, &q->batch, err);
    if (!st) st = take_samples(p, q, &s, err);
    if (!st) st = pass_is_finite(p, &r->finite, err);
    if (!st && w->comm.rank == 0) st = tell(p, q, &s, r, err);
    free(s.seconds);
    free(s.whole);
    return st;
}

/* The ceilings first, while the device's memory is free. */
enum status bench_rank(struct worker *w, const void *request, struct error *err)
{
    const struct bench_request *q = request;
    struct bench_result r = {0};
    struct pass p = {0};
    const struct work work = {&p, "a run"};
    enum status st = pass_make(&p, &w->model, &q->batch, &q->pass, err);
    if (!st) st = worker_fit(w, &work, 1, false, err);
    if (!st) st = measure_ceilings(&w->model, &r, err);
    if (!st) st = worker_load(w, err);
    if (!st) st = pass_allocate(&p, err);
    if (!st) st = measure(w, &p, q, &r, err);
    st = worker_end(w, &work, 1, st, err);
    pass_release(&p);
    return st;
}
