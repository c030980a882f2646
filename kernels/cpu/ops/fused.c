/* fused.c - OP_NORM_MATMUL and OP_ACTIVATION_MATMUL: runs the two ops one after
 * the other, through the workspace. */
#include "kernels/cpu/ops/ops_internal.h"

/* Bytes of the first op's result, at the start of the workspace. */
static size_t rows_bytes(size_t rows, size_t columns)
{
    const size_t unit = 256;
    return (rows * columns * sizeof(elem) + unit - 1) / unit * unit;
}

static struct operand rows_of(void *data, size_t rows, size_t columns)
{
    return (struct operand){
        .data = data, .type = OPERAND_ELEM, .num_dims = 2, .shape = {rows, columns}};
}

static const union op_params product = {.matmul = {.transpose_b = true, .alpha = 1}};

/* w: the product's weight, followed by its bias. */
static enum status multiply_rows(const struct operand *a, const struct operand *w,
                                 const struct operand *y, void *workspace, struct error *err)
{
    const struct operand in[4] = {*a, w[0], w[1]};
    char *const rest = (char *)workspace + rows_bytes(a->shape[0], a->shape[1]);
    return NAME(matmul)(&product, in, y, rest, err);
}

static size_t workspace_of(const struct operand *a, const struct operand *w,
                           const struct operand *y)
{
    const struct operand in[4] = {*a, w[0], w[1]};
    return rows_bytes(a->shape[0], a->shape[1]) + NAME(matmul_workspace)(&product, in, y);
}

enum status NAME(norm_matmul)(const union op_params *p, const struct operand *in,
                              const struct operand *out, void *workspace, struct error *err)
{
    const struct operand a = rows_of(workspace, in[0].shape[0], in[0].shape[1]);
    if (in[1].data) {
        const struct operand both[3] = {out[1], a};
        NAME(add_norm)(p, in, both);
    } else {
        const struct operand x[3] = {in[0], in[3], in[4]}, y[2] = {a};
        NAME(norm)(p, x, y);
    }
    return multiply_rows(&a, in + 5, out, workspace, err);
}

size_t NAME(norm_matmul_workspace)(const union op_params *p, const struct operand *in,
                                   const struct operand *out)
{
    (void)p;
    const struct operand a = rows_of(NULL, in[0].shape[0], in[0].shape[1]);
    return workspace_of(&a, in + 5, out);
}

enum status NAME(activation_matmul)(const union op_params *p, const struct operand *in,
                                    const struct operand *out, void *workspace, struct error *err)
{
    const struct operand a = rows_of(workspace, in[0].shape[0], in[1].shape[1]);
    const struct operand x[2] = {in[0]};
    NAME(activation)(p, x, &a);
    return multiply_rows(&a, in + 1, out, workspace, err);
}

size_t NAME(activation_matmul_workspace)(const union op_params *p, const struct operand *in,
                                         const struct operand *out)
{
    (void)p;
    const struct operand a = rows_of(NULL, in[0].shape[0], in[1].shape[1]);
    return workspace_of(&a, in + 1, out);
}
