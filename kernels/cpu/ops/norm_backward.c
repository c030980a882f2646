/* norm_backward.c - OP_NORM_BACKWARD: of OP_NORM and OP_ADD_NORM.
 *
 * With z = (x - mean) scale and g = dy (weight + shift):
 *   dx = scale (g - average(g) - z average(g z)) + other; RMS has no average(g)
 *   dweight = sum over tokens of dy z; dbias = sum over tokens of dy */
#include "kernels/cpu/ops/row_sums.h"

struct norm_backward {
    const elem *x, *weight, *dy, *other; /* [T, h], [h], [T, h], [T, h] or NULL */
    const real *stats;                   /* [T, 2] */
    elem *dx;                            /* [T, h]; may be dy */
    size_t h;
    real shift;
    bool layer_norm;
};

/* The two averages of a row. */
struct averages {
    real g, gz;
};

/* Adds dy z of row t to dweight, too. */
static struct averages take_averages(const struct norm_backward *n, size_t t, real *dweight)
{
    const elem *x = n->x + t * n->h, *dy = n->dy + t * n->h, *weight = n->weight;
    const real mean = n->stats[2 * t], scale = n->stats[2 * t + 1], shift = n->shift;
    const size_t h = n->h;
    real sum_g = 0, sum_gz = 0;
#pragma omp simd reduction(+ : sum_g, sum_gz)
    for (size_t i = 0; i < h; i++) {
        const real d = load(dy[i]), dz = d * ((load(x[i]) - mean) * scale);
        const real w = load(weight[i]) + shift;
        sum_g += d * w;
        sum_gz += dz * w;
        dweight[i] += dz;
    }
    return (struct averages){n->layer_norm ? sum_g / (real)h : 0, sum_gz / (real)h};
}

static void add_elems(real *dbias, const elem *dy, size_t h)
{
#pragma omp simd
    for (size_t i = 0; i < h; i++)
        dbias[i] += load(dy[i]);
}

static void store_dx(const struct norm_backward *n, size_t t, struct averages a)
{
    const elem *x = n->x + t * n->h, *dy = n->dy + t * n->h, *weight = n->weight;
    const elem *other = n->other ? n->other + t * n->h : NULL;
    const real mean = n->stats[2 * t], scale = n->stats[2 * t + 1], shift = n->shift;
    elem *dx = n->dx + t * n->h;
    const size_t h = n->h;
    if (other)
#pragma omp simd
        for (size_t i = 0; i < h; i++) {
            const real z = (load(x[i]) - mean) * scale, g = load(dy[i]) * (load(weight[i]) + shift);
            dx[i] = store(scale * (g - a.g - z * a.gz) + load(other[i]));
        }
    else
#pragma omp simd
        for (size_t i = 0; i < h; i++) {
            const real z = (load(x[i]) - mean) * scale, g = load(dy[i]) * (load(weight[i]) + shift);
            dx[i] = store(scale * (g - a.g - z * a.gz));
        }
}

/* Rows [first, end). dweight and dbias (if wanted) get the sums over them. */
static void block_backward(const struct norm_backward *n, size_t first, size_t end, real *dweight,
                           real *dbias)
{
    memset(dweight, 0, n->h * sizeof *dweight);
    if (dbias) memset(dbias, 0, n->h * sizeof *dbias);
    for (size_t t = first; t < end; t++) {
        const struct averages a = take_averages(n, t, dweight);
        if (dbias) add_elems(dbias, n->dy + t * n->h, n->h);
        store_dx(n, t, a);
    }
}

enum status NAME(norm_backward)(const union op_params *p, const struct operand *in,
                                const struct operand *out, void *workspace, struct error *err)
{
    (void)err;
    const struct norm_backward n = {.x = in[0].data,
                                    .weight = in[1].data,
                                    .stats = in[2].data,
                                    .dy = in[3].data,
                                    .other = in[4].data,
                                    .dx = out[0].data,
                                    .h = in[0].shape[1],
                                    .shift = (real)p->norm.shift,
                                    .layer_norm = p->norm.layer_norm};
    const struct row_blocks b = row_blocks_of(in[0].shape[0]);
    const struct gradient weight = gradient_of(&out[1], &in[5]),
                          bias = gradient_of(&out[2], &in[6]);
    real *dweight = workspace, *dbias = bias.to ? dweight + b.count * n.h : NULL; /* [blocks, h] */
#pragma omp parallel for if (b.num_rows * n.h >= WORTH_THREADS)
    for (size_t k = 0; k < b.count; k++)
        block_backward(&n, k * b.rows, row_block_end(&b, k), dweight + k * n.h,
                       dbias ? dbias + k * n.h : NULL);
    store_row_sums(&weight, dweight, b.count, n.h, n.h);
    if (dbias) store_row_sums(&bias, dbias, b.count, n.h, n.h);
    return OK;
}

size_t NAME(norm_backward_workspace)(const union op_params *p, const struct operand *in,
                                     const struct operand *out)
{
    (void)p;
    const size_t sums = out[2].num_dims ? 2 : 1;
    return sums * row_blocks_of(in[0].shape[0]).count * in[0].shape[1] * sizeof(real);
}
