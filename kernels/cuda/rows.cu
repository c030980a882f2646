/* Rows picked from a table; a block for each row. */
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
    wait_for_kernel_before();
    let_kernel_behind_start();
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
    return launch_early("embedding", err, BY_WIDTH(embed, E, wide), dim3((unsigned)out[0].shape[0]),
                        row_threads<E>(h, wide), 0, data_of<int32_t>(in[0]), table,
                        p->embedding.first_row, in[1].shape[0], x, h, p->embedding.scale);
}

/* Starts dtable as dtable_sum, or 0, for rows that no token adds to. */
template <typename E, typename G>
static enum status start_table(const struct operand &sum, const struct operand &table,
                               struct error *err)
{
    const size_t bytes = table.shape[0] * table.shape[1] * sizeof(G);
    if (sum.data == table.data) return OK;
    return cuda_status("embedding_backward",
                       sum.data ? cudaMemcpyAsync(table.data, sum.data, bytes,
                                                  cudaMemcpyDeviceToDevice, cuda_stream)
                                : cudaMemsetAsync(table.data, 0, bytes, cuda_stream),
                       err);
}

enum { SCATTER_THREADS = 128 };

template <typename E, typename G> struct scatter_args {
    const E *dx;
    const int32_t *ids, *order;
    G *table; /* [num_rows, h]: from first_row on */
    size_t num_tokens, num_rows, h;
    uint64_t first_row;
    real_of<E> scale;
};

/* A block for each place of `order` and, in y, some columns. The block of the
 * first of a run of equal ids sums the run, in its order. */
template <typename E, typename G, int N> __global__ void scatter_runs(const scatter_args<E, G> a)
{
    const size_t first = blockIdx.x, at = ((size_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
    const int32_t id = a.ids[a.order[first]];
    const uint64_t row = (uint64_t)(int64_t)id - a.first_row; /* wraps: no such row */
    if (row >= a.num_rows || at >= a.h) return;
    if (first > 0 && a.ids[a.order[first - 1]] == id) return;
    real_of<E> sum[N] = {}, v[N];
    for (size_t i = first; i < a.num_tokens && a.ids[a.order[i]] == id; i++) {
        load_reals<E, N>(v, a.dx + (size_t)a.order[i] * a.h + at);
#pragma unroll
        for (int j = 0; j < N; j++)
            sum[j] += v[j];
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        G *const to = a.table + row * a.h + at + j;
        *to = from_real<G>(to_real(*to) + a.scale * sum[j]);
    }
}

template <typename E, typename G> static enum status scatter(OP_ARGUMENTS)
{
    struct scatter_args<E, G> a = {
    };
    (void)workspace;
    a.dx = data_of<E>(in[0]);
    a.ids = data_of<int32_t>(in[1]);
    a.order = data_of<int32_t>(in[2]);
    a.table = data_of<G>(out[0]);
    a.num_tokens = in[0].shape[0];
    a.h = in[0].shape[1];
    a.num_rows = out[0].shape[0];
    a.first_row = p->embedding.first_row;
    a.scale = (real_of<E>)p->embedding.scale;
    TRY((start_table<E, G>(in[3], out[0], err)));
    const bool wide = fits_width<E>(a.h, {a.dx});
    const size_t columns = (size_t)SCATTER_THREADS * (wide ? WIDTH<E> : 1);
    return launch("embedding_backward", err,
                  wide ? scatter_runs<E, G, WIDTH<E>> : scatter_runs<E, G, 1>,
                  dim3((unsigned)a.num_tokens, blocks_for(a.h, columns)), SCATTER_THREADS, 0, a);
}

template <typename E> enum status op_embedding_backward(OP_ARGUMENTS)
{
    return BY_TYPE(scatter, E, out[0])(p, in, out, workspace, err);
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
    wait_for_kernel_before();
    let_kernel_behind_start();
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
    return launch_early("gather_rows", err, BY_WIDTH(gather, E, wide),
                        dim3((unsigned)out[0].shape[0]), row_threads<E>(h, wide), 0, x,
                        data_of<int32_t>(in[1]), y, h);
}

/* A block for each slot. */
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

template <typename E> struct unpermute_backward_args {
    const E *dx, *y; /* y: present with dweights */
    const int32_t *rows;
    const real_of<E> *weights; /* may be NULL */
    E *dy;
    real_of<E> *dweights; /* may be NULL */
    size_t k, h;
};

/* A block for each slot. */
template <typename E, int N>
__global__ void unpermute_backward_rows(const unpermute_backward_args<E> a)
{
    const int32_t row = a.rows[blockIdx.x];
    const E *dx = a.dx + blockIdx.x / a.k * a.h;
    real_of<E> v[N], y[N], dot = 0;
    if (row >= 0) {
        const real_of<E> weight = a.weights ? a.weights[blockIdx.x] : 1;
        for (size_t i = threadIdx.x * N; i < a.h; i += blockDim.x * N) {
            load_reals<E, N>(v, dx + i);
            if (a.dweights) {
                load_reals<E, N>(y, a.y + (size_t)row * a.h + i);
#pragma unroll
                for (int j = 0; j < N; j++)
                    dot += v[j] * y[j];
            }
#pragma unroll
            for (int j = 0; j < N; j++)
                v[j] *= weight;
            store_reals<E, N>(a.dy + (size_t)row * a.h + i, v);
        }
    }
    if (!a.dweights) return;
    dot = block_sum(dot);
    if (threadIdx.x == 0) a.dweights[blockIdx.x] = dot;
}

template <typename E> enum status op_unpermute_backward(OP_ARGUMENTS)
{
    unpermute_backward_args<E> a = {};
    (void)p, (void)workspace;
    a.dx = data_of<E>(in[0]);
    a.rows = data_of<int32_t>(in[1]);
    a.weights = data_of<real_of<E>>(in[2]);
    a.y = data_of<E>(in[3]);
    a.dy = data_of<E>(out[0]);
    a.dweights = data_of<real_of<E>>(out[1]);
    a.k = in[1].shape[1];
    a.h = in[0].shape[1];
    if (a.dweights && !a.y)
        return fail(err, ERR_OURS,
                    "unpermute_backward: output dweights needs input y, which is absent");
    const bool wide = fits_width<E>(a.h, {a.dx, a.y, a.dy});
    return launch("unpermute_backward", err, BY_WIDTH(unpermute_backward_rows, E, wide),
                  dim3((unsigned)(in[1].shape[0] * a.k)), row_threads<E>(a.h, wide), 0, a);
}

FOR_ALL_TYPES(op_embedding)
FOR_ALL_TYPES(op_embedding_backward)
FOR_ALL_TYPES(op_positions)
FOR_ALL_TYPES(op_gather_rows)
FOR_ALL_TYPES(op_permute)
FOR_ALL_TYPES(op_unpermute)
FOR_ALL_TYPES(op_unpermute_backward)
