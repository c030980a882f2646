/* attention_testing.h - attention by definition, in double, for
 * random shapes. */
#ifndef FERRY_KERNELS_CPU_OPS_ATTENTION_TESTING_H
#define FERRY_KERNELS_CPU_OPS_ATTENTION_TESTING_H

#include "kernels/cpu/ops/ops_testing.h"
#include "kernels/op_dropout.h"

/* Operands and sizes of one call; some have query and key in one
 * fused array. */
struct call {
    struct operand in[5], out[2];
    union op_params p;
    size_t num_queries, num_keys, heads, head_dim;
};

static inline void random_shape(struct op_test *t, struct call *c)
{
    static const uint32_t head_dims[] = {1, 5, 16, 64, 80, 128, 256};
    struct head_shape *s = &c->p.attention.heads;
    s->groups = (uint32_t)test_between(t, 1, 3);
    s->queries = (uint32_t)test_between(t, 1, 5);
    s->head_dim = head_dims[test_below(&t->seed, 7)];
    c->heads = (size_t)s->groups * s->queries;
    c->head_dim = s->head_dim;
    c->p.attention.scale = 1 / sqrt((double)s->head_dim);
    c->p.attention.causal = test_coin(t);
    c->p.attention.window = test_coin(t) ? 0 : (uint32_t)test_between(t, 1, 60);
    c->p.attention.softcap = test_coin(t) ? 0 : 1.5;
    c->p.attention.first_head = test_between(t, 0, 5);
    c->p.attention.dropout.seed = t->seed;
    c->p.attention.dropout.stream = 7;
    c->p.attention.dropout.probability = test_coin(t) ? 0 : 0.25;
}

/* Queries in rows of query, key and value; keys in the same rows or in
 * a cache. */
static inline void make_operands(struct op_test *t, struct call *c)
{
    const struct head_shape s = c->p.attention.heads;
    const uint32_t fused = (s.queries + 2) * s.head_dim;
    c->in[0] = ELEMS(c->num_queries, s.groups * fused);
    c->p.attention.q_stride = fused;
    c->in[1] = ELEMS(c->num_keys, s.groups * 2 * s.head_dim);
    c->p.attention.kv_stride = 2 * s.head_dim;
    c->p.attention.v_at = s.head_dim;
    if (test_coin(t)) {
        c->in[1] = ELEMS(c->num_keys, s.groups * fused);
        c->p.attention.kv_stride = fused;
        c->p.attention.k_at = s.queries * s.head_dim;
        c->p.attention.v_at = c->p.attention.k_at + s.head_dim;
    }
    if (test_coin(t)) c->in[3] = ELEMS(c->heads);
    if (c->p.attention.dropout.probability > 0) {
        c->in[4] = INTS(c->num_queries, 2);
        for (size_t i = 0; i < 2 * c->num_queries; i++)
            test_set(t, c->in + 4, i, floor(test_uniform(t) * 0x1p31));
    }
    c->out[0] = ELEMS(c->num_queries, c->heads * s.head_dim);
    if (test_coin(t)) c->out[1] = REALS(c->num_queries, c->heads);
}

static inline double query(const struct op_test *t, const struct call *c, size_t row, size_t head,
                           size_t d)
{
    const uint32_t queries = c->p.attention.heads.queries;
    return test_get(t, c->in,
                    row * c->in[0].shape[1] + head / queries * c->p.attention.q_stride +
                        head % queries * c->head_dim + d);
}

static inline double key_or_value(const struct op_test *t, const struct call *c, uint32_t at,
                                  size_t row, size_t head, size_t d)
{
    const size_t group = head / c->p.attention.heads.queries;
    return test_get(t, c->in + 1,
                    row * c->in[1].shape[1] + group * c->p.attention.kv_stride + at + d);
}

/* Field i of a span (q_begin, q_count, q_position, k_begin,
 * k_count, k_position). */
static inline int64_t field(const struct op_test *t, const struct call *c, size_t span, size_t i)
{
    return (int64_t)test_get(t, c->in + 2, span * 6 + i);
}

static inline bool attends(const struct op_test *t, const struct call *c, size_t span, int64_t row,
                           int64_t key)
{
    const int64_t i = row - field(t, c, span, 0), j = key - field(t, c, span, 3);
    const int64_t d = field(t, c, span, 2) + i - field(t, c, span, 5) - j;
    return i >= 0 && i < field(t, c, span, 1) && j >= 0 && j < field(t, c, span, 4) &&
           (d >= 0 || !c->p.attention.causal) &&
           (c->p.attention.window == 0 || d < (int64_t)c->p.attention.window);
}

static inline double score(const struct op_test *t, const struct call *c, size_t row, size_t key,
                           size_t head)
{
    const double softcap = c->p.attention.softcap;
    double sum = 0;
    for (size_t d = 0; d < c->head_dim; d++)
        sum += query(t, c, row, head, d) * key_or_value(t, c, c->p.attention.k_at, key, head, d);
    sum *= c->p.attention.scale;
    return softcap != 0 ? softcap * tanh(sum / softcap) : sum;
}

/* Dropout's factor of a weight. */
static inline double dropout(const struct op_test *t, const struct call *c, size_t span, size_t row,
                             size_t key, size_t head)
{
    const struct dropout *d = &c->p.attention.dropout;
    if (d->probability <= 0) return 1;
    const int32_t *tokens = c->in[4].data;
    const uint64_t begin =
        dropout_head(dropout_token(d, tokens + 2 * row), c->p.attention.first_head + head);
    const int64_t position = (int64_t)key - field(t, c, span, 3) + field(t, c, span, 5);
    const bool keeps = dropout_keeps(begin, (uint64_t)position, dropout_limit(d));
    return keeps ? 1 / (1 - d->probability) : 0;
}

static inline void set_span(struct op_test *t, struct call *c, size_t span, const size_t fields[6])
{
    for (size_t i = 0; i < 6; i++)
        test_set(t, c->in + 2, span * 6 + i, (double)fields[i]);
}

#endif
