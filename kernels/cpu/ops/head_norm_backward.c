/* head_norm_backward.c - OP_HEAD_NORM_BACKWARD: backward of an RMS norm
 * (norm_backward.c) of each query and key head. Value heads are copied. */
#include "kernels/cpu/ops/row_sums.h"

struct head_norm_backward {
    const elem *x, *dy, *weight[2]; /* [T, w]; [d] of queries, of keys */
    elem *dx;                       /* [T, w]; may be dy */
    struct head_shape heads;
    real epsilon, shift;
};

/* 1 / sqrt(average(x^2) + epsilon) */
static real scale_of(const elem *x, size_t d, real epsilon)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < d; i++)
        sum += load(x[i]) * load(x[i]);
    return 1 / real_sqrt(sum / (real)d + epsilon);
}

/* Adds dy z to dweight. */
static void head_backward(elem *dx, const elem *x, const elem *dy, const elem *weight,
                          real *dweight, size_t d, real epsilon, real shift)
{
    const real scale = scale_of(x, d, epsilon);
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < d; i++) {
        const real dz = load(dy[i]) * (load(x[i]) * scale);
        sum += dz * (load(weight[i]) + shift);
        dweight[i] += dz;
    }
    const real average = sum / (real)d;
#pragma omp simd
    for (size_t i = 0; i < d; i++)
        dx[i] =
            store(scale * (load(dy[i]) * (load(weight[i]) + shift) - load(x[i]) * scale * average));
}

static void token_backward(const struct head_norm_backward *n, size_t t, real *const dweight[2])
{
    const struct head_shape *s = &n->heads;
    const size_t d = s->head_dim;
    size_t at = t * qkv_columns(s);
    for (size_t g = 0; g < s->groups; g++) {
        for (size_t j = 0; j <= s->queries; j++, at += d) {
            const size_t k = j == s->queries; /* a key head */
            head_backward(n->dx + at, n->x + at, n->dy + at, n->weight[k], dweight[k], d,
                          n->epsilon, n->shift);
        }
        if (n->dx != n->dy) memcpy(n->dx + at, n->dy + at, d * sizeof *n->dx);
        at += d;
    }
}

static struct head_norm_backward backward_of(const union op_params *p, const struct operand *in,
                                             const struct operand *out)
{
    return (struct head_norm_backward){.x = in[0].data,
                                       .dy = in[3].data,
                                       .weight = {in[1].data, in[2].data},
                                       .dx = out[0].data,
                                       .heads = p->head_norm.heads,
                                       .epsilon = (real)p->head_norm.epsilon,
                                       .shift = (real)p->head_norm.shift};
}

/* Sums over heads and tokens: a block of tokens has one for queries, then one
 * for keys. */
enum status NAME(head_norm_backward)(const union op_params *p, const struct operand *in,
                                     const struct operand *out, void *workspace, struct error *err)
{
    (void)err;
    const struct head_norm_backward n = backward_of(p, in, out);
    const struct row_blocks b = row_blocks_of(in[0].shape[0]);
    const size_t d = n.heads.head_dim;
    const struct gradient q = gradient_of(&out[1], &in[4]), k = gradient_of(&out[2], &in[5]);
    real *partial = workspace; /* [blocks, 2, d] */
#pragma omp parallel for if (b.num_rows * in[0].shape[1] >= WORTH_THREADS)
    for (size_t i = 0; i < b.count; i++) {
        real *const dweight[] = {partial + 2 * i * d, partial + (2 * i + 1) * d};
        memset(dweight[0], 0, 2 * d * sizeof(real));
        for (size_t t = i * b.rows; t < row_block_end(&b, i); t++)
            token_backward(&n, t, dweight);
    }
    store_row_sums(&q, partial, b.count, 2 * d, d);
    store_row_sums(&k, partial + d, b.count, 2 * d, d);
    return OK;
}

size_t NAME(head_norm_backward_workspace)(const union op_params *p, const struct operand *in,
                                          const struct operand *out)
{
    (void)out;
    return row_blocks_of(in[0].shape[0]).count * 2 * p->head_norm.heads.head_dim * sizeof(real);
}
