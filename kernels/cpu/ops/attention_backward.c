/* Backward of attention (Dao 2022, FlashAttention), in tiles as in attention.c.
 *
 * 1. With weights w = exp(score - lse): dv = w^T do, dw = do v^T, dscore = w
 *    (dw - delta), where delta is the sum over a head of o * do; dq = dscore k,
 *    dk = dscore^T q. lse includes sinks.
 * 2. One thread computes a block of TILE_KEYS keys of one span and group, with
 *    all tiles of queries that attend to it. So dk and dv of a key have one
 *    owner. If several spans have a key, all threads wait between two spans.
 * 3. dq of a tile is added up block by block, in the order of keys: the tile's
 *    turn is the number of the last block added. A block waits for its
 *    predecessor only, whose thread began earlier with the same tiles, so waits
 *    are rare.
 * 4. Sums are REAL, in the workspace, and rounded once. Masked elements are
 *    never read, as in attention.c. */
#include <assert.h>
#include <sched.h>
#include <stdatomic.h>

#include "common/threads.h"
#include "kernels/cpu/ops/spans.h"

struct backward {
    const elem *q, *kv, *o, *d_o;
    const int32_t *tokens; /* for dropout */
    const real *lse;
    elem *dq, *dkv; /* dkv: NULL if dq has all gradients */
    const struct span *spans;
    size_t num_spans, num_queries, num_keys, q_columns, kv_columns;
    size_t head_dim, padded_dim, groups, queries;
    const union op_params *p;
    real *delta;           /* [groups, num_queries * queries] */
    real *q_sums;          /* [groups, num_queries * queries, padded_dim] */
    real *k_sums, *v_sums; /* [groups, num_keys, padded_dim] */
    real *tiles;           /* the workers' */
    atomic_uint *turns;    /* [groups, num_turns] */
    size_t num_turns;
};

/* A worker's memory. */
struct tile {
    real *q, *d_o;                     /* [TILE_ROWS, padded_dim]; q times scale */
    real *keys;                        /* [TILE_KEYS, padded_dim] */
    real *keys_across, *values_across; /* [padded_dim, TILE_KEYS] */
    real *weights, *d_scores;          /* [TILE_ROWS, TILE_KEYS] */
};

/* A range: spans of the same queries, and the index of its first
 * tile's turn. */
struct range {
    const struct span *spans;
    size_t num_spans, first_turn;
};

/* A thread's work: keys [first, first + count) of a span, and rows of
 * its range. */
struct work {
    const struct range *range;
    const struct span *span;
    size_t group, first, count, first_row, num_rows;
};

static size_t tile_reals(size_t padded_dim)
{
    return (2 * TILE_ROWS + 3 * TILE_KEYS) * padded_dim + 2 * TILE_ROWS * TILE_KEYS;
}

static struct tile tile_at(const struct backward *a, size_t number)
{
    struct tile t = {0};
    t.q = a->tiles + number * tile_reals(a->padded_dim);
    t.d_o = t.q + TILE_ROWS * a->padded_dim;
    t.keys = t.d_o + TILE_ROWS * a->padded_dim;
    t.keys_across = t.keys + TILE_KEYS * a->padded_dim;
    t.values_across = t.keys_across + TILE_KEYS * a->padded_dim;
    t.weights = t.values_across + TILE_KEYS * a->padded_dim;
    t.d_scores = t.weights + TILE_ROWS * TILE_KEYS;
    return t;
}

static size_t blocks_of(const struct span *s)
{
    return ((size_t)s->k_count + TILE_KEYS - 1) / TILE_KEYS;
}

static size_t rows_of(const struct backward *a, const struct span *s)
{
    return (size_t)s->q_count * a->queries;
}

static size_t tiles_of(const struct backward *a, const struct span *s)
{
    return (rows_of(a, s) + TILE_ROWS - 1) / TILE_ROWS;
}

/* Index of a span's row among all rows of a group. */
static size_t row_in_group(const struct backward *a, const struct work *w, size_t row)
{
    const size_t first = w->group * a->num_queries + (size_t)w->span->q_begin;
    return first * a->queries + row;
}

/* Index of a row's head in lse; times head_dim, in o and do. */
static size_t head_of(const struct backward *a, const struct work *w, size_t row)
{
    return (query_of(a->p, w->span, row) * a->groups + w->group) * a->queries + row % a->queries;
}

/* ---- turns ---- */

/* Whether the tile at first_row may attend to any key of a block. */
static bool tile_meets_block(const struct backward *a, const struct span *s, size_t first_row,
                             size_t block)
{
    const size_t last_row = min_size(first_row + TILE_ROWS, rows_of(a, s)) - 1;
    const struct interval keys = {keys_of(a->p, s, first_row).begin,
                                  keys_of(a->p, s, last_row).end};
    return keys.begin < keys.end && keys.begin < (block + 1) * TILE_KEYS &&
           keys.end > block * TILE_KEYS;
}

/* Number of a block in its range, from 1 on. */
static unsigned turn_of(const struct range *range, const struct span *s, size_t block)
{
    size_t turn = block + 1;
    for (const struct span *before = range->spans; before < s; before++)
        turn += blocks_of(before);
    return (unsigned)turn;
}

/* Number of the block that precedes this one in the tile's sum; 0: none. */
static unsigned turn_before(const struct backward *a, const struct work *w)
{
    size_t block = w->first / TILE_KEYS;
    for (const struct span *s = w->span;; block = blocks_of(s)) {
        while (block > 0)
            if (tile_meets_block(a, s, w->first_row, --block)) return turn_of(w->range, s, block);
        if (s-- == w->range->spans) return 0;
    }
}

static atomic_uint *turn_at(const struct backward *a, const struct work *w)
{
    return a->turns + w->group * a->num_turns + w->range->first_turn + w->first_row / TILE_ROWS;
}

/* Blocks wait for blocks begun earlier only. */
static void wait_for_turn(const struct backward *a, const struct work *w)
{
    const unsigned before = turn_before(a, w);
    const atomic_uint *turn = turn_at(a, w);
    while (atomic_load_explicit(turn, memory_order_acquire) != before && !work_stopped())
        sched_yield();
}

static void pass_turn(const struct backward *a, const struct work *w)
{
    atomic_store_explicit(turn_at(a, w), turn_of(w->range, w->span, w->first / TILE_KEYS),
                          memory_order_release);
}

/* ---- a tile and a block ---- */

static void load_block(const struct backward *a, const struct work *w, const struct tile *t)
{
    const elem *kv = a->kv + ((size_t)w->span->k_begin + w->first) * a->kv_columns +
                     w->group * a->p->attention.kv_stride;
    const elem *keys = kv + a->p->attention.k_at, *values = kv + a->p->attention.v_at;
    pack_rows(t->keys, a->padded_dim, keys, a->kv_columns, w->count, a->head_dim);
    pack_across(t->keys_across, keys, a->kv_columns, w->count, a->head_dim);
    pack_across(t->values_across, values, a->kv_columns, w->count, a->head_dim);
}

static void load_tile(const struct backward *a, const struct work *w, const struct tile *t)
{
    const real scale = (real)a->p->attention.scale;
    for (size_t i = 0; i < w->num_rows; i++) {
        const size_t row = w->first_row + i, to = i * a->padded_dim;
        const elem *q = a->q + query_of(a->p, w->span, row) * a->q_columns +
                        w->group * a->p->attention.q_stride + row % a->queries * a->head_dim;
        pack_rows(t->q + to, a->padded_dim, q, 0, 1, a->head_dim);
        pack_rows(t->d_o + to, a->padded_dim, a->d_o + head_of(a, w, row) * a->head_dim, 0, 1,
                  a->head_dim);
        for (size_t d = 0; d < a->head_dim; d++)
            t->q[to + d] *= scale;
    }
}

static void multiply_all(real *restrict to, const real *restrict by, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] *= by[i];
}

/* Scores become softcap * tanh(score / softcap), slopes its derivative. */
static void cap_with_slopes(real *restrict scores, real *restrict slopes, size_t n, real softcap)
{
    cap_scores(scores, n, softcap);
    for (size_t i = 0; i < n; i++)
        slopes[i] = 1 - scores[i] / softcap * (scores[i] / softcap);
}

/* Scores become weights, gradients of weights become gradients of scores. */
static void make_score_gradients(real *restrict weights, real *restrict d, size_t n, real lse,
                                 real delta)
{
    for (size_t j = 0; j < n; j++) {
        weights[j] = real_exp(weights[j] - lse);
        d[j] = weights[j] * (d[j] - delta);
    }
}

/* The same for a row of the tile and keys of the block, with softcap
 * and dropout. */
static void make_row_gradients(const struct backward *a, const struct work *w, const struct tile *t,
                               size_t i, struct interval keys)
{
    real slopes[TILE_KEYS], factors[TILE_KEYS];
    real *weights = t->weights + i * TILE_KEYS + keys.begin;
    real *d = t->d_scores + i * TILE_KEYS + keys.begin;
    const size_t row = w->first_row + i, n = keys.end - keys.begin;
    const real softcap = (real)a->p->attention.softcap, lse = a->lse[head_of(a, w, row)];
    const bool drops = has_dropout(a->p);
    if (softcap != 0) cap_with_slopes(weights, slopes, n, softcap);
    if (drops) {
        dropout_factors(a->p, a->tokens, w->span, row, w->group, w->first + keys.begin, n, factors);
        multiply_all(d, factors, n);
    }
    /* Without keys, weights are 0. */
    make_score_gradients(weights, d, n, lse == -INFINITY ? INFINITY : lse,
                         a->delta[row_in_group(a, w, row)]);
    if (drops) multiply_all(weights, factors, n);
    if (softcap != 0) multiply_all(d, slopes, n);
}

static void weigh_strip(const struct backward *a, const struct work *w, const struct tile *t,
                        size_t i, size_t rows, const struct interval *keys)
{
    const struct interval any = hull_of(keys, rows);
    if (any.begin >= any.end) return;
    const size_t begin = any.begin / STRIP_COLUMNS * STRIP_COLUMNS, n = pad(any.end) - begin;
    real *weights = t->weights + i * TILE_KEYS, *d = t->d_scores + i * TILE_KEYS;
    memset(weights, 0, rows * TILE_KEYS * sizeof *weights);
    memset(d, 0, rows * TILE_KEYS * sizeof *d);
    multiply_strip(weights + begin, TILE_KEYS, t->q + i * a->padded_dim, a->padded_dim,
                   t->keys_across + begin, TILE_KEYS, rows, n, a->head_dim);
    multiply_strip(d + begin, TILE_KEYS, t->d_o + i * a->padded_dim, a->padded_dim,
                   t->values_across + begin, TILE_KEYS, rows, n, a->head_dim);
    for (size_t r = 0; r < rows; r++)
        if (keys[r].begin < keys[r].end) make_row_gradients(a, w, t, i + r, keys[r]);
}

/* Turns each row's interval of keys into each key's interval of rows. */
static void transpose_intervals(struct interval *rows, const struct interval *keys, size_t num_rows)
{
    for (size_t j = 0; j < TILE_KEYS; j++)
        rows[j] = (struct interval){num_rows, 0};
    for (size_t i = 0; i < num_rows; i++)
        for (size_t j = keys[i].begin; j < keys[i].end; j++) {
            rows[j].begin = min_size(rows[j].begin, i);
            rows[j].end = i + 1;
        }
}

/* dv += weights^T do, dk += dscores^T q, strip by strip of keys. */
static void add_to_keys(const struct backward *a, const struct work *w, const struct tile *t,
                        const struct interval *keys)
{
    struct interval rows[TILE_KEYS];
    transpose_intervals(rows, keys, w->num_rows);
    const size_t first = w->group * a->num_keys + (size_t)w->span->k_begin + w->first;
    const struct strips values = {.c = a->v_sums + first * a->padded_dim,
                                  .a = t->weights,
                                  .b = t->d_o,
                                  .ldc = a->padded_dim,
                                  .lda = TILE_KEYS,
                                  .ldb = a->padded_dim,
                                  .columns = a->padded_dim,
                                  .across = true};
    struct strips k = values;
    k.c = a->k_sums + first * a->padded_dim, k.a = t->d_scores, k.b = t->q;
    for (size_t j = 0; j < w->count; j += STRIP_ROWS) {
        multiply_ragged(&values, j, min_size(w->count - j, STRIP_ROWS), rows + j);
        multiply_ragged(&k, j, min_size(w->count - j, STRIP_ROWS), rows + j);
    }
}

/* dq += dscores k, at this block's turn. */
static void add_to_queries(const struct backward *a, const struct work *w, const struct tile *t,
                           const struct interval *keys)
{
    const struct strips x = {.c = a->q_sums + row_in_group(a, w, w->first_row) * a->padded_dim,
                             .a = t->d_scores,
                             .b = t->keys,
                             .ldc = a->padded_dim,
                             .lda = TILE_KEYS,
                             .ldb = a->padded_dim,
                             .columns = a->padded_dim};
    wait_for_turn(a, w);
    for (size_t i = 0; i < w->num_rows; i += STRIP_ROWS)
        multiply_ragged(&x, i, min_size(w->num_rows - i, STRIP_ROWS), keys + i);
    pass_turn(a, w);
}

static void work_on_tile(const struct backward *a, const struct work *w, const struct tile *t)
{
    struct interval keys[TILE_ROWS];
    load_tile(a, w, t);
    for (size_t i = 0; i < w->num_rows; i++)
        keys[i] = keys_in_block(keys_of(a->p, w->span, w->first_row + i), w->first, w->count);
    for (size_t i = 0; i < w->num_rows; i += STRIP_ROWS)
        weigh_strip(a, w, t, i, min_size(w->num_rows - i, STRIP_ROWS), keys + i);
    add_to_keys(a, w, t, keys);
    add_to_queries(a, w, t, keys);
}

/* ---- all tiles and blocks ---- */

static void work_on_block(const struct backward *a, struct work *w, const struct tile *t)
{
    const size_t rows = rows_of(a, w->span);
    load_block(a, w, t);
    for (size_t row = 0; row < rows && !work_stopped(); row += TILE_ROWS) {
        if (!tile_meets_block(a, w->span, row, w->first / TILE_KEYS)) continue;
        w->first_row = row;
        w->num_rows = min_size(rows - row, TILE_ROWS);
        work_on_tile(a, w, t);
    }
}

/* All workers call it and share the blocks. A thread takes them in ascending
 * order, so the first of those that wait for one another never waits. */
static void work_on_span(const struct backward *a, const struct range *range, const struct span *s,
                         const struct tile *t)
{
#pragma omp for schedule(monotonic : dynamic) nowait
    for (size_t i = 0; i < blocks_of(s) * a->groups; i++) {
        if (work_stopped()) continue;
        struct work w = {.range = range, .span = s, .group = i % a->groups};
        w.first = i / a->groups * TILE_KEYS;
        w.count = min_size((size_t)s->k_count - w.first, TILE_KEYS);
        work_on_block(a, &w, t);
    }
}

static const struct span *spans_end(const struct backward *a)
{
    size_t n = 0;
    while (n < a->num_spans && a->spans[n].q_count > 0)
        n++;
    return a->spans + n;
}

static bool keys_are_shared(const struct backward *a)
{
    const struct span *end = spans_end(a);
    for (const struct span *s = a->spans; s < end; s++)
        for (const struct span *other = s + 1; other < end; other++)
            if (s->k_begin < other->k_begin + other->k_count &&
                other->k_begin < s->k_begin + s->k_count)
                return true;
    return false;
}

/* All workers call it. */
static void work_on_spans(const struct backward *a, bool shared, const struct tile *t)
{
    const struct span *end = spans_end(a);
    struct range range = {.spans = a->spans};
    while (range.spans < end) {
        range.num_spans = spans_of_range(range.spans, end);
        for (size_t i = 0; i < range.num_spans; i++) {
            work_on_span(a, &range, range.spans + i, t);
            if (shared) {
#pragma omp barrier
            }
        }
        range.first_turn += tiles_of(a, range.spans);
        range.spans += range.num_spans;
    }
}

/* All workers call it. Sums start as 0, and delta of each head of query i
 * is made. */
static void start_query(const struct backward *a, size_t i)
{
    for (size_t head = 0; head < a->groups * a->queries; head++) {
        const size_t at = (i * a->groups * a->queries + head) * a->head_dim;
        const size_t place =
            (head / a->queries * a->num_queries + i) * a->queries + head % a->queries;
        real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t d = 0; d < a->head_dim; d++)
            sum += load(a->o[at + d]) * load(a->d_o[at + d]);
        a->delta[place] = sum;
        memset(a->q_sums + place * a->padded_dim, 0, a->padded_dim * sizeof *a->q_sums);
    }
}

static void start_all(const struct backward *a)
{
    const size_t n = a->groups * a->num_keys;
#pragma omp for nowait
    for (size_t i = 0; i < a->num_queries; i++)
        start_query(a, i);
#pragma omp for nowait
    for (size_t i = 0; i < n; i++) {
        memset(a->k_sums + i * a->padded_dim, 0, a->padded_dim * sizeof *a->k_sums);
        memset(a->v_sums + i * a->padded_dim, 0, a->padded_dim * sizeof *a->v_sums);
    }
#pragma omp for
    for (size_t i = 0; i < a->groups * a->num_turns; i++)
        atomic_init(a->turns + i, 0);
}

static void store_head(const struct backward *a, elem *to, const real *sums, real scale)
{
    for (size_t d = 0; d < a->head_dim; d++)
        to[d] = store(scale * sums[d]);
}

/* Query heads of a row of dq. */
static void store_queries(const struct backward *a, size_t i)
{
    const real scale = (real)a->p->attention.scale;
    for (size_t g = 0; g < a->groups; g++)
        for (size_t j = 0; j < a->queries; j++)
            store_head(a, a->dq + i * a->q_columns + g * a->p->attention.q_stride + j * a->head_dim,
                       a->q_sums + ((g * a->num_queries + i) * a->queries + j) * a->padded_dim,
                       scale);
}

/* Key and value heads of a row of dkv. */
static void store_keys(const struct backward *a, size_t i)
{
    elem *to = (a->dkv ? a->dkv : a->dq) + i * a->kv_columns;
    for (size_t g = 0; g < a->groups; g++, to += a->p->attention.kv_stride) {
        const size_t from = (g * a->num_keys + i) * a->padded_dim;
        store_head(a, to + a->p->attention.k_at, a->k_sums + from, 1);
        store_head(a, to + a->p->attention.v_at, a->v_sums + from, 1);
    }
}

/* All workers call it. Elements outside heads are 0. */
static void store_all(const struct backward *a)
{
#pragma omp for
    for (size_t i = 0; i < a->num_queries; i++) {
        memset(a->dq + i * a->q_columns, 0, a->q_columns * sizeof *a->dq);
        store_queries(a, i);
    }
#pragma omp for
    for (size_t i = 0; i < a->num_keys; i++) {
        if (a->dkv) memset(a->dkv + i * a->kv_columns, 0, a->kv_columns * sizeof *a->dkv);
        store_keys(a, i);
    }
}

static struct backward shape_of(const union op_params *p, const struct operand *in)
{
    const struct head_shape s = p->attention.heads;
    const size_t rows = in[0].shape[0] * s.queries;
    return (struct backward){.num_spans = in[2].shape[0],
                             .num_queries = in[0].shape[0],
                             .num_keys = in[1].shape[0],
                             .q_columns = in[0].shape[1],
                             .kv_columns = in[1].shape[1],
                             .head_dim = s.head_dim,
                             .padded_dim = pad(s.head_dim),
                             .groups = s.groups,
                             .queries = s.queries,
                             /* Each range may have one partial tile. */
                             .num_turns = rows / TILE_ROWS + in[2].shape[0],
                             .p = p};
}

static void place_memory(struct backward *a, char *workspace)
{
    const size_t rows = a->groups * a->num_queries * a->queries;
    const size_t keys = a->groups * a->num_keys * a->padded_dim;
    a->tiles = (real *)(void *)workspace;
    a->q_sums = a->tiles + most_workers() * tile_reals(a->padded_dim);
    a->k_sums = a->q_sums + rows * a->padded_dim;
    a->v_sums = a->k_sums + keys;
    a->delta = a->v_sums + keys;
    a->turns = (atomic_uint *)(void *)(a->delta + rows);
}

enum status NAME(attention_backward)(const union op_params *p, const struct operand *in,
                                     const struct operand *out, void *workspace, struct error *err)
{
    (void)err;
    struct backward a = shape_of(p, in);
    a.q = in[0].data, a.kv = in[1].data, a.spans = in[2].data, a.tokens = in[3].data;
    a.o = in[4].data, a.lse = in[5].data, a.d_o = in[6].data;
    a.dq = out[0].data, a.dkv = out[1].data;
    assert(a.tokens || !has_dropout(p));
    assert(a.dkv || (a.num_keys == a.num_queries && a.kv_columns == a.q_columns));
    place_memory(&a, workspace);
    const bool shared = keys_are_shared(&a);
#pragma omp parallel num_threads(workers())
    {
        const struct tile t = tile_at(&a, worker());
        start_all(&a);
        work_on_spans(&a, shared, &t);
#pragma omp barrier
        store_all(&a);
    }
    return OK;
}

size_t NAME(attention_backward_workspace)(const union op_params *p, const struct operand *in,
                                          const struct operand *out)
{
    (void)out;
    const struct backward a = shape_of(p, in);
    const size_t rows = a.groups * a.num_queries * a.queries, keys = a.groups * a.num_keys;
    const size_t reals =
        most_workers() * tile_reals(a.padded_dim) + (rows + 2 * keys) * a.padded_dim + rows;
    return reals * sizeof(real) + a.groups * a.num_turns * sizeof *a.turns;
}
