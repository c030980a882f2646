/* bench.c - how long a pass takes, op by op. */
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/progress.h"
#include "train/engine_internal.h"
#include "train/ops.h"

/* Seconds of each call in each repeat: [num_calls of all chunks][repeats]. */
struct samples {
    double *seconds, *whole;
    size_t num_calls;
    unsigned repeats;
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, unsigned count)
{
    qsort(values, count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static enum status run_once(struct pass *p, double *seconds, double *whole, struct error *err)
{
    double start = seconds_now();
    for (size_t i = 0, at = 0; i < p->num_chunks; i++) {
        p->runs[i].seconds = seconds ? seconds + at : NULL;
        at += p->chunks[i].program.num_calls;
        TRY(run_program(&p->runs[i], err));
    }
    *whole = seconds_now() - start;
    return OK;
}

/* First the runs as a whole, then with a clock around each op, which costs time by itself. */
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

static enum status tell(const struct pass *p, const struct bench_request *q, struct samples *s,
                        struct error *err)
{
    struct bench_row *rows = must_calloc(s->num_calls + 1, sizeof *rows);
    size_t n = 0;
    for (size_t i = 0; i < p->num_chunks; i++) {
        const struct program *program = &p->chunks[i].program;
        for (size_t k = 0; k < program->num_calls; k++, n++) {
            const struct call *c = &program->calls[k];
            struct op_cost cost = op_cost(program, c);
            rows[n] = (struct bench_row){.label = c->label,
                                         .op = op_row(c->op)->name,
                                         .layer = c->layer,
                                         .seconds = median(s->seconds + n * s->repeats, s->repeats),
                                         .flops = cost.flops,
                                         .bytes = cost.bytes};
        }
    }
    double whole[3] = {median(s->whole, s->repeats), s->whole[0], s->whole[s->repeats - 1]};
    enum status st = q->visit(q->context, rows, n, whole, err);
    free(rows);
    return st;
}

static enum status measure(struct worker *w, struct pass *p, const struct bench_request *q,
                           struct error *err)
{
    struct samples s = {.repeats = q->repeats};
    for (size_t i = 0; i < p->num_chunks; i++)
        s.num_calls += p->chunks[i].program.num_calls;
    s.seconds = must_calloc(s.num_calls * s.repeats + 1, sizeof *s.seconds);
    s.whole = must_calloc(s.repeats + 1, sizeof *s.whole);
    enum status st = pass_set(p, &q->batch, q->past, err);
    if (!st) st = take_samples(p, q, &s, err);
    if (!st && w->comm.rank == 0) st = tell(p, q, &s, err);
    free(s.seconds);
    free(s.whole);
    return st;
}

enum status bench_rank(struct worker *w, const void *request, struct error *err)
{
    const struct bench_request *q = request;
    struct pass p = {0};
    enum status st = pass_make(&p, &w->model, &q->batch, &q->pass, err);
    if (!st) st = worker_load(w, err);
    if (!st) st = pass_allocate(&p, err);
    if (!st) st = measure(w, &p, q, err);
    pass_release(&p);
    return st;
}
