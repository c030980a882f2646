/* Attention in tiles, with an online softmax (Dao 2022, FlashAttention).
 *
 * 1. A tile has TILE_ROWS rows (spans.h). One thread computes each tile of each
 *    group, in one order.
 * 2. Keys come in blocks of TILE_KEYS, transposed, with as many values. Both
 *    are packed as REAL; head_dim and keys are padded by zeros as
 *    multiply_strip() needs. Queries and keys are pairs of bf16, if the CPU
 *    multiplies these.
 * 3. A row attends to one interval of keys in a block. Scores outside it are
 *    computed but never read, values outside it are never touched: masked
 *    elements may be NaN. */
#include <assert.h>

#include "common/threads.h"
#include "kernels/cpu/ops/spans.h"
#ifdef __AVX512BF16__
#define PAIRS
#include "kernels/cpu/ops/pairs.h"
#endif

struct attention {
    const elem *q, *kv, *sinks;
    const int32_t *tokens; /* for dropout */
    const struct span *spans;
    size_t num_spans;
    elem *o;
    real *lse;
    size_t num_queries, q_columns, kv_columns, head_dim, padded_dim, groups, queries;
    const union op_params *p;
    char *workspace;
};

#ifdef PAIRS
typedef uint32_t packed; /* a pair of bf16 */
#else
typedef real packed;
#endif

/* A worker's memory. */
struct tile {
    size_t first_row, num_rows, group;
    packed *q;    /* [TILE_ROWS, padded_dim]; pairs fill half of each row */
    packed *keys; /* [padded_dim, TILE_KEYS], or squares of pairs (pairs.h) */
    real *o;      /* [TILE_ROWS, padded_dim] */
    real *values; /* [TILE_KEYS, padded_dim] */
    real *scores; /* [STRIP_ROWS, TILE_KEYS] */
    real *max;    /* [TILE_ROWS], of the scores so far */
    real *sum;    /* [TILE_ROWS], of exp(score - max) */
};

static size_t tile_reals(size_t padded_dim)
{
    return 2 * (TILE_ROWS + TILE_KEYS) * padded_dim + STRIP_ROWS * TILE_KEYS + 2 * TILE_ROWS;
}

static struct tile tile_at(const struct attention *a, size_t number)
{
    struct tile t = {0};
    t.o = (real *)(void *)a->workspace + number * tile_reals(a->padded_dim);
    t.values = t.o + TILE_ROWS * a->padded_dim;
    t.scores = t.values + TILE_KEYS * a->padded_dim;
    t.max = t.scores + STRIP_ROWS * TILE_KEYS;
    t.sum = t.max + TILE_ROWS;
    t.q = (packed *)(void *)(t.sum + TILE_ROWS);
    t.keys = t.q + TILE_ROWS * a->padded_dim;
    return t;
}

static size_t head_of(const struct attention *a, const struct tile *t, size_t row)
{
    return t->group * a->queries + row % a->queries;
}

#ifdef PAIRS
static void pack_query(const struct attention *a, const elem *q, packed *to)
{
    copy_pairs(to, q, a->head_dim);
}

static void pack_keys(const struct attention *a, const elem *k, size_t count, packed *keys)
{
    pack_right(keys, a->padded_dim * SQUARE, k, a->kv_columns, true, count, a->head_dim);
}

static void multiply_keys(const struct attention *a, const struct tile *t, size_t row, size_t key,
                          real *scores, size_t rows)
{
    const packed *q = t->q + row * a->padded_dim, *keys = t->keys + key * a->padded_dim;
    const size_t pairs = (a->head_dim + 1) / 2;
    if (rows == STRIP_ROWS)
        multiply_pairs(scores, TILE_KEYS, q, a->padded_dim, keys, a->padded_dim * SQUARE,
                       STRIP_ROWS, pairs);
    else
        for (size_t i = 0; i < rows; i++)
            multiply_pairs(scores + i * TILE_KEYS, TILE_KEYS, q + i * a->padded_dim, 0, keys,
                           a->padded_dim * SQUARE, 1, pairs);
}

/* Adds scores of a strip of rows, initially zero, with keys [begin, end). */
static void score_strip(const struct attention *a, const struct tile *t, size_t row, size_t rows,
                        size_t begin, size_t end)
{
    const real scale = (real)a->p->attention.scale;
    for (size_t j = begin; j < end; j += PAIR_COLUMNS)
        multiply_keys(a, t, row, j, t->scores + j, rows);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = begin; j < end; j++)
            t->scores[i * TILE_KEYS + j] *= scale;
}
#else
static void pack_query(const struct attention *a, const elem *q, packed *to)
{
    const real scale = (real)a->p->attention.scale;
    for (size_t d = 0; d < a->head_dim; d++)
        to[d] = scale * load(q[d]);
}

static void pack_keys(const struct attention *a, const elem *k, size_t count, packed *keys)
{
    pack_across(keys, k, a->kv_columns, count, a->head_dim);
}

/* Adds scores of a strip of rows, initially zero, with keys [begin, end). */
static void score_strip(const struct attention *a, const struct tile *t, size_t row, size_t rows,
                        size_t begin, size_t end)
{
    multiply_strip(t->scores + begin, TILE_KEYS, t->q + row * a->padded_dim, a->padded_dim,
                   t->keys + begin, TILE_KEYS, rows, end - begin, a->head_dim);
}
#endif

static void start_tile(const struct attention *a, const struct span *s, struct tile *t)
{
    for (size_t i = 0; i < t->num_rows; i++) {
        const size_t row = t->first_row + i;
        const elem *q = a->q + query_of(a->p, s, row) * a->q_columns +
                        t->group * a->p->attention.q_stride + row % a->queries * a->head_dim;
        pack_query(a, q, t->q + i * a->padded_dim);
        t->max[i] = -INFINITY;
        t->sum[i] = 0;
    }
    memset(t->o, 0, t->num_rows * a->padded_dim * sizeof *t->o);
}

static void load_block(const struct attention *a, const struct span *s, const struct tile *t,
                       size_t first, size_t count)
{
    const elem *kv =
        a->kv + ((size_t)s->k_begin + first) * a->kv_columns + t->group * a->p->attention.kv_stride;
    pack_keys(a, kv + a->p->attention.k_at, count, t->keys);
    pack_rows(t->values, a->padded_dim, kv + a->p->attention.v_at, a->kv_columns, count,
              a->head_dim);
}

/* Scores become exp(score - max). Returns the factor of all earlier sums under
 * the new max. */
static real update_softmax(real *scores, size_t n, real *max, real *sum)
{
    real top = *max, added = 0;
#pragma omp simd reduction(max : top)
    for (size_t i = 0; i < n; i++)
        top = scores[i] > top ? scores[i] : top;
    const real shift = top == -INFINITY ? 0 : top;
#pragma omp simd reduction(+ : added)
    for (size_t i = 0; i < n; i++) {
        scores[i] = real_exp(scores[i] - shift);
        added += scores[i];
    }
    const real before = real_exp(*max - shift);
    *max = top;
    *sum = *sum * before + added;
    return before;
}

/* A row's scores become weights, for n keys from `first` of the span on. */
static void weigh_row(const struct attention *a, const struct span *s, const struct tile *t,
                      size_t row, real *scores, size_t first, size_t n)
{
    const real softcap = (real)a->p->attention.softcap;
    if (softcap != 0) cap_scores(scores, n, softcap);
    const real before = update_softmax(scores, n, t->max + row, t->sum + row);
    real *o = t->o + row * a->padded_dim;
    if (before != 1)
        for (size_t d = 0; d < a->padded_dim; d++)
            o[d] *= before;
    if (!has_dropout(a->p)) return;
    real factors[TILE_KEYS];
    dropout_factors(a->p, a->tokens, s, t->first_row + row, t->group, first, n, factors);
    for (size_t j = 0; j < n; j++)
        scores[j] *= factors[j];
}

/* Rows [row, row + rows) of the tile attend to the block of keys at `first`. */
static void attend_strip(const struct attention *a, const struct span *s, const struct tile *t,
                         size_t row, size_t rows, size_t first, size_t count)
{
    struct interval keys[STRIP_ROWS];
    for (size_t i = 0; i < rows; i++)
        keys[i] = keys_in_block(keys_of(a->p, s, t->first_row + row + i), first, count);
    const struct interval any = hull_of(keys, rows);
    if (any.begin >= any.end) return;
    memset(t->scores, 0, STRIP_ROWS * TILE_KEYS * sizeof *t->scores);
    score_strip(a, t, row, rows, any.begin / STRIP_COLUMNS * STRIP_COLUMNS, pad(any.end));
    for (size_t i = 0; i < rows; i++)
        if (keys[i].begin < keys[i].end)
            weigh_row(a, s, t, row + i, t->scores + i * TILE_KEYS + keys[i].begin,
                      first + keys[i].begin, keys[i].end - keys[i].begin);
    const struct strips values = {.c = t->o + row * a->padded_dim,
                                  .a = t->scores,
                                  .b = t->values,
                                  .ldc = a->padded_dim,
                                  .lda = TILE_KEYS,
                                  .ldb = a->padded_dim,
                                  .columns = a->padded_dim};
    multiply_ragged(&values, 0, rows, keys);
}

static void attend_span(const struct attention *a, const struct span *s, const struct tile *t)
{
    const struct interval begins = keys_of(a->p, s, t->first_row);
    const struct interval ends = keys_of(a->p, s, t->first_row + t->num_rows - 1);
    for (size_t first = begins.begin; first < ends.end; first += TILE_KEYS) {
        const size_t count = min_size(ends.end - first, TILE_KEYS);
        load_block(a, s, t, first, count);
        for (size_t row = 0; row < t->num_rows; row += STRIP_ROWS)
            attend_strip(a, s, t, row, min_size(t->num_rows - row, STRIP_ROWS), first, count);
    }
}

/* Adds a sink, one more score. */
static real add_sink(real sink, real *max, real *sum)
{
    const real top = sink > *max ? sink : *max, before = real_exp(*max - top);
    *sum = *sum * before + real_exp(sink - top);
    *max = top;
    return before;
}

/* A row without keys has a sum of 0, with sinks too. */
static void finish_row(const struct attention *a, const struct span *s, const struct tile *t,
                       size_t i)
{
    const size_t query = query_of(a->p, s, t->first_row + i),
                 head = head_of(a, t, t->first_row + i);
    const size_t at = query * a->groups * a->queries + head;
    const bool empty = t->sum[i] == 0;
    real scale = 1;
    if (a->sinks && !empty) scale = add_sink(load(a->sinks[head]), t->max + i, t->sum + i);
    scale = empty ? 0 : scale / t->sum[i];
    for (size_t d = 0; d < a->head_dim; d++)
        a->o[at * a->head_dim + d] = store(scale * t->o[i * a->padded_dim + d]);
    if (a->lse) a->lse[at] = empty ? -INFINITY : t->max[i] + real_log(t->sum[i]);
}

static void attend_tile(const struct attention *a, const struct span *s, size_t num_spans,
                        struct tile *t)
{
    start_tile(a, s, t);
    for (size_t i = 0; i < num_spans; i++)
        attend_span(a, s + i, t);
    for (size_t i = 0; i < t->num_rows; i++)
        finish_row(a, s, t, i);
}

/* All workers call it and share the tiles; those with the most keys
 * come first. */
static void attend_range(const struct attention *a, const struct span *s, size_t num_spans,
                         struct tile *t)
{
    const size_t rows = (size_t)s->q_count * a->queries;
    const size_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
#pragma omp for schedule(dynamic) nowait
    for (size_t i = 0; i < tiles * a->groups; i++) {
        if (work_stopped()) continue;
        t->group = i % a->groups;
        t->first_row = (tiles - 1 - i / a->groups) * TILE_ROWS;
        t->num_rows = min_size(rows - t->first_row, TILE_ROWS);
        attend_tile(a, s, num_spans, t);
    }
}

/* Clears rows in no span. Ranges do not overlap, so mostly there are none. */
static void clear_rest(const struct attention *a)
{
    const struct span *end = a->spans + a->num_spans;
    const size_t heads = a->groups * a->queries;
    size_t covered = 0;
    for (const struct span *s = a->spans; s < end && s->q_count > 0; s += spans_of_range(s, end))
        covered += (size_t)s->q_count;
    if (covered == a->num_queries) return;
    memset(a->o, 0, a->num_queries * heads * a->head_dim * sizeof *a->o);
    for (size_t i = 0; a->lse && i < a->num_queries * heads; i++)
        a->lse[i] = -INFINITY;
}

/* Checks uniform_sequences, for kernels that cannot read spans, against
 * the spans. */
static bool spans_are_as_said(const struct attention *a, size_t num_keys)
{
    const size_t sequences = a->p->attention.uniform_sequences;
    if (sequences == 0) return true;
    const size_t length = a->num_queries / sequences;
    if (a->num_queries != sequences * length || num_keys != a->num_queries) return false;
    if (a->num_spans < sequences) return false;
    for (size_t i = 0; i < sequences; i++) {
        const struct span *s = a->spans + i;
        if ((size_t)s->q_begin != i * length || s->k_begin != s->q_begin) return false;
        if ((size_t)s->q_count != length || s->k_count != s->q_count) return false;
        if (s->k_position != s->q_position) return false;
    }
    return a->num_spans == sequences || a->spans[sequences].q_count <= 0;
}

static struct attention attention_of(const union op_params *p, const struct operand *in,
                                     const struct operand *out, void *workspace)
{
    const struct head_shape s = p->attention.heads;
    return (struct attention){.q = in[0].data,
                              .kv = in[1].data,
                              .spans = in[2].data,
                              .sinks = in[3].data,
                              .tokens = in[4].data,
                              .num_spans = in[2].shape[0],
                              .o = out[0].data,
                              .lse = out[1].data,
                              .num_queries = in[0].shape[0],
                              .q_columns = in[0].shape[1],
                              .kv_columns = in[1].shape[1],
                              .head_dim = s.head_dim,
                              .padded_dim = pad(s.head_dim),
                              .groups = s.groups,
                              .queries = s.queries,
                              .p = p,
                              .workspace = workspace};
}

enum status NAME(attention)(const union op_params *p, const struct operand *in,
                            const struct operand *out, void *workspace, struct error *err)
{
    (void)err;
    const struct attention a = attention_of(p, in, out, workspace);
    const struct span *end = a.spans + a.num_spans;
    assert(spans_are_as_said(&a, in[1].shape[0]));
    assert(a.tokens || !has_dropout(p));
    clear_rest(&a);
#pragma omp parallel num_threads(workers())
    {
        struct tile t = tile_at(&a, worker());
        for (const struct span *s = a.spans; s < end && s->q_count > 0;) {
            const size_t n = spans_of_range(s, end);
            attend_range(&a, s, n, &t);
            s += n;
        }
    }
    return OK;
}

size_t NAME(attention_workspace)(const union op_params *p, const struct operand *in,
                                 const struct operand *out)
{
    (void)in, (void)out;
    return most_workers() * tile_reals(pad(p->attention.heads.head_dim)) * sizeof(real);
}
