/* embedding.c - OP_EMBEDDING and OP_POSITIONS: rows of a table. */
#include <assert.h>

#include "kernels/cpu/ops/ops_internal.h"

static void scale_row(elem *x, const elem *row, size_t h, real scale)
{
    for (size_t i = 0; i < h; i++)
        x[i] = store(load(row[i]) * scale);
}

void NAME(embedding)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    const int32_t *ids = in[0].data;
    const elem *table = in[1].data;
    elem *x = out[0].data;
    const size_t num_tokens = out[0].shape[0], h = out[0].shape[1], num_rows = in[1].shape[0];
    const real scale = (real)p->embedding.scale;
#pragma omp parallel for if (num_tokens * h >= WORTH_THREADS)
    for (size_t t = 0; t < num_tokens; t++) {
        uint64_t row = (uint64_t)(int64_t)ids[t] - p->embedding.first_row; /* wraps: no such row */
        if (row < num_rows)
            scale_row(x + t * h, table + row * h, h, scale);
        else
            memset(x + t * h, 0, h * sizeof *x);
    }
}

void NAME(positions)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    (void)p;
    const elem *x = in[0].data, *table = in[1].data;
    const int32_t *positions = in[2].data;
    elem *y = out[0].data;
    const size_t num_tokens = in[0].shape[0], h = in[0].shape[1], num_rows = in[1].shape[0];
#pragma omp parallel for if (num_tokens * h >= WORTH_THREADS)
    for (size_t t = 0; t < num_tokens; t++) {
        assert(positions[t] >= 0 && (size_t)positions[t] < num_rows);
        const elem *row = table + (size_t)positions[t] * h;
        for (size_t i = 0; i < h; i++)
            y[t * h + i] = store(load(x[t * h + i]) + load(row[i]));
    }
}
