/* cast_op.c - OP_CAST: casts between ELEM and REAL. */
#include "kernels/cpu/ops/ops_internal.h"

/* Elements a thread takes at once. */
enum { CHUNK = 1 << 14 };

static void cast_elements(const struct operand *y, const struct operand *x, size_t at, size_t n)
{
    const bool from_real = x->type == OPERAND_REAL, to_real = y->type == OPERAND_REAL;
    if (from_real && to_real)
        memcpy((real *)y->data + at, (const real *)x->data + at, n * sizeof(real));
    else if (from_real)
        store_elems((elem *)y->data + at, (const real *)x->data + at, n);
    else if (to_real)
        load_elems((real *)y->data + at, (const elem *)x->data + at, n);
    else
        memcpy((elem *)y->data + at, (const elem *)x->data + at, n * sizeof(elem));
}

void NAME(cast)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    (void)p;
    const size_t n = in[0].shape[0];
#pragma omp parallel for if (n > CHUNK)
    for (size_t i = 0; i < n; i += CHUNK)
        cast_elements(&out[0], &in[0], i, min_size(n - i, CHUNK));
}
