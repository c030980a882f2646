/* column_sum.cu - OP_COLUMN_SUM: the gradient of a bias. */
#include "kernels/cuda/columns.h"

enum { MOST_PARTS = 64 };

template <typename E, typename G> static enum status sum_rows(OP_ARGUMENTS)
{
    typedef real_of<E> real;
    const E *x = data_of<E>(in[0]);
    const G *y_sum = data_of<G>(in[1]);
    G *y = data_of<G>(out[0]);
    real *sums = static_cast<real *>(workspace);
    const size_t rows = in[0].shape[0], h = in[0].shape[1], parts = parts_of(rows, MOST_PARTS);
    (void)p;
    if (parts == 1) return launch_columns("column_sum", x, y_sum, y, rows, h, 1, err);
    TRY((launch_columns<E, real>("column_sum", x, NULL, sums, rows, h, parts, err)));
    return launch_columns<real, G>("column_sum", sums, y_sum, y, parts, h, 1, err);
}

template <typename E> enum status op_column_sum(OP_ARGUMENTS)
{
    return BY_TYPE(sum_rows, E, out[0])(p, in, out, workspace, err);
}

template <typename E> size_t op_column_sum_workspace(WORKSPACE_ARGUMENTS)
{
    const size_t parts = parts_of(in[0].shape[0], MOST_PARTS);
    (void)p, (void)out;
    return parts == 1 ? 0 : parts * in[0].shape[1] * sizeof(real_of<E>);
}

FOR_ALL_TYPES(op_column_sum)
WORKSPACE_FOR_ALL_TYPES(op_column_sum_workspace)
