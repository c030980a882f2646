/* attention_merge.c - OP_ATTENTION_MERGE: merges attention over two sets
 * of keys. */
#include "kernels/cpu/ops/ops_internal.h"
#include "kernels/cpu/ops/real_math.h"

/* Factors of both parts, and the result's lse. Factors are 0 without
 * any key. */
static real merge_lse(real a, real b, real *weight_a, real *weight_b)
{
    const real top = a > b ? a : b;
    const bool empty = a == -INFINITY && b == -INFINITY;
    const real part_a = real_exp(a - top), part_b = real_exp(b - top), sum = part_a + part_b;
    *weight_a = empty ? 0 : part_a / sum;
    *weight_b = empty ? 0 : part_b / sum;
    return empty ? -INFINITY : top + real_log(sum);
}

void NAME(attention_merge)(const union op_params *p, const struct operand *in,
                           const struct operand *out)
{
    const elem *o_a = in[0].data, *o_b = in[2].data;
    const real *lse_a = in[1].data, *lse_b = in[3].data;
    elem *o = out[0].data;
    real *lse = out[1].data;
    const size_t head_dim = p->attention_merge.head_dim;
    const size_t heads = out[1].shape[0] * out[1].shape[1];
#pragma omp parallel for if (heads * head_dim >= WORTH_THREADS)
    for (size_t i = 0; i < heads; i++) {
        real a, b;
        lse[i] = merge_lse(lse_a[i], lse_b[i], &a, &b);
        for (size_t d = i * head_dim; d < (i + 1) * head_dim; d++)
            o[d] = store(a * load(o_a[d]) + b * load(o_b[d]));
    }
}
