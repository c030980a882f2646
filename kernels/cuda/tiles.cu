/* Products of any type, layout and size: a block makes a tile of c from slices
 * of a and b in shared memory, each thread 4 x 4 elements. About ten times
 * slower than cuBLASLt. Slices of a coded b are decoded. */
#include "kernels/cuda/coded.h"
#include "kernels/cuda/products.h"

enum { TILE = 64, DEPTH = 16, THREADS = 256 };

/* A factor, multiplied along `depth`: element (i, d) lies at i * step + d
 * * depth_step. */
template <typename E> struct factor {
    const E *data;
    size_t size, step, depth_step;

    __device__ inline bool depth_is_last() const
    {
        return depth_step == 1;
    }

    __device__ inline real_of<E> element(size_t i, size_t d) const
    {
        return to_real(data[i * step + d * depth_step]);
    }
};

/* B: factor<E>, or coded_rows<E>. */
template <typename E, typename C, typename B> struct tiles_args {
    struct factor<E> a;
    B b;
    const E *bias;
    C *c;
    size_t k;
    real_of<E> alpha;
    bool accumulate;
};

/* Elements [first, first + TILE) x [at, at + DEPTH), zeros if missing.
 * Neighbouring threads read neighbouring elements. */
template <typename R, typename F>
__device__ inline void load_slice(R (*to)[TILE + 1], const F &f, size_t first, size_t at, size_t k)
{
    for (unsigned i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
        const unsigned row = f.depth_is_last() ? i / DEPTH : i % TILE;
        const unsigned d = f.depth_is_last() ? i % DEPTH : i / TILE;
        const bool is_there = first + row < f.size && at + d < k;
        to[d][row] = is_there ? f.element(first + row, at + d) : 0;
    }
}

template <typename E, typename C, typename B>
__device__ inline void store_element(const tiles_args<E, C, B> &x, size_t row, size_t column,
                                     real_of<E> sum)
{
    if (row >= x.a.size || column >= x.b.size) return;
    C *const to = x.c + row * x.b.size + column;
    sum *= x.alpha;
    if (x.bias) sum += to_real(x.bias[column]);
    if (x.accumulate) sum += to_real(*to);
    *to = from_real<C>(sum);
}

template <typename E, typename C, typename B>
__global__ void __launch_bounds__(THREADS) multiply_in_tiles(const tiles_args<E, C, B> x)
{
    __shared__ real_of<E> a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
    const size_t tiles_across = (x.b.size + TILE - 1) / TILE;
    const size_t first_row = blockIdx.x / tiles_across * TILE;
    const size_t first_column = blockIdx.x % tiles_across * TILE;
    const unsigned row = threadIdx.x / 16, column = threadIdx.x % 16;
    real_of<E> sum[4][4] = {};
    for (size_t at = 0; at < x.k; at += DEPTH) {
        __syncthreads(); /* the previous slices have been read */
        load_slice(a, x.a, first_row, at, x.k);
        load_slice(b, x.b, first_column, at, x.k);
        __syncthreads();
        for (int d = 0; d < DEPTH; d++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sum[i][j] += a[d][row + 16 * i] * b[d][column + 16 * j];
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            store_element(x, first_row + row + 16 * i, first_column + column + 16 * j, sum[i][j]);
}

/* A factor stored as [size, k], or as its transpose. */
template <typename E>
static struct factor<E> factor_of(const void *data, size_t size, size_t k, bool depth_is_last) {
    return {static_cast<const E *>(data), size, depth_is_last ? k : 1, depth_is_last ? 1 : size};
}

template <typename E, typename C, typename B>
static enum status launch_in_tiles(const struct product &x, const B &b, struct error *err)
{
    const tiles_args<E, C, B> args = {factor_of<E>(x.a, x.m, x.k, !x.transpose_a),
                                      b,
                                      static_cast<const E *>(x.bias),
                                      static_cast<C *>(x.c),
                                      x.k,
                                      (real_of<E>)x.alpha,
                                      x.accumulate};
    return launch("matmul", err, multiply_in_tiles<E, C, B>,
                  dim3(blocks_for(x.m, TILE) * blocks_for(x.n, TILE)), THREADS, 0, args);
}

template <typename E, typename B>
static enum status multiply_by(const struct product &x, const B &b, struct error *err)
{
    return x.c_is_real ? launch_in_tiles<E, real_of<E>>(x, b, err)
                       : launch_in_tiles<E, E>(x, b, err);
}

template <typename E> enum status multiply_tiles(const struct product &x, struct error *err)
{
    return multiply_by<E>(x, factor_of<E>(x.b, x.n, x.k, x.transpose_b), err);
}

template <typename E>
enum status multiply_coded(const struct product &x, const struct operand &w, struct error *err)
{
    return multiply_by<E>(x, coded_rows_of<E>(w), err);
}

template enum status multiply_tiles<float>(const struct product &x, struct error *err);
template enum status multiply_tiles<double>(const struct product &x, struct error *err);
template enum status multiply_tiles<bf16>(const struct product &x, struct error *err);
template enum status multiply_tiles<f16>(const struct product &x, struct error *err);
template enum status multiply_coded<float>(const struct product &x, const struct operand &w,
                                           struct error *err);
template enum status multiply_coded<double>(const struct product &x, const struct operand &w,
                                            struct error *err);
template enum status multiply_coded<bf16>(const struct product &x, const struct operand &w,
                                          struct error *err);
template enum status multiply_coded<f16>(const struct product &x, const struct operand &w,
                                         struct error *err);
