/* Rows picked from a table; a block a row. */
#include "kernels/cuda/cuda.h"

template <typename E, int N> __device__ inline void copy_row(E *to, const E *from, size_t columns)
{
    for (size_t i = threadIdx.x * N; i < columns; i += blockDim.x * N)
        copy_pack<E, N>(to + i, from + i);
}

template <typename E, int N> __device__ inline void clear_row(E *to, size_t columns)
{
    const real_of<E> zeros[N] = {};
    for (size_t i = threadIdx.x * N; i < columns; i += blockDim.x * N)
        store_reals<E, N>(to + i, zeros);
}

template <typename E, int N>
__global__ void embed(const int32_t *ids, const E *table, uint64_t first_row, size_t num_rows, E *x,
                      size_t h, real_of<E> scale)
{
    const uint64_t row = (uint64_t)(int64_t)ids[blockIdx.x] - first_row; /* wraps: no such row */
    real_of<E> v[N];
    E *to = x + blockIdx.x * h;
    if (row >= num_rows) {
        clear_row<E, N>(to, h);
        return;
    }
    for (size_t i = threadIdx.x * N; i < h; i += blockDim.x * N) {
        load_reals<E, N>(v, table + row * h + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            v[j] *= scale;
        store_reals<E, N>(to + i, v);
    }
}

template <typename E> enum status op_embedding(OP_ARGUMENTS)
{
    (void)workspace;
    const E *table = data_of<E>(in[1]);
    E *x = data_of<E>(out[0]);
    const size_t h = out[0].shape[1];
    const bool wide = fits_width<E>(h, {table, x});
    return launch("embedding", err, BY_WIDTH(embed, E, wide), dim3((unsigned)out[0].shape[0]),
                  row_threads<E>(h, wide), 0, data_of<int32_t>(in[0]), table,
                  p->embedding.first_row, in[1].shape[0], x, h, p->embedding.scale);
}

template <typename E, int N>
__global__ void add_positions(const E *x, const E *table, const int32_t *positions, E *y, size_t h)
{
    const size_t row = blockIdx.x * h, from = (size_t)positions[blockIdx.x] * h;
    real_of<E> v[N], position[N];
    for (size_t i = threadIdx.x * N; i < h; i += blockDim.x * N) {
        load_reals<E, N>(v, x + row + i);
        load_reals<E, N>(position, table + from + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            v[j] += position[j];
        store_reals<E, N>(y + row + i, v);
    }
}

template <typename E> enum status op_positions(OP_ARGUMENTS)
{
    (void)p, (void)workspace;
    const E *x = data_of<E>(in[0]), *table = data_of<E>(in[1]);
    E *y = data_of<E>(out[0]);
    const size_t h = in[0].shape[1];
    const bool wide = fits_width<E>(h, {x, table, y});
    return launch("positions", err, BY_WIDTH(add_positions, E, wide),
                  dim3((unsigned)in[0].shape[0]), row_threads<E>(h, wide), 0, x, table,
                  data_of<int32_t>(in[2]), y, h);
}

template <typename E, int N> __global__ void gather(const E *x, const int32_t *rows, E *y, size_t h)
{
    const int32_t row = rows[blockIdx.x];
    if (row < 0)
        clear_row<E, N>(y + blockIdx.x * h, h);
    else
        copy_row<E, N>(y + blockIdx.x * h, x + (size_t)row * h, h);
}

template <typename E> enum status op_gather_rows(OP_ARGUMENTS)
{
    (void)p, (void)workspace;
    const E *x = data_of<E>(in[0]);
    E *y = data_of<E>(out[0]);
    const size_t h = out[0].shape[1];
    const bool wide = fits_width<E>(h, {x, y});
    return launch("gather_rows", err, BY_WIDTH(gather, E, wide), dim3((unsigned)out[0].shape[0]),
                  row_threads<E>(h, wide), 0, x, data_of<int32_t>(in[1]), y, h);
}

/* A block a slot. */
template <typename E, int N>
__global__ void permute_rows(const E *x, const int32_t *rows, size_t k, E *y, size_t h)
{
    const int32_t row = rows[blockIdx.x];
    if (row >= 0) copy_row<E, N>(y + (size_t)row * h, x + blockIdx.x / k * h, h);
}

template <typename E> enum status op_permute(OP_ARGUMENTS)
{
    (void)p, (void)workspace;
    const E *x = data_of<E>(in[0]);
    E *y = data_of<E>(out[0]);
    const size_t h = in[0].shape[1], k = in[1].shape[1];
    const bool wide = fits_width<E>(h, {x, y});
    return launch("permute", err, BY_WIDTH(permute_rows, E, wide),
                  dim3((unsigned)(in[1].shape[0] * k)), row_threads<E>(h, wide), 0, x,
                  data_of<int32_t>(in[1]), k, y, h);
}

template <typename E, int N>
__global__ void unpermute_rows(const E *y, const int32_t *rows, const real_of<E> *weights, size_t k,
                               E *x, size_t h)
{
    const size_t slot = blockIdx.x * k;
    for (size_t i = threadIdx.x * N; i < h; i += blockDim.x * N) {
        real_of<E> sum[N] = {}, v[N];
        for (size_t j = 0; j < k; j++) {
            const int32_t row = rows[slot + j];
            if (row < 0) continue;
            const real_of<E> weight = weights ? weights[slot + j] : 1;
            load_reals<E, N>(v, y + (size_t)row * h + i);
#pragma unroll
            for (int n = 0; n < N; n++)
                sum[n] += weight * v[n];
        }
        store_reals<E, N>(x + blockIdx.x * h + i, sum);
    }
}

template <typename E> enum status op_unpermute(OP_ARGUMENTS)
{
    (void)p, (void)workspace;
    const E *y = data_of<E>(in[0]);
    E *x = data_of<E>(out[0]);
    const size_t h = out[0].shape[1], k = in[1].shape[1];
    const bool wide = fits_width<E>(h, {x, y});
    return launch("unpermute", err, BY_WIDTH(unpermute_rows, E, wide),
                  dim3((unsigned)out[0].shape[0]), row_threads<E>(h, wide), 0, y,
                  data_of<int32_t>(in[1]), data_of<real_of<E>>(in[2]), k, x, h);
}

FOR_ALL_TYPES(op_embedding)
FOR_ALL_TYPES(op_positions)
FOR_ALL_TYPES(op_gather_rows)
FOR_ALL_TYPES(op_permute)
FOR_ALL_TYPES(op_unpermute)
