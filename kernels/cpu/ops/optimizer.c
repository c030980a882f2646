/* optimizer.c - OP_STEP_SCALARS, OP_ADAM and OP_SGD. A step passes over its
 * arrays once, chunk by chunk: gradients and weights of a chunk are widened to
 * REAL in the L1 cache, so one loop computes all types. */
#include "kernels/cpu/ops/ops_internal.h"

/* Elements of `control` and `scalars`; the first four are common. */
enum { LEARNING_RATE, WEIGHT_DECAY, CORRECTION_1, CORRECTION_2, FACTOR };
enum { LARGEST_NORM = 5 };                             /* control only */
enum { NOT_FINITE = 5, NORM, ZEROS, NUM_SCALARS };     /* scalars only */
enum { SUM_OF_SQUARES, COUNT_NOT_FINITE, COUNT_ZERO }; /* elements of sums */

void NAME(step_scalars)(const union op_params *p, const struct operand *in,
                        const struct operand *out)
{
    (void)p;
    const real *sums = in[0].data, *control = in[1].data;
    real *scalars = out[0].data; /* [NUM_SCALARS] */
    const double factor = (double)control[FACTOR], largest = (double)control[LARGEST_NORM];
    const double norm = factor * sqrt((double)sums[SUM_OF_SQUARES]);
    const double clip = largest / (norm + 1e-6);
    memcpy(scalars, control, FACTOR * sizeof *scalars);
    scalars[FACTOR] = (real)(largest > 0 && clip < 1 ? factor * clip : factor);
    scalars[NOT_FINITE] = sums[COUNT_NOT_FINITE] != 0;
    scalars[NORM] = (real)norm;
    scalars[ZEROS] = sums[COUNT_ZERO];
}

/* Elements a thread takes at once: they fit the L1 cache. */
enum { CHUNK = 1024 };

/* m, v and master may be NULL; new_* may be the old arrays. */
struct step {
    struct operand grad;
    const elem *weight;
    const real *m, *v, *master;
    elem *new_weight;
    real *new_m, *new_v, *new_master;
    real factor, rate; /* factor of gradients; learning rate */
    double decay;      /* weight decay */
    real beta1, rest1, beta2, rest2, c1, c2, epsilon, momentum; /* rest: 1 - beta */
    bool skipped;
};

/* Fields whose operands differ between ops are set by the ops. */
static struct step optimizer_step_of(const union op_params *p, const struct operand *in,
                                     const struct operand *out)
{
    const real *scalars = in[1].data;
    return (struct step){.grad = in[0],
                         .weight = in[2].data,
                         .new_weight = out[0].data,
                         .factor = scalars[FACTOR],
                         .rate = (real)((double)scalars[LEARNING_RATE] * p->optimizer.lr_mult),
                         .decay = (double)scalars[WEIGHT_DECAY] * p->optimizer.wd_mult,
                         .beta1 = (real)p->optimizer.beta1,
                         .rest1 = (real)(1 - p->optimizer.beta1),
                         .beta2 = (real)p->optimizer.beta2,
                         .rest2 = (real)(1 - p->optimizer.beta2),
                         .c1 = scalars[CORRECTION_1],
                         .c2 = scalars[CORRECTION_2],
                         .epsilon = (real)p->optimizer.epsilon,
                         .momentum = (real)p->optimizer.momentum,
                         .skipped = scalars[NOT_FINITE] != 0};
}

static void widen_chunk(real *restrict to, const elem *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = load(from[i]);
}

static void load_grad(const struct step *s, size_t at, size_t n, real *g)
{
    if (s->grad.type == OPERAND_REAL)
        memcpy(g, (const real *)s->grad.data + at, n * sizeof *g);
    else
        widen_chunk(g, (const elem *)s->grad.data + at, n);
}

static void load_weight(const struct step *s, size_t at, size_t n, real *w)
{
    if (s->master)
        memcpy(w, s->master + at, n * sizeof *w);
    else
        widen_chunk(w, s->weight + at, n);
}

static void store_weight(const struct step *s, size_t at, size_t n, const real *restrict w)
{
    elem *restrict to = s->new_weight + at;
    for (size_t i = 0; i < n; i++)
        to[i] = store(w[i]);
    if (s->new_master) memcpy(s->new_master + at, w, n * sizeof *w);
}

static void copy_reals(real *to, const real *from, size_t at, size_t n)
{
    if (to && to != from) memcpy(to + at, from + at, n * sizeof *to);
}

/* A skipped step: copies everything unchanged. */
static void keep_chunk(const struct step *s, size_t at, size_t n)
{
    if (s->new_weight != s->weight)
        memcpy(s->new_weight + at, s->weight + at, n * sizeof *s->weight);
    copy_reals(s->new_m, s->m, at, n);
    copy_reals(s->new_v, s->v, at, n);
    copy_reals(s->new_master, s->master, at, n);
}

static void adam_chunk(const struct step *s, size_t at, size_t n)
{
    real g[CHUNK], w[CHUNK];
    const real *m = s->m + at, *v = s->v + at;
    real *new_m = s->new_m + at, *new_v = s->new_v + at;
    const real factor = s->factor, beta1 = s->beta1, rest1 = s->rest1, beta2 = s->beta2,
               rest2 = s->rest2, c1 = s->rate * s->c1, c2 = s->c2, epsilon = s->epsilon;
    const real decayed = (real)(1 - (double)s->rate * s->decay);
    load_grad(s, at, n, g);
    load_weight(s, at, n, w);
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        const real gi = factor * g[i];
        const real mi = beta1 * m[i] + rest1 * gi, vi = beta2 * v[i] + rest2 * (gi * gi);
        w[i] = w[i] * decayed - c1 * mi / (real_sqrt(vi * c2) + epsilon);
        new_m[i] = mi;
        new_v[i] = vi;
    }
    store_weight(s, at, n, w);
}

static void sgd_chunk(const struct step *s, size_t at, size_t n)
{
    real g[CHUNK], w[CHUNK];
    const real factor = s->factor, momentum = s->momentum, rate = s->rate, decay = (real)s->decay;
    load_grad(s, at, n, g);
    load_weight(s, at, n, w);
    for (size_t i = 0; i < n; i++)
        g[i] = factor * g[i] + decay * w[i];
    if (s->m) {
        const real *m = s->m + at;
        for (size_t i = 0; i < n; i++)
            g[i] += momentum * m[i];
        memcpy(s->new_m + at, g, n * sizeof *g);
    }
    for (size_t i = 0; i < n; i++)
        w[i] -= rate * g[i];
    store_weight(s, at, n, w);
}

typedef void chunk_function(const struct step *s, size_t at, size_t n);

static void run_step_chunks(const struct step *s, chunk_function *of_chunk)
{
    const size_t n = s->grad.shape[0];
    if (s->skipped) of_chunk = keep_chunk;
#pragma omp parallel for if (n >= WORTH_THREADS)
    for (size_t at = 0; at < n; at += CHUNK)
        of_chunk(s, at, min_size(n - at, CHUNK));
}

void NAME(adam)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    struct step s = optimizer_step_of(p, in, out);
    s.m = in[3].data;
    s.v = in[4].data;
    s.master = in[5].data;
    s.new_m = out[1].data;
    s.new_v = out[2].data;
    s.new_master = out[3].data;
    run_step_chunks(&s, adam_chunk);
}

void NAME(sgd)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    struct step s = optimizer_step_of(p, in, out);
    s.m = in[3].data;
    s.master = in[4].data;
    s.new_m = out[1].data;
    s.new_master = out[2].data;
    run_step_chunks(&s, sgd_chunk);
}
