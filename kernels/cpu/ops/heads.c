/* heads.c - OP_HEAD_NORM, OP_ROTARY, OP_CACHE_WRITE and OP_ROTARY_CACHE: ops on
 * query, key and value heads. */
#include <assert.h>

#include "kernels/cpu/ops/ops_internal.h"

/* Query and key heads change, value heads are copied; y may be x. */
static void copy_row(elem *y, const elem *x, size_t n)
{
    if (y != x) memcpy(y, x, n * sizeof *y);
}

static void norm_head(elem *x, const elem *weight, size_t head_dim, real epsilon, real shift)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < head_dim; i++)
        sum += load(x[i]) * load(x[i]);
    const real scale = 1 / real_sqrt(sum / (real)head_dim + epsilon);
    for (size_t i = 0; i < head_dim; i++)
        x[i] = store(load(x[i]) * scale * (load(weight[i]) + shift));
}

void NAME(head_norm)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    const struct head_shape s = p->head_norm.heads;
    const elem *x = in[0].data, *q_weight = in[1].data, *k_weight = in[2].data;
    elem *y = out[0].data;
    const size_t num_tokens = in[0].shape[0], columns = qkv_columns(&s);
    const real epsilon = (real)p->head_norm.epsilon, shift = (real)p->head_norm.shift;
#pragma omp parallel for if (num_tokens * columns >= WORTH_THREADS)
    for (size_t t = 0; t < num_tokens; t++) {
        elem *head = y + t * columns;
        copy_row(head, x + t * columns, columns);
        for (size_t g = 0; g < s.groups; g++, head += s.head_dim) /* skips the value head */
            for (size_t j = 0; j <= s.queries; j++, head += s.head_dim)
                norm_head(head, j < s.queries ? q_weight : k_weight, s.head_dim, epsilon, shift);
    }
}

/* sign: 1, or -1 for the inverse. Pair i is (x[i * step], x[i * step
 * + distance]). */
static void rotate(elem *x, const real *table, size_t pairs, size_t step, size_t distance,
                   real sign)
{
    for (size_t i = 0; i < pairs; i++) {
        const real c = table[i], s = sign * table[pairs + i];
        const real a = load(x[i * step]), b = load(x[i * step + distance]);
        x[i * step] = store(a * c - b * s);
        x[i * step + distance] = store(b * c + a * s);
    }
}

static void rotate_head(elem *x, const real *table, size_t pairs, bool interleaved, real sign)
{
    if (interleaved)
        rotate(x, table, pairs, 2, 1, sign);
    else
        rotate(x, table, pairs, 1, pairs, sign);
}

void NAME(rotary)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    const struct head_shape s = p->rotary.heads;
    const elem *x = in[0].data;
    const real *table = in[1].data, sign = p->rotary.inverse ? -1 : 1;
    const int32_t *positions = in[2].data;
    elem *y = out[0].data;
    const size_t num_tokens = in[0].shape[0], columns = qkv_columns(&s);
    const size_t rotary_dim = p->rotary.rotary_dim;
#pragma omp parallel for if (num_tokens * columns >= WORTH_THREADS)
    for (size_t t = 0; t < num_tokens; t++) {
        assert(positions[t] >= 0 && (uint64_t)positions[t] < in[1].shape[0]);
        const real *row = table + (size_t)positions[t] * rotary_dim;
        elem *head = y + t * columns;
        copy_row(head, x + t * columns, columns);
        for (size_t g = 0; g < s.groups; g++, head += s.head_dim)
            for (size_t j = 0; j <= s.queries; j++, head += s.head_dim)
                rotate_head(head, row, rotary_dim / 2, p->rotary.interleaved, sign);
    }
}

void NAME(cache_write)(const union op_params *p, const struct operand *in,
                       const struct operand *out)
{
    const struct head_shape s = p->cache_write.heads;
    const elem *qkv = in[0].data;
    const int32_t *rows = in[1].data;
    elem *cache = out[0].data;
    const size_t num_tokens = in[0].shape[0], columns = qkv_columns(&s);
    const size_t pair = 2 * (size_t)s.head_dim, queries = (size_t)s.queries * s.head_dim;
#pragma omp parallel for if (num_tokens * columns >= WORTH_THREADS)
    for (size_t t = 0; t < num_tokens; t++) {
        if (rows[t] < 0) continue;
        assert((uint64_t)rows[t] < out[0].shape[0]);
        for (size_t g = 0; g < s.groups; g++)
            memcpy(cache + ((size_t)rows[t] * s.groups + g) * pair,
                   qkv + t * columns + g * (queries + pair) + queries, pair * sizeof *cache);
    }
}

void NAME(rotary_cache)(const union op_params *p, const struct operand *in,
                        const struct operand *out)
{
    const union op_params write = {.cache_write.heads = p->rotary.heads};
    const struct operand rotated[] = {out[0], in[3]};
    NAME(rotary)(p, in, out);
    NAME(cache_write)(&write, rotated, out + 1);
}
