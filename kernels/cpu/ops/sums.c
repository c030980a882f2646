/* sums.c - OP_COLUMN_SUM, OP_WEIGHTED_SUM and OP_SQUARE_SUM. */
#include "kernels/cpu/ops/row_sums.h"

static void add_to_column_sums(real *restrict to, const elem *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += load(x[i]);
}

static void sum_block(real *to, const elem *x, size_t rows, size_t columns)
{
    memset(to, 0, columns * sizeof *to);
    for (size_t t = 0; t < rows; t++)
        add_to_column_sums(to, x + t * columns, columns);
}

enum status NAME(column_sum)(const union op_params *p, const struct operand *in,
                             const struct operand *out, void *workspace, struct error *err)
{
    (void)p, (void)err;
    const elem *x = in[0].data;
    real *partial = workspace; /* [blocks, columns] */
    const size_t columns = in[0].shape[1];
    const struct row_blocks b = row_blocks_of(in[0].shape[0]);
    const struct gradient y = gradient_of(&out[0], &in[1]);
#pragma omp parallel for if (b.num_rows * columns >= WORTH_THREADS)
    for (size_t k = 0; k < b.count; k++)
        sum_block(partial + k * columns, x + k * b.rows * columns,
                  row_block_end(&b, k) - k * b.rows, columns);
    store_row_sums(&y, partial, b.count, columns, columns);
    return OK;
}

size_t NAME(column_sum_workspace)(const union op_params *p, const struct operand *in,
                                  const struct operand *out)
{
    (void)p, (void)out;
    return row_blocks_of(in[0].shape[0]).count * in[0].shape[1] * sizeof(real);
}

/* One number for each token: too few for threads. */
void NAME(weighted_sum)(const union op_params *p, const struct operand *in,
                        const struct operand *out)
{
    (void)p;
    const real *x = in[0].data, *weights = in[1].data, *y_sum = in[2].data;
    double sum = y_sum ? (double)*y_sum : 0;
    for (size_t t = 0; t < in[0].shape[0]; t++)
        sum += weights ? (double)x[t] * (double)weights[t] : (double)x[t];
    *(real *)out[0].data = (real)sum;
}

/* ---- squares ---- */

/* An array is cut into PARTS by its length alone, one thread each; parts are
 * cut into blocks that are summed in REAL. */
enum { PARTS = 256, BLOCK = 512 };

struct squares {
    double sum, not_finite, zeros;
};

#define SQUARES_OF(type, load)                                                                     \
    static void add_squares_of_##type(struct squares *to, const type *x, size_t n)                 \
    {                                                                                              \
        real sum = 0;                                                                              \
        int32_t finite = 0, zeros = 0;                                                             \
        _Pragma("omp simd reduction(+ : sum, finite, zeros)") for (size_t i = 0; i < n; i++)       \
        {                                                                                          \
            const real e = load(x[i]);                                                             \
            const bool is_finite = e - e == 0;                                                     \
            sum += is_finite ? e * e : 0;                                                          \
            finite += is_finite;                                                                   \
            zeros += e == 0;                                                                       \
        }                                                                                          \
        to->sum += (double)sum;                                                                    \
        to->not_finite += (double)n - finite;                                                      \
        to->zeros += zeros;                                                                        \
    }
SQUARES_OF(elem, load)
SQUARES_OF(real, )

static struct squares squares_of(const struct operand *x, size_t first, size_t end)
{
    struct squares s = {0};
    for (size_t i = first; i < end; i += BLOCK) {
        const size_t n = min_size(end - i, BLOCK);
        if (x->type == OPERAND_REAL)
            add_squares_of_real(&s, (const real *)x->data + i, n);
        else
            add_squares_of_elem(&s, (const elem *)x->data + i, n);
    }
    return s;
}

void NAME(square_sum)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    (void)p;
    const real *before = in[1].data;
    real *sums = out[0].data;
    const size_t n = in[0].shape[0], each = (n / BLOCK / PARTS + 1) * BLOCK;
    struct squares parts[PARTS], all = {0};
#pragma omp parallel for if (n >= WORTH_THREADS)
    for (size_t k = 0; k < PARTS; k++)
        parts[k] = squares_of(&in[0], k * each, min_size((k + 1) * each, n));
    for (size_t k = 0; k < PARTS; k++) {
        all.sum += parts[k].sum;
        all.not_finite += parts[k].not_finite;
        all.zeros += parts[k].zeros;
    }
    sums[0] = (real)((before ? (double)before[0] : 0) + all.sum);
    sums[1] = (real)((before ? (double)before[1] : 0) + all.not_finite);
    sums[2] = (real)((before ? (double)before[2] : 0) + all.zeros);
}
