#include "train/model/tokens.h"

#include <stdlib.h>
#include <string.h>

#include "common/checked.h"

/* A rank's run of positions of one sequence, from `row` on. */
struct run {
    uint64_t sequence, position, count, row;
    bool filler; /* a copy of another rank's sequence */
};

static bool documents_are_sequences(const struct batch *b)
{
    if (b->any_starts) return false;
    for (uint64_t i = 0; b->starts && i < b->num_sequences * b->length; i++)
        if (b->starts[i] && i % b->length) return false;
    return true;
}

static bool sequences_are_full(const struct batch *b)
{
    for (uint64_t i = 0; b->lengths && i < b->num_sequences; i++)
        if (b->lengths[i] != b->length) return false;
    return true;
}

struct token_shape tokens_shape(const struct batch *b, const struct group_sizes *s,
                                uint64_t multiple)
{
    const unsigned dp = b->is_dealt ? 1 : s->dp;
    struct token_shape t = {.sequences = ceil_div_u64(b->num_sequences, dp),
                            .num_chunks = s->cp > 1 ? 2 * s->cp : 1};
    t.chunk = ceil_div_u64(b->length, t.num_chunks);
    uint64_t runs = t.sequences * (s->cp > 1 ? 2 : 1), parts = runs;
    t.rows = ceil_div_u64(runs * t.chunk, multiple) * multiple;
    if (b->any_starts) parts = t.rows;
    for (uint64_t i = 0; b->starts && !b->any_starts && i < b->num_sequences * b->length; i++)
        parts += b->starts[i]; /* each splits at most one run */
    t.num_spans = parts * t.num_chunks + 1;
    if (s->cp == 1 && b->num_sequences % dp == 0 && t.rows == t.sequences * t.chunk &&
        documents_are_sequences(b) && sequences_are_full(b))
        t.uniform_sequences = (uint32_t)t.sequences;
    return t;
}

uint64_t tokens_first_sequence(const struct batch *b, const struct group_place *at,
                               const struct token_shape *shape)
{
    return b->is_dealt ? 0 : at->dp * shape->sequences;
}

static uint64_t num_runs(const struct token_shape *shape)
{
    return shape->sequences * (shape->num_chunks > 1 ? 2 : 1);
}

/* Run number i of the rank. */
static struct run run_of(const struct batch *b, const struct token_shape *shape,
                         const struct group_place *at, uint64_t i)
{
    const uint64_t per = shape->num_chunks > 1 ? 2 : 1,
                   sequence = tokens_first_sequence(b, at, shape) + i / per;
    uint64_t chunk = i % per ? shape->num_chunks - 1 - at->cp : at->cp;
    return (struct run){.sequence = min_u64(sequence, b->num_sequences - 1),
                        .position = shape->num_chunks > 1 ? chunk * shape->chunk : 0,
                        .count = shape->chunk,
                        .row = i * shape->chunk,
                        .filler = sequence >= b->num_sequences};
}

struct token_origin *tokens_origins(struct arena *a, const struct batch *b,
                                    const struct group_place *at, const struct token_shape *shape)
{
    struct token_origin *o = arena_array(a, shape->rows, sizeof *o);
    for (uint64_t i = 0; i < shape->rows; i++)
        o[i].sequence = UINT64_MAX;
    for (uint64_t i = 0; i < num_runs(shape); i++) {
        struct run r = run_of(b, shape, at, i);
        for (uint64_t k = 0; k < r.count && !r.filler && r.position + k < b->length; k++)
            o[r.row + k] = (struct token_origin){r.sequence, r.position + k};
    }
    return o;
}

/* First position of the document at a position. */
static uint64_t document_start(const struct batch *b, uint64_t sequence, uint64_t position)
{
    uint64_t at = min_u64(position, b->length - 1);
    if (!b->starts) return 0;
    while (at && !b->starts[sequence * b->length + at])
        at--;
    return at;
}

/* End of the positions of the run in the document of `position`. */
static uint64_t document_end(const struct batch *b, const struct run *r, uint64_t position)
{
    uint64_t end = r->position + r->count, at = position + 1;
    if (!b->starts) return end;
    while (at < end && (at >= b->length || !b->starts[r->sequence * b->length + at]))
        at++;
    return at;
}

static void add_span(int32_t *spans, uint64_t *count, uint64_t q_row, uint64_t q_count,
                     uint64_t q_position, uint64_t k_row, uint64_t k_count, uint64_t k_position)
{
    const uint64_t span[6] = {q_row, q_count, q_position, k_row, k_count, k_position};
    for (unsigned i = 0; i < 6; i++)
        spans[*count * 6 + i] = (int32_t)span[i];
    ++*count;
}

/* Adds the span of queries [from, to) of run q, in one document, with keys of
 * run k. */
static void add_keys(const struct batch *b, int32_t *spans, uint64_t *count, const struct run *q,
                     uint64_t from, uint64_t to, const struct run *k)
{
    uint64_t start = document_start(b, q->sequence, from);
    uint64_t begin = max_u64(start, k->position), end = min_u64(to, k->position + k->count);
    if (k->sequence != q->sequence || begin >= end) return;
    add_span(spans, count, q->row + from - q->position, to - from, from - start,
             k->row + begin - k->position, end - begin, begin - start);
}

/* Makes spans of all queries of a rank with the keys of successive ranks. */
static void make_spans(int32_t *spans, const struct batch *b, const struct token_shape *shape,
                       const struct group_place *at, unsigned first_cp, unsigned num_cp)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < num_runs(shape); i++) {
        struct run q = run_of(b, shape, at, i);
        if (q.filler) continue; /* its results are dropped */
        for (uint64_t from = q.position, to; from < q.position + q.count; from = to) {
            to = document_end(b, &q, from);
            for (unsigned c = 0; c < num_cp; c++) {
                struct group_place other = *at;
                other.cp = first_cp + c;
                for (uint64_t n = 0; n < num_runs(shape); n++) {
                    struct run k = run_of(b, shape, &other, n);
                    if (n / (shape->num_chunks > 1 ? 2 : 1) != i / (shape->num_chunks > 1 ? 2 : 1))
                        continue;
                    k.row += c * shape->rows;
                    add_keys(b, spans, &count, &q, from, to, &k);
                }
            }
        }
    }
    add_span(spans, &count, 0, 0, 0, 0, 0, 0);
}

static void set_number(struct tokens *t, const struct batch *b, uint64_t row, uint64_t sequence,
                       uint64_t position)
{
    const uint64_t number = (b->samples ? b->samples[sequence] : sequence) * b->length + position;
    t->numbers[2 * row] = (int32_t)(uint32_t)number;
    t->numbers[2 * row + 1] = (int32_t)(uint32_t)(number >> 32);
}

static void fill_rows(struct tokens *t, const struct batch *b, const struct group_place *at)
{
    for (uint64_t i = 0; i < num_runs(&t->shape); i++) {
        struct run r = run_of(b, &t->shape, at, i);
        for (uint64_t k = 0; k < r.count; k++) {
            uint64_t position = r.position + k, row = r.row + k;
            uint64_t in_batch = r.sequence * b->length + min_u64(position, b->length - 1);
            bool real = position < b->length;
            t->ids[row] = b->ids ? b->ids[in_batch] : 0;
            t->positions[row] = b->positions ? b->positions[in_batch]
                                             : (int32_t)(min_u64(position, b->length - 1) -
                                                         document_start(b, r.sequence, position));
            if (real && !r.filler && b->targets) t->targets[row] = b->targets[in_batch];
            if (real && !r.filler && b->weights) t->weights[row] = b->weights[in_batch];
            set_number(t, b, row, r.sequence, position);
        }
    }
}

/* ---- orders ---- */

static int by_value(const void *a, const void *b, void *values)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b, *of = values;
    if (of[x] != of[y]) return of[x] < of[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Rows [0, count) sorted by their values. */
static int32_t *sorted_order(struct arena *a, int32_t *values, uint64_t count)
{
    int32_t *order = arena_array(a, count, sizeof *order);
    for (uint64_t i = 0; i < count; i++)
        order[i] = (int32_t)i;
    qsort_r(order, count, sizeof *order, by_value, values);
    return order;
}

static void sort_rows(struct tokens *t, struct arena *a, unsigned tp, unsigned tp_rank)
{
    const uint64_t rows = t->shape.rows, slice = rows / tp;
    t->id_order = sorted_order(a, t->ids, rows);
    t->position_order = sorted_order(a, t->positions, rows);
    t->slice_position_order = sorted_order(a, t->positions + tp_rank * slice, slice);
}

void tokens_make(struct tokens *t, struct arena *a, const struct batch *b,
                 const struct group_sizes *s, const struct group_place *at, uint64_t multiple)
{
    t->shape = tokens_shape(b, s, multiple);
    uint64_t rows = t->shape.rows, spans = t->shape.num_spans * 6;
    t->ids = arena_array(a, rows, sizeof *t->ids);
    t->positions = arena_array(a, rows, sizeof *t->positions);
    t->targets = arena_array(a, rows, sizeof *t->targets);
    memset(t->targets, 0xff, rows * sizeof *t->targets); /* -1 */
    t->weights = arena_array(a, rows, sizeof *t->weights);
    t->numbers = arena_array(a, rows * 2, sizeof *t->numbers);
    fill_rows(t, b, at);
    t->id_order = t->position_order = t->slice_position_order = NULL;
    if (b->weights) sort_rows(t, a, s->tp, at->tp);
    t->origins = tokens_origins(a, b, at, &t->shape);
    t->all_spans = arena_array(a, spans, sizeof *t->all_spans);
    make_spans(t->all_spans, b, &t->shape, at, 0, s->cp);
    t->spans = arena_array(a, s->cp, sizeof *t->spans);
    for (unsigned i = 0; i < s->cp; i++) {
        t->spans[i] = arena_array(a, spans, sizeof **t->spans);
        make_spans(t->spans[i], b, &t->shape, at, (at->cp + s->cp - i) % s->cp, 1);
    }
}
