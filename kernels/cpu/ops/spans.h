/* spans.h - shared by attention and its backward: spans, blocks of keys packed
 * as REAL, products whose rows end at different keys, dropout. */
#ifndef FERRY_KERNELS_CPU_OPS_SPANS_H
#define FERRY_KERNELS_CPU_OPS_SPANS_H

#include "kernels/cpu/ops/ops_internal.h"
#include "kernels/cpu/ops/real_math.h"
#include "kernels/cpu/ops/strip.h"
#include "kernels/op_dropout.h"

/* Rows are the queries of a range of spans in a group: row = query * queries
 * + head. */
enum { TILE_ROWS = 16 * STRIP_ROWS, TILE_KEYS = 128 };

struct span {
    int32_t q_begin, q_count, q_position, k_begin, k_count, k_position;
};

/* [begin, end) */
struct interval {
    size_t begin, end;
};

static inline size_t pad(size_t n)
{
    return (n + STRIP_COLUMNS - 1) / STRIP_COLUMNS * STRIP_COLUMNS;
}

static inline size_t query_of(const union op_params *p, const struct span *s, size_t row)
{
    return (size_t)s->q_begin + row / p->attention.heads.queries;
}

/* The keys of a span that the query at row may attend to; empty if end <=
 * begin. From row to row neither end falls. */
static inline struct interval keys_of(const union op_params *p, const struct span *s, size_t row)
{
    const int64_t position = s->q_position + (int64_t)(row / p->attention.heads.queries);
    const int64_t q = position - s->k_position, count = s->k_count, window = p->attention.window;
    const int64_t begin = window && q + 1 > window ? q + 1 - window : 0;
    const int64_t end = p->attention.causal && q + 1 < count ? q + 1 : count;
    return (struct interval){(size_t)(begin < count ? begin : count), (size_t)(end > 0 ? end : 0)};
}

/* The part of keys in the block at `first`, counted from there. */
static inline struct interval keys_in_block(struct interval keys, size_t first, size_t count)
{
    const size_t begin = keys.begin > first ? keys.begin - first : 0;
    const size_t end = keys.end > first ? min_size(keys.end - first, count) : 0;
    return begin < end ? (struct interval){begin, end} : (struct interval){0, 0};
}

/* The smallest interval that contains all of them. */
static inline struct interval hull_of(const struct interval *each, size_t n)
{
    struct interval all = {SIZE_MAX, 0};
    for (size_t i = 0; i < n; i++) {
        if (each[i].begin >= each[i].end) continue;
        all.begin = min_size(all.begin, each[i].begin);
        all.end = each[i].end > all.end ? each[i].end : all.end;
    }
    return all;
}

/* Number of adjacent spans from s on, before end, with s's queries. */
static inline size_t spans_of_range(const struct span *s, const struct span *end)
{
    size_t n = 1;
    while (s + n < end && s[n].q_count > 0 && s[n].q_begin == s->q_begin)
        n++;
    return n;
}

/* Packs rows of n elements, `stride` apart, padded by zeros. */
static inline void pack_rows(real *to, size_t padded, const elem *from, size_t stride, size_t rows,
                             size_t n)
{
    for (size_t i = 0; i < rows; i++) {
        for (size_t d = 0; d < n; d++)
            to[i * padded + d] = load(from[i * stride + d]);
        for (size_t d = n; d < padded; d++)
            to[i * padded + d] = 0;
    }
}

/* Packs rows of n elements as columns of [n, TILE_KEYS], padded by zeros. Goes
 * LANES rows at a time, so that reads and writes both run along memory. */
static inline void pack_across(real *to, const elem *from, size_t stride, size_t rows, size_t n)
{
    for (size_t j = 0; j < pad(rows); j += LANES)
        for (size_t d = 0; d < n; d++)
            for (size_t lane = 0; lane < LANES; lane++)
                to[d * TILE_KEYS + j + lane] =
                    j + lane < rows ? load(from[(j + lane) * stride + d]) : 0;
}

/* c [rows, columns] += a b, strip by strip. Row i of a lies at a + i * lda; if
 * `across`, at a + i, its elements lda apart. */
struct strips {
    real *c;
    const real *a, *b;
    size_t ldc, lda, ldb, columns;
    bool across;
};

static inline void multiply_part(const struct strips *x, size_t i, size_t rows, size_t begin,
                                 size_t end)
{
    if (begin >= end) return;
    real *c = x->c + i * x->ldc;
    const real *b = x->b + begin * x->ldb;
    if (x->across)
        multiply_strip_across(c, x->ldc, x->a + begin * x->lda + i, x->lda, b, x->ldb, rows,
                              x->columns, end - begin);
    else
        multiply_strip(c, x->ldc, x->a + i * x->lda + begin, x->lda, b, x->ldb, rows, x->columns,
                       end - begin);
}

/* Rows [i, i + rows) of a, at most a strip; only elements in each[row - i] are
 * multiplied. Nothing else is touched, so it may be NaN. Elements common to all
 * rows are multiplied at once, the edges row by row. */
static inline void multiply_ragged(const struct strips *x, size_t i, size_t rows,
                                   const struct interval *each)
{
    struct interval all = each[0];
    for (size_t r = 1; r < rows; r++) {
        if (each[r].begin > all.begin) all.begin = each[r].begin;
        if (each[r].end < all.end) all.end = each[r].end;
    }
    if (all.begin >= all.end) all = (struct interval){SIZE_MAX, SIZE_MAX};
    for (size_t r = 0; r < rows; r++) {
        multiply_part(x, i + r, 1, each[r].begin, min_size(all.begin, each[r].end));
        multiply_part(x, i + r, 1, all.end, each[r].end);
    }
    multiply_part(x, i, rows, all.begin, all.end);
}

static inline void cap_scores(real *scores, size_t n, const real softcap)
{
    for (size_t i = 0; i < n; i++)
        scores[i] = softcap * real_tanh(scores[i] / softcap);
}

/* Dropout's factors of the weights of one query and head, for n keys from
 * `first` of the span on. tokens: of all queries. */
static inline void dropout_factors(const union op_params *p, const int32_t *tokens,
                                   const struct span *s, size_t row, size_t group, size_t first,
                                   size_t n, real *factors)
{
    const struct dropout *dropout = &p->attention.dropout;
    const size_t queries = p->attention.heads.queries, query = query_of(p, s, row);
    const uint64_t head = p->attention.first_head + group * queries + row % queries;
    const uint64_t begin = dropout_head(dropout_token(dropout, tokens + 2 * query), head);
    const uint64_t position = (uint64_t)(s->k_position + (int64_t)first);
    const uint32_t limit = dropout_limit(dropout);
    const real kept = (real)(1 / (1 - dropout->probability));
    for (size_t j = 0; j < n; j++)
        factors[j] = dropout_keeps(begin, position + j, limit) ? kept : 0;
}

static inline bool has_dropout(const union op_params *p)
{
    return p->attention.dropout.probability > 0;
}

#endif
