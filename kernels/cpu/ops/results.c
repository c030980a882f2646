/* results.c - OP_JOIN_COLUMNS and OP_NOT_FINITE: last ops on results before the
 * host reads them. */
#include <assert.h>
#include <string.h>

#include "kernels/cpu/ops/ops_internal.h"

static void join_row(real *to, size_t columns, const real *x, size_t n, size_t each)
{
    for (size_t at = 0; at < columns; at += each, x += n * each)
        memcpy(to + at, x, min_size(each, columns - at) * sizeof *to);
}

void NAME(join_columns)(const union op_params *p, const struct operand *in,
                        const struct operand *out)
{
    (void)p;
    const real *x = in[0].data;
    real *y = out[0].data;
    const size_t n = out[0].shape[0], columns = out[0].shape[1], each = in[0].shape[1];
    assert(in[0].shape[0] % n == 0 && columns <= in[0].shape[0] / n * each);
#pragma omp parallel for if (n * columns >= WORTH_THREADS)
    for (size_t i = 0; i < n; i++)
        join_row(y + i * columns, columns, x + i * each, n, each);
}

#define ARE_FINITE(type, load)                                                                     \
    static bool are_finite_##type(const type *x, size_t n)                                         \
    {                                                                                              \
        int32_t bad = 0;                                                                           \
        _Pragma("omp simd reduction(+ : bad)") for (size_t i = 0; i < n; i++)                      \
        {                                                                                          \
            const real e = load(x[i]);                                                             \
            bad += e - e != 0;                                                                     \
        }                                                                                          \
        return bad == 0;                                                                           \
    }
ARE_FINITE(elem, load)
ARE_FINITE(real, )

enum { BLOCK = 1 << 14 };

void NAME(not_finite)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    (void)p;
    const int32_t *before = in[1].data;
    const size_t n = operand_numel(&in[0]);
    int bad = before && *before;
#pragma omp parallel for reduction(| : bad) if (n > BLOCK)
    for (size_t i = 0; i < n; i += BLOCK)
        bad |= in[0].type == OPERAND_REAL
                   ? !are_finite_real((const real *)in[0].data + i, min_size(n - i, BLOCK))
                   : !are_finite_elem((const elem *)in[0].data + i, min_size(n - i, BLOCK));
    *(int32_t *)out[0].data = bad;
}
