#include "tests/gpu/large_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "kernels/op_table.h"
#include "tests/gpu/trial.h"

static const struct device_kernel *find_kernel(const struct device *d, unsigned op,
                                               enum elem_type elem, const char *name)
{
    const struct device_kernel *k = d->kernels ? d->kernels(op) : NULL;
    while (k && k->name && (k->elem != elem || strcmp(k->name, name) != 0))
        k++;
    return k && k->name ? k : NULL;
}

/* ---- one kernel ---- */

enum { TIMED_RUNS = 5 };

/* Results on the host. */
struct results {
    void *of[MAX_OUTPUTS];
    double seconds; /* of one run, the median */
};

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum status time_runs(const struct trial *t, const struct device *d, void *timer,
                             double *median, struct error *err)
{
    double seconds[TIMED_RUNS];
    for (unsigned i = 0; i < TIMED_RUNS; i++) {
        TRY(d->timers->mark(timer, i, err));
        TRY(trial_run(t, d, err));
    }
    TRY(d->timers->mark(timer, TIMED_RUNS, err));
    TRY(d->synchronize(err));
    for (unsigned i = 0; i < TIMED_RUNS; i++)
        TRY(d->timers->seconds(timer, i, i + 1, &seconds[i], err));
    qsort(seconds, TIMED_RUNS, sizeof *seconds, by_value);
    *median = seconds[TIMED_RUNS / 2];
    return OK;
}

static enum status keep_results(const struct trial *t, const struct device *d, struct results *r,
                                struct error *err)
{
    for (unsigned i = 0; i < MAX_OUTPUTS; i++) {
        const size_t bytes = operand_numel(&t->out[i]) * operand_bytes_of(t->out[i].type, t->elem);
        if (!t->out[i].data) continue;
        r->of[i] = malloc(bytes + 1);
        if (!r->of[i]) return fail(err, ERR_MEMORY, "no memory for a result");
        TRY(d->download(r->of[i], t->device_out[i].data, bytes, err));
    }
    return OK;
}

/* Runs a kernel on the trial's operands: results of the first run, time of
 * later ones. */
static enum status run_kernel(struct trial *t, const struct device_kernel *k,
                              const struct device *d, struct results *r, struct error *err)
{
    void *timer = NULL;
    t->kernel = &k->kernel;
    enum status st = trial_upload(t, d, err);
    if (!st && !k->takes(&t->params, t->device_in, t->device_out))
        st = fail(err, ERR_UNSUPPORTED, "%s does not take it", k->name);
    if (!st) st = trial_run(t, d, err);
    if (!st) st = keep_results(t, d, r, err);
    if (!st) st = d->timers->create(&timer, TIMED_RUNS + 1, err);
    if (!st) st = time_runs(t, d, timer, &r->seconds, err);
    if (timer) d->timers->free(timer);
    trial_release_device(t, d);
    return st;
}

/* ---- two of them ---- */

/* Allows for another order of sums and rounded weights: for REAL 2^-12, for
 * ELEM four roundings. */
static double limit_of(const struct trial *t, enum operand_type type)
{
    return type == OPERAND_REAL ? 0x1p-12 : t->elem == ELEM_F16 ? 0x1p-9 : 0x1p-6;
}

/* The largest difference in a row, as a share of the limit for the row's
 * largest number: rows differ in size as they average more or less. NaN is
 * infinitely far from everything. */
static double row_difference(const struct trial *t, const struct operand *x,
                             const struct operand *y, size_t first, size_t columns)
{
    double largest = 0, off = 0;
    for (size_t i = first; i < first + columns; i++) {
        const double a = operand_get(t, x, i), b = operand_get(t, y, i);
        if (a == b && isinf(a)) continue; /* lse of a row without keys */
        largest = fmax(largest, fabs(a));
        off = isfinite(a) && isfinite(b) ? fmax(off, fabs(a - b)) : (double)INFINITY;
        if (isinf(off)) return off;
    }
    return off > 0 ? off / (largest * limit_of(t, x->type)) : 0;
}

/* The largest difference over all rows of all outputs. */
static double worst_difference(const struct trial *t, const struct results *plain,
                               const struct results *faster)
{
    double worst = 0;
    for (unsigned i = 0; i < MAX_OUTPUTS; i++) {
        struct operand x = t->out[i], y = t->out[i];
        const size_t columns = x.num_dims ? x.shape[x.num_dims - 1] : 0;
        if (!x.data) continue;
        x.data = plain->of[i];
        y.data = faster->of[i];
        for (size_t first = 0; first < operand_numel(&x); first += columns)
            worst = fmax(worst, row_difference(t, &x, &y, first, columns));
    }
    return worst;
}

struct pair {
    const struct device_kernel *plain, *faster;
};

struct comparison {
    double worst, plain_seconds, faster_seconds;
};

static enum status compare_pair(struct trial *t, const struct pair *p, const struct device *d,
                                struct comparison *c, struct error *err)
{
    struct results plain = {.seconds = 0}, faster = {.seconds = 0};
    enum status st = run_kernel(t, p->plain, d, &plain, err);
    if (!st) st = run_kernel(t, p->faster, d, &faster, err);
    if (!st)
        *c = (struct comparison){worst_difference(t, &plain, &faster), plain.seconds,
                                 faster.seconds};
    for (unsigned i = 0; i < MAX_OUTPUTS; i++) {
        free(plain.of[i]);
        free(faster.of[i]);
    }
    return st;
}

/* ---- operands: shapes first, since a kernel may not take them ---- */

static char somewhere[256] __attribute__((aligned(256)));

#define SHAPE(kind, ...)                                                                           \
    ((struct operand){.data = somewhere,                                                           \
                      .type = kind,                                                                \
                      .num_dims = sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t),            \
                      .shape = {__VA_ARGS__}})

static bool takes_shapes(const struct trial *t, const struct device_kernel *k)
{
    if (!k) return false;
    if (k->kernel.workspace) (void)k->kernel.workspace(&t->params, t->in, t->out);
    return k->takes(&t->params, t->in, t->out);
}

static void make_operand(struct trial *t, struct operand *o)
{
    const struct operand shape = *o;
    if (shape.data) trial_make(t, o, shape.type, shape.num_dims, shape.shape);
}

static void make_operands(struct trial *t)
{
    for (unsigned i = 0; i < MAX_INPUTS; i++)
        make_operand(t, &t->in[i]);
    for (unsigned i = 0; i < MAX_OUTPUTS; i++)
        make_operand(t, &t->out[i]);
}

static const char *elem_name(enum elem_type elem)
{
    return elem == ELEM_F16 ? "f16" : "bf16";
}

/* ---- attention of a prefill ---- */

static const struct prefill {
    enum elem_type elem;
    uint32_t sequences, length;
    struct head_shape heads;
    bool lse;
} prefills[] = {
    {ELEM_BF16, 1, 8192, {8, 4, 128}, false},
    {ELEM_BF16, 2, 4096, {8, 4, 128}, true},
    {ELEM_BF16, 1, 8192, {8, 5, 96}, false},
    {ELEM_F16, 1, 8192, {8, 4, 128}, true},
};

static void shape_prefill(struct trial *t, const struct prefill *p)
{
    const struct head_shape h = p->heads;
    const uint64_t rows = (uint64_t)p->sequences * p->length,
                   heads = (uint64_t)h.groups * h.queries;
    const uint64_t qkv = (heads + 2 * h.groups) * h.head_dim;
    t->params.attention.heads = h;
    t->params.attention.q_stride = t->params.attention.kv_stride = (h.queries + 2) * h.head_dim;
    t->params.attention.k_at = h.queries * h.head_dim;
    t->params.attention.v_at = t->params.attention.k_at + h.head_dim;
    t->params.attention.scale = 1 / sqrt(h.head_dim);
    t->params.attention.causal = true;
    t->params.attention.uniform_sequences = p->sequences;
    t->in[0] = t->in[1] = SHAPE(OPERAND_ELEM, rows, qkv);
    t->in[2] = SHAPE(OPERAND_INT, p->sequences, 6);
    t->out[0] = SHAPE(OPERAND_ELEM, rows, heads * h.head_dim);
    if (p->lse) t->out[1] = SHAPE(OPERAND_REAL, rows, heads);
}

static void set_spans(const struct prefill *p, int32_t *spans)
{
    for (uint32_t i = 0; i < p->sequences; i++) {
        const int32_t first = (int32_t)(i * p->length), length = (int32_t)p->length;
        const int32_t span[] = {first, length, 0, first, length, 0};
        memcpy(spans + (size_t)i * 6, span, sizeof span);
    }
}

/* TFLOP/s: two products of each query with the keys up to it. */
static double prefill_rate(const struct prefill *p, double seconds)
{
    const double pairs = (double)p->sequences * p->length * (p->length + 1.0) / 2;
    return 4 * pairs * p->heads.groups * p->heads.queries * p->heads.head_dim / seconds * 1e-12;
}

static void report_prefill(const struct prefill *p, const struct pair *kernels,
                           const struct comparison *c)
{
    printf("%s %.3f ms, %.0f TFLOP/s; %s %.3f ms, %.0f TFLOP/s; difference %.3f of the tolerance\n",
           kernels->faster->name, c->faster_seconds * 1e3, prefill_rate(p, c->faster_seconds),
           kernels->plain->name, c->plain_seconds * 1e3, prefill_rate(p, c->plain_seconds),
           c->worst);
}

static bool check_prefill(const struct prefill *p, const char *faster, const struct device *d)
{
    const struct pair kernels = {find_kernel(d, OP_ATTENTION, p->elem, "mma"),
                                 find_kernel(d, OP_ATTENTION, p->elem, faster)};
    struct trial t = {.op = OP_ATTENTION, .elem = p->elem};
    struct comparison c = {.worst = 0};
    struct error err;
    char what[64];
    shape_prefill(&t, p);
    (void)snprintf(what, sizeof what, "attention [%u x %u, %u/%u, %u] %s", p->sequences, p->length,
                   p->heads.groups * p->heads.queries, p->heads.groups, p->heads.head_dim,
                   elem_name(p->elem));
    if (!takes_shapes(&t, kernels.plain) || !takes_shapes(&t, kernels.faster)) {
        printf("skipped: %s: no %s that takes it on %s\n", what, faster, d->describe());
        return true;
    }
    make_operands(&t);
    set_spans(p, t.in[2].data);
    const enum status st = compare_pair(&t, &kernels, d, &c, &err);
    const bool good = !st && c.worst <= 1;
    printf("%-6s %s ", good ? "ok" : "FAILED", what);
    if (st)
        printf("%s\n", err.text);
    else
        report_prefill(p, &kernels, &c);
    trial_release(&t, d);
    return good;
}

bool check_large(const struct device *d)
{
    bool good = true;
    random_start(1);
    for (size_t i = 0; i < COUNT(prefills); i++)
        good &= check_prefill(&prefills[i], "cudnn", d) &
                check_prefill(&prefills[i], "attention_sm90", d);
    return good;
}

/* ---- kernels of compute capability 9.0 ---- */

/* The first trials: n and k of decoding, where every warp of a large GPU makes
 * many columns and refills its buffers; columns and row ends of which no warp
 * has a full share; rows shorter than a warp. */
static const struct few_rows_shape {
    uint64_t m, n, k;
} few_rows_shapes[] = {
    {1, 28672, 4096},
    {2, 4099, 14336},
    {4, 28675, 1544},
    {3, 5000, 8},
};

/* Then random shapes of at most about 2^24 elements: rows of any length
 * divisible by 16 bytes. */
static struct few_rows_shape any_few_rows(void)
{
    const uint64_t k = 8 * random_between(1, 2048);
    return (struct few_rows_shape){random_between(1, 4), random_between(1, (1 << 24) / k + 1), k};
}

static void shape_few_rows(struct trial *t, unsigned number, bool small)
{
    const size_t num_fixed = COUNT(few_rows_shapes);
    const struct few_rows_shape s = number < num_fixed ? few_rows_shapes[number] : any_few_rows();
    const uint64_t most = (1 << 15) / s.k + 1, n = small && s.n > most ? most : s.n;
    t->params.matmul.transpose_b = true;
    t->params.matmul.alpha = random_between(0, 1) ? 1 : 0.25;
    t->in[0] = SHAPE(OPERAND_ELEM, s.m, s.k);
    t->in[1] = SHAPE(OPERAND_ELEM, n, s.k);
    if (random_between(0, 1)) t->in[2] = SHAPE(OPERAND_ELEM, n);
    t->out[0] = SHAPE(random_between(0, 1) ? OPERAND_ELEM : OPERAND_REAL, s.m, n);
}

enum { MOST_SPANS = 3 }; /* for each sequence */

/* Supported head sizes in turn, with all features of the op. The first trials
 * have enough keys to use every stage of a ring of blocks three times. */
static void shape_attention(struct trial *t, unsigned number, bool small)
{
    static const uint32_t head_dims[] = {64, 128, 256};
    const bool is_long = number < COUNT(head_dims), is_one = small && is_long;
    const uint64_t most = small ? 300 : 3000;
    const struct prefill p = {
        .sequences = (uint32_t)random_between(1, is_one ? 1 : 2),
        .length = (uint32_t)(is_long ? random_between(530, 700) : random_between(1, most)),
        .heads = {.groups = (uint32_t)random_between(1, is_one  ? 1
                                                        : small ? 2
                                                                : 4),
                  .queries = (uint32_t)random_between(1, small ? 2 : 9),
                  .head_dim = head_dims[number % COUNT(head_dims)]},
        .lse = random_between(0, 1) != 0};
    shape_prefill(t, &p);
    t->in[2].shape[0] = MOST_SPANS * (uint64_t)p.sequences;
    t->params.attention.causal = random_between(0, 3) != 0;
    t->params.attention.window =
        random_between(0, 2) || is_long ? 0 : (uint32_t)random_between(1, 2 * (uint64_t)p.length);
    t->params.attention.softcap = random_between(0, 3) ? 0 : 3;
    t->params.attention.uniform_sequences = 0;
    if (random_between(0, 1)) { /* a cache: keys and values alone */
        t->params.attention.kv_stride = 2 * p.heads.head_dim;
        t->params.attention.k_at = 0;
        t->params.attention.v_at = p.heads.head_dim;
        t->in[1].shape[1] = (uint64_t)p.heads.groups * 2 * p.heads.head_dim;
    }
    if (random_between(0, 1))
        t->in[3] = SHAPE(OPERAND_ELEM, (uint64_t)p.heads.groups * p.heads.queries);
}

struct span {
    int32_t q_begin, q_count, q_position, k_begin, k_count, k_position;
};

static void spoil_keys(struct trial *t, uint64_t from, uint64_t to)
{
    const uint64_t columns = t->in[1].shape[1];
    for (uint64_t i = from * columns; i < to * columns; i++)
        operand_set(t, &t->in[1], i, (double)NAN);
}

/* Tokens [first, first + used) are queries and keys; a gap of keys is in
 * no span. */
static size_t add_spans(struct trial *t, struct span *spans, uint64_t first, uint64_t used)
{
    const uint64_t position = random_between(0, 100), gap_at = random_between(0, used);
    const uint64_t gap = random_between(0, 2) ? 0 : random_between(0, used - gap_at);
    const struct span whole = {(int32_t)first, (int32_t)used, (int32_t)position,
                               (int32_t)first, (int32_t)used, (int32_t)position};
    size_t count = 0;
    spans[count] = whole;
    if (gap > 0) {
        spans[count++].k_count = (int32_t)gap_at;
        spans[count] = whole;
        spans[count++].k_count = 0;
        spans[count] = whole;
        spans[count].k_begin += (int32_t)(gap_at + gap);
        spans[count].k_position += (int32_t)(gap_at + gap);
        spans[count].k_count -= (int32_t)(gap_at + gap);
        spoil_keys(t, first + gap_at, first + gap_at + gap);
    }
    return count + 1;
}

/* Not all tokens of a sequence are in a span: keys and values of the others
 * are NaN. */
static void fill_spans(struct trial *t)
{
    const uint64_t sequences = t->in[2].shape[0] / MOST_SPANS;
    const uint64_t length = t->in[0].shape[0] / sequences;
    struct span *const spans = t->in[2].data;
    size_t count = 0;
    memset(spans, 0, operand_numel(&t->in[2]) * sizeof(int32_t));
    for (uint64_t i = 0; i < sequences; i++) {
        const uint64_t first = i * length, used = random_between((length + 1) / 2, length);
        count += add_spans(t, spans + count, first, used);
        spoil_keys(t, first + used, first + length);
    }
}

static const struct sm90_row {
    unsigned op;
    enum elem_type elem;
    const char *plain, *faster;
    void (*shape)(struct trial *t, unsigned number, bool small); /* number: index of the trial */
    void (*fill)(struct trial *t); /* sets special operands; NULL: all are random */
} sm90_rows[] = {
    {OP_MATMUL, ELEM_BF16, "few_rows", "few_rows_sm90", shape_few_rows, NULL},
    {OP_MATMUL, ELEM_F16, "few_rows", "few_rows_sm90", shape_few_rows, NULL},
    {OP_ATTENTION, ELEM_BF16, "mma", "attention_sm90", shape_attention, fill_spans},
    {OP_ATTENTION, ELEM_F16, "mma", "attention_sm90", shape_attention, fill_spans},
};

/* Trials of one kernel. Cases left to the portable kernel do not count. */
struct sm90_trials {
    const struct sm90_row *row;
    struct pair kernels;
    unsigned done;
    double worst;
};

static bool check_sm90_trial(struct sm90_trials *s, const struct device *d, unsigned number,
                             bool small)
{
    struct trial t = {.op = s->row->op, .elem = s->row->elem};
    struct comparison c = {.worst = 0};
    struct error err;
    s->row->shape(&t, number, small);
    if (!takes_shapes(&t, s->kernels.plain) || !takes_shapes(&t, s->kernels.faster)) return true;
    make_operands(&t);
    if (s->row->fill) s->row->fill(&t);
    const enum status st = compare_pair(&t, &s->kernels, d, &c, &err);
    const bool good = !st && c.worst <= 1;
    if (!good)
        printf("FAILED %s %s [%llu, %llu, %llu]: ", s->row->faster, elem_name(t.elem),
               (unsigned long long)t.out[0].shape[0], (unsigned long long)t.out[0].shape[1],
               (unsigned long long)t.in[0].shape[1]);
    if (st)
        printf("%s\n", err.text);
    else if (!good)
        printf("%.3g times the tolerance\n", c.worst);
    s->worst = fmax(s->worst, c.worst);
    s->done++;
    trial_release(&t, d);
    return good;
}

static bool check_sm90_kernel(const struct sm90_row *row, const struct device *d, uint64_t seed,
                              unsigned trials, bool small)
{
    struct sm90_trials s = {.row = row,
                            .kernels = {find_kernel(d, row->op, row->elem, row->plain),
                                        find_kernel(d, row->op, row->elem, row->faster)}};
    bool good = true;
    for (unsigned i = 0; i < trials; i++) {
        random_start(seed << 32 | i);
        good &= check_sm90_trial(&s, d, i, small);
    }
    if (s.done > 0)
        printf("%-6s %s %s worst difference from %s %.3f of the tolerance, %u trials\n",
               good ? "ok" : "FAILED", row->faster, elem_name(row->elem), row->plain, s.worst,
               s.done);
    else
        printf("skipped: %s: not for %s (%s)\n", row->faster, d->describe(), elem_name(row->elem));
    return good;
}

bool check_sm90(const struct device *d, uint64_t seed, unsigned trials, bool small)
{
    bool good = true;
    for (size_t i = 0; i < COUNT(sm90_rows); i++)
        good &= check_sm90_kernel(&sm90_rows[i], d, seed, trials, small);
    return good;
}
