/* dropout.cu - OP_DROPOUT: a block a row. */
#include "kernels/cuda/cuda.h"
#include "kernels/op_dropout.h"

template <typename E> struct dropout_args {
    const E *x, *bias; /* bias may be NULL */
    const int32_t *tokens;
    E *y;
    size_t h;
    uint64_t first_column;
    struct dropout dropout;
    real_of<E> scale; /* of kept elements */
};

template <typename E, int N> __global__ void drop_rows(const dropout_args<E> a)
{
    const size_t row = blockIdx.x * a.h;
    const uint64_t begin = dropout_token(&a.dropout, a.tokens + 2 * (size_t)blockIdx.x);
    const uint32_t limit = dropout_limit(&a.dropout);
    real_of<E> x[N], bias[N] = {};
    for (size_t i = threadIdx.x * N; i < a.h; i += blockDim.x * N) {
        load_reals<E, N>(x, a.x + row + i);
        if (a.bias) load_reals<E, N>(bias, a.bias + i);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const bool keeps = dropout_keeps(begin, a.first_column + i + j, limit);
            x[j] = keeps ? (x[j] + bias[j]) * a.scale : 0;
        }
        store_reals<E, N>(a.y + row + i, x);
    }
}

template <typename E> enum status op_dropout(OP_ARGUMENTS)
{
    struct dropout_args<E> a = {
    };
    (void)workspace;
    a.x = data_of<E>(in[0]);
    a.bias = data_of<E>(in[1]);
    a.tokens = data_of<int32_t>(in[2]);
    a.y = data_of<E>(out[0]);
    a.h = in[0].shape[1];
    a.first_column = p->dropout.first_column;
    a.dropout = p->dropout.dropout;
    a.scale = (real_of<E>)(1 / (1 - a.dropout.probability));
    const bool wide = fits_width<E>(a.h, {a.x, a.bias, a.y});
    return launch("dropout", err, BY_WIDTH(drop_rows, E, wide), dim3((unsigned)in[0].shape[0]),
                  row_threads<E>(a.h, wide), 0, a);
}

FOR_ALL_TYPES(op_dropout)
