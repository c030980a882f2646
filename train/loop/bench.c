/* bench.c - how long a pass takes, op by op. */
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/memory.h"
#include "common/progress.h"
#include "kernels/cpu/cast.h"
#include "train/loop/engine_internal.h"

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

/* ---- ceilings ---- */

/* Work that is timed several times, for the median. */
typedef enum status timed(void *context, struct error *err);

enum { CEILING_REPEATS = 9, LEAST_SIDE = 256, MAX_SIDE = 8192 };
#define LEAST_COPY ((uint64_t)64 << 20) /* more than caches hold */
#define MAX_COPY ((uint64_t)1 << 30)

/* Sizes grow until one run takes so many seconds, or to the largest. */
#define LONG_ENOUGH 0.02

/* Mark i stands before run i, so that the last one stands behind the last run. */
static enum status run_with_marks(timed *work, void *context, const struct device *device,
                                  void *timer, double all[CEILING_REPEATS], struct error *err)
{
    TRY(work(context, err)); /* the first two warm it up */
    TRY(work(context, err));
    for (unsigned i = 0; i < CEILING_REPEATS; i++) {
        TRY(device->timers->mark(timer, i, err));
        TRY(work(context, err));
    }
    TRY(device->timers->mark(timer, CEILING_REPEATS, err));
    TRY(device->synchronize(err));
    for (unsigned i = 0; i < CEILING_REPEATS; i++)
        TRY(device->timers->seconds(timer, i, i + 1, &all[i], err));
    return OK;
}

static enum status median_of(timed *work, void *context, const struct device *device,
                             double *seconds, struct error *err)
{
    double all[CEILING_REPEATS];
    void *timer;
    TRY(device->timers->create(&timer, CEILING_REPEATS + 1, err));
    enum status st = run_with_marks(work, context, device, timer, all, err);
    device->timers->free(timer);
    if (!st) *seconds = median(all, CEILING_REPEATS);
    return st;
}

struct ceiling {
    const struct device *device;
    const struct op_kernel *kernel; /* of OP_MATMUL */
    enum elem_type elem;
    uint64_t side, bytes;
    char *memory; /* two buffers of `bytes`; or two operands, the product, the workspace */
};

static enum status copy_once(void *context, struct error *err)
{
    struct ceiling *c = context;
    return c->device->copy(c->memory, c->memory + c->bytes, c->bytes, err);
}

static enum status multiply_once(void *context, struct error *err)
{
    struct ceiling *c = context;
    struct operand in[MAX_INPUTS] = {0}, out[MAX_OUTPUTS] = {0};
    union op_params params = {.matmul = {.transpose_b = true, .alpha = 1}};
    for (unsigned i = 0; i < 2; i++)
        in[i] = (struct operand){c->memory + i * c->bytes, OPERAND_ELEM, 2, {c->side, c->side}};
    out[0] = (struct operand){c->memory + 2 * c->bytes, OPERAND_ELEM, 2, {c->side, c->side}};
    return c->kernel->run(&params, in, out, c->memory + 3 * c->bytes, err);
}

/* Numbers of both signs: on zeros a GPU computes faster than on a model's. */
static enum status fill(const struct ceiling *c, struct error *err)
{
    const uint64_t count = c->side * c->side;
    float *numbers = must_malloc(count * sizeof *numbers);
    void *elements = must_malloc(c->bytes);
    for (uint64_t i = 0; i < count; i++)
        numbers[i] = (float)(i * 2654435761u % 2001) / 1000 - 1;
    (void)cast_elements(elements, elem_dtype(c->elem), numbers, DT_F32, count);
    enum status st = c->device->upload(c->memory, elements, c->bytes, err);
    if (!st) st = c->device->upload(c->memory + c->bytes, elements, c->bytes, err);
    free(elements);
    free(numbers);
    return st;
}

static uint64_t product_workspace(const struct ceiling *c)
{
    const union op_params params = {.matmul = {.transpose_b = true, .alpha = 1}};
    const struct operand x = {NULL, OPERAND_ELEM, 2, {c->side, c->side}};
    const struct operand in[MAX_INPUTS] = {x, x}, out[MAX_OUTPUTS] = {x};
    return c->kernel->workspace ? c->kernel->workspace(&params, in, out) : 0;
}

static enum status time_product(struct ceiling *c, double *seconds, struct error *err)
{
    void *memory;
    c->bytes = c->side * c->side * operand_bytes_of(OPERAND_ELEM, c->elem);
    TRY(c->device->allocate(&memory, 3 * c->bytes + product_workspace(c), "a large product", err));
    c->memory = memory;
    enum status st = fill(c, err);
    if (!st) st = median_of(multiply_once, c, c->device, seconds, err);
    c->device->release(memory);
    return st;
}

static enum status time_copy(struct ceiling *c, double *seconds, struct error *err)
{
    void *memory;
    TRY(c->device->allocate(&memory, 2 * c->bytes, "a large copy", err));
    c->memory = memory;
    enum status st = median_of(copy_once, c, c->device, seconds, err);
    c->device->release(memory);
    return st;
}

/* All ranks measure at once: a device that they share is shared for the model, too. A size that
 * does not fit is none of what it can do, where a smaller one did. */
static enum status measure_ceilings(const struct model *m, struct bench_result *r,
                                    struct error *err)
{
    struct ceiling c = {
        .device = m->device, .kernel = &m->kernels[OP_MATMUL], .elem = m->options.elem};
    double seconds = 0;
    for (c.side = LEAST_SIDE; c.side <= MAX_SIDE && seconds < LONG_ENOUGH; c.side *= 2) {
        enum status st = time_product(&c, &seconds, err);
        if (st == ERR_MEMORY && r->product_rate > 0) break;
        if (st) return st;
        r->product_rate = 2 * (double)c.side * (double)c.side * (double)c.side / seconds;
    }
    seconds = 0;
    for (c.bytes = LEAST_COPY; c.bytes <= MAX_COPY && seconds < LONG_ENOUGH; c.bytes *= 2) {
        enum status st = time_copy(&c, &seconds, err);
        if (st == ERR_MEMORY && r->copy_rate > 0) break;
        if (st) return st;
        r->copy_rate = 2 * (double)c.bytes / seconds;
    }
    return OK;
}

/* ---- the whole ---- */

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
