/* dropout.c - OP_DROPOUT; kernels/op_dropout.h says what is kept. */
#include "kernels/cpu/ops/ops_internal.h"
#include "kernels/op_dropout.h"

struct dropout_row {
    uint64_t begin, first_column; /* begin of the token's numbers; this rank's first column */
    uint32_t limit;
    real scale; /* of kept elements */
};

/* y may be x. */
static void drop_row(const struct dropout_row *d, elem *y, const elem *x, const elem *bias,
                     size_t h)
{
    const uint64_t begin = d->begin, first = d->first_column;
    const uint32_t limit = d->limit;
    const real scale = d->scale;
    if (bias)
#pragma omp simd
        for (size_t i = 0; i < h; i++)
            y[i] = store((load(x[i]) + load(bias[i])) *
                         (dropout_keeps(begin, first + i, limit) ? scale : 0));
    else
#pragma omp simd
        for (size_t i = 0; i < h; i++)
            y[i] = store(load(x[i]) * (dropout_keeps(begin, first + i, limit) ? scale : 0));
}

void NAME(dropout)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    const struct dropout *d = &p->dropout.dropout;
    const elem *x = in[0].data, *bias = in[1].data;
    const int32_t *tokens = in[2].data; /* [T, 2] */
    elem *y = out[0].data;
    const size_t num_tokens = in[0].shape[0], h = in[0].shape[1];
    const real scale = (real)(1 / (1 - d->probability));
#pragma omp parallel for if (num_tokens * h >= WORTH_THREADS)
    for (size_t t = 0; t < num_tokens; t++) {
        const struct dropout_row row = {dropout_token(d, tokens + 2 * t), p->dropout.first_column,
                                        dropout_limit(d), scale};
        drop_row(&row, y + t * h, x + t * h, bias, h);
    }
}
