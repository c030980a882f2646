/* Last ops on results before the host reads them. */
#include "kernels/cuda/cuda.h"

enum { THREADS = 256 };

/* x: members of n rows of `each` columns. A block has some columns of a row. */
template <typename R> __global__ void join(R *y, const R *x, size_t n, size_t columns, size_t each)
{
    const size_t row = blockIdx.x, column = (size_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    y[row * columns + column] = x[(column / each * n + row) * each + column % each];
}

template <typename E> enum status op_join_columns(OP_ARGUMENTS)
{
    typedef real_of<E> real;
    const size_t n = out[0].shape[0], columns = out[0].shape[1];
    (void)p, (void)workspace;
    return launch("join_columns", err, join<real>, dim3((unsigned)n, blocks_for(columns, THREADS)),
                  THREADS, 0, data_of<real>(out[0]), data_of<real>(in[0]), n, columns,
                  (size_t)in[0].shape[1]);
}

/* Any thread that finds one writes the same 1. */
template <typename T, int N> __global__ void find_not_finite(const T *x, size_t n, int32_t *bad)
{
    typedef real_of<T> real;
    bool found = false;
    for (size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < n;
         i += (size_t)gridDim.x * blockDim.x * N) {
        real v[N];
        load_reals<T, N>(v, x + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            found |= v[j] - v[j] != 0;
    }
    if (found) *bad = 1;
}

template <typename T>
static enum status launch_not_finite(const struct operand &x, int32_t *bad, struct error *err)
{
    const T *data = data_of<T>(x);
    const size_t n = operand_numel(&x);
    const bool wide = fits_width<T>(n, {data});
    const unsigned most = 8 * (unsigned)cuda_multiprocessors;
    const unsigned blocks = blocks_for(n, THREADS * (wide ? WIDTH<T> : 1));
    return launch("not_finite", err, BY_WIDTH(find_not_finite, T, wide),
                  dim3(blocks < most ? blocks : most), THREADS, 0, data, n, bad);
}

template <typename E> enum status op_not_finite(OP_ARGUMENTS)
{
    int32_t *const bad = data_of<int32_t>(out[0]);
    (void)p, (void)workspace;
    if (!in[1].data)
        TRY(cuda_status("not_finite", cudaMemsetAsync(bad, 0, sizeof *bad, cuda_stream), err));
    else if (in[1].data != bad)
        TRY(cuda_status(
            "not_finite",
            cudaMemcpyAsync(bad, in[1].data, sizeof *bad, cudaMemcpyDeviceToDevice, cuda_stream),
            err));
    return in[0].type == OPERAND_REAL ? launch_not_finite<real_of<E>>(in[0], bad, err)
                                      : launch_not_finite<E>(in[0], bad, err);
}

FOR_ALL_TYPES(op_join_columns)
FOR_ALL_TYPES(op_not_finite)
