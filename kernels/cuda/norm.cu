/* A block has a row. A row that fits its registers is read once. A longer
 * or unaligned row is read again for each pass: from the second on it is in
 * the cache. */
#include "kernels/cuda/norm.h"

template <typename E> struct norm_args {
    const E *stream, *branch, *branch_bias; /* branch NULL: norm of stream itself */
    const E *weight, *bias;                 /* [h]; bias may be NULL */
    E *sum, *y;
    real_of<E> *stats; /* [T, 2] or NULL */
    size_t h;
    real_of<E> epsilon, shift;
    bool layer_norm;
};

/* x = a + b + bias, rounded once. */
template <typename E, int N>
__device__ inline void add_vectors(real_of<E> (&x)[N], const E *a, const E *b, const E *bias)
{
    real_of<E> other[N];
    load_reals<E, N>(x, a);
    load_reals<E, N>(other, b);
#pragma unroll
    for (int j = 0; j < N; j++)
        x[j] += other[j];
    if (!bias) return;
    load_reals<E, N>(other, bias);
#pragma unroll
    for (int j = 0; j < N; j++)
        x[j] += other[j];
}

/* Elements [i, i + N) of the norm's input in the row at `row`; a sum is
 * stored first. */
template <typename E, int N>
__device__ inline void first_read(real_of<E> (&x)[N], const norm_args<E> &a, size_t row, size_t i)
{
    if (!a.branch) {
        load_reals<E, N>(x, a.stream + row + i);
        return;
    }
    add_vectors<E, N>(x, a.stream + row + i, a.branch + row + i,
                      a.branch_bias ? a.branch_bias + i : NULL);
    store_reals<E, N>(a.sum + row + i, x);
#pragma unroll
    for (int j = 0; j < N; j++)
        x[j] = to_real(from_real<E>(x[j]));
}

template <typename E>
__device__ inline void write_stats(const norm_args<E> &a, real_of<E> mean, real_of<E> scale)
{
    if (!a.stats || threadIdx.x != 0) return;
    a.stats[2 * (size_t)blockIdx.x] = mean;
    a.stats[2 * (size_t)blockIdx.x + 1] = scale;
}

template <typename E, int N> __global__ void norm_rows(const norm_args<E> a)
{
    typedef real_of<E> real;
    wait_for_kernel_before();
    let_kernel_behind_start();
    const size_t row = blockIdx.x * a.h;
    const E *x = (a.branch ? a.sum : a.stream) + row;
    real total = 0, mean = 0, v[N];
    for (size_t i = threadIdx.x * N; i < a.h; i += blockDim.x * N) {
        first_read<E, N>(v, a, row, i);
#pragma unroll
        for (int j = 0; j < N; j++)
            total += a.layer_norm ? v[j] : v[j] * v[j];
    }
    total = block_sum(total);
    if (a.layer_norm) {
        mean = total / real(a.h);
        total = block_sum(square_deviations<E, N>(x, a.h, mean));
    }
    const real scale = 1 / sqrt(total / real(a.h) + a.epsilon);
    scale_row<E, N>(a.y + row, x, a.weight, a.bias, a.shift, a.h, mean, scale);
    write_stats(a, mean, scale);
}

/* ---- a row in registers ---- */

/* P packs of a row: thread t has packs t, t + blockDim.x, ..; zeros beyond the
 * end. They are words, which the compiler keeps in registers. */
template <int P> struct kept {
    uint4 at[P];
};

template <typename E> __device__ inline size_t kept_column(int k)
{
    return (threadIdx.x + (size_t)k * blockDim.x) * WIDTH<E>;
}

template <typename E, int P> __device__ inline void keep(kept<P> &to, const E *row, size_t h)
{
#pragma unroll
    for (int k = 0; k < P; k++) {
        to.at[k] = uint4{0, 0, 0, 0};
        if (kept_column<E>(k) < h)
            to.at[k] = *reinterpret_cast<const uint4 *>(row + kept_column<E>(k));
    }
}

template <typename E>
__device__ inline void kept_reals(real_of<E> (&to)[WIDTH<E>], const uint4 &words)
{
    load_reals<E, WIDTH<E>>(to, reinterpret_cast<const E *>(&words));
}

/* x = x + branch + bias, rounded once, and stored. */
template <typename E, int P>
__device__ inline void add_kept(kept<P> &x, const norm_args<E> &a, size_t row)
{
    constexpr int N = WIDTH<E>;
    kept<P> branch;
    keep<E>(branch, a.branch + row, a.h);
#pragma unroll
    for (int k = 0; k < P; k++) {
        const size_t i = kept_column<E>(k);
        if (i >= a.h) continue;
        real_of<E> bias[N] = {}, other[N], v[N];
        if (a.branch_bias) load_reals<E, N>(bias, a.branch_bias + i);
        kept_reals<E>(v, x.at[k]);
        kept_reals<E>(other, branch.at[k]);
#pragma unroll
        for (int j = 0; j < N; j++)
            v[j] = v[j] + other[j] + bias[j];
        store_reals<E, N>(reinterpret_cast<E *>(&x.at[k]), v);
        *reinterpret_cast<uint4 *>(a.sum + row + i) = x.at[k];
    }
}

/* The thread's part of the sum of x (`squared`: of x^2), with x taken
 * from `mean`. */
template <typename E, int P>
__device__ inline real_of<E> sum_kept(const kept<P> &x, size_t h, real_of<E> mean, bool squared)
{
    real_of<E> total = 0, v[WIDTH<E>];
#pragma unroll
    for (int k = 0; k < P; k++) {
        if (kept_column<E>(k) >= h) continue;
        kept_reals<E>(v, x.at[k]);
#pragma unroll
        for (int j = 0; j < WIDTH<E>; j++)
            total += squared ? (v[j] - mean) * (v[j] - mean) : v[j] - mean;
    }
    return total;
}

template <typename E, int P>
__device__ inline void write_kept(const kept<P> &x, const kept<P> &weights, const norm_args<E> &a,
                                  size_t row, real_of<E> mean, real_of<E> scale)
{
    constexpr int N = WIDTH<E>;
#pragma unroll
    for (int k = 0; k < P; k++) {
        const size_t i = kept_column<E>(k);
        if (i >= a.h) continue;
        real_of<E> bias[N] = {}, weight[N], v[N];
        if (a.bias) load_reals<E, N>(bias, a.bias + i);
        kept_reals<E>(v, x.at[k]);
        kept_reals<E>(weight, weights.at[k]);
#pragma unroll
        for (int j = 0; j < N; j++)
            v[j] = (v[j] - mean) * scale * (weight[j] + a.shift) + bias[j];
        store_reals<E, N>(a.y + row + i, v);
    }
}

/* Threads of a block, such that their packs fit the registers. */
template <int P> constexpr unsigned KEPT_THREADS = P == 4 ? 512 : MAX_THREADS;

template <typename E, int P>
__global__ void __launch_bounds__(KEPT_THREADS<P>) norm_kept_rows(const norm_args<E> a)
{
    typedef real_of<E> real;
    const size_t row = blockIdx.x * a.h;
    kept<P> x, weights;
    keep<E>(weights, a.weight, a.h);
    wait_for_kernel_before();
    let_kernel_behind_start();
    keep<E>(x, a.stream + row, a.h);
    if (a.branch) add_kept<E, P>(x, a, row);
    real total = block_sum(sum_kept<E, P>(x, a.h, 0, !a.layer_norm)), mean = 0;
    if (a.layer_norm) {
        mean = total / real(a.h);
        total = block_sum(sum_kept<E, P>(x, a.h, mean, true));
    }
    const real scale = 1 / sqrt(total / real(a.h) + a.epsilon);
    write_kept<E, P>(x, weights, a, row, mean, scale);
    write_stats(a, mean, scale);
}

/* ---- the ops ---- */

/* weight, [bias], y and [stats] have the same order in both norms. */
template <typename E>
static struct norm_args<E> norm_args_of(const union op_params *p, const struct operand *weight,
                                        const struct operand *y) {
    struct norm_args<E> a = {
    };
    a.weight = data_of<E>(weight[0]);
    a.bias = data_of<E>(weight[1]);
    a.y = data_of<E>(y[0]);
    a.stats = data_of<real_of<E>>(y[1]);
    a.h = y[0].shape[1];
    a.epsilon = (real_of<E>)p->norm.epsilon;
    a.shift = (real_of<E>)p->norm.shift;
    a.layer_norm = p->norm.layer_norm;
    return a;
}

template <typename E, int P>
static enum status launch_kept(const char *op, const struct norm_args<E> &a, size_t rows,
                               struct error *err)
{
    const size_t threads = (a.h / WIDTH<E> + P - 1) / P;
    return launch_early(op, err, norm_kept_rows<E, P>, dim3((unsigned)rows),
                        threads_for(threads, KEPT_THREADS<P>), 0, a);
}

/* Few rows get a thread for each pack. Many rows share multiprocessors, and
 * their threads read several packs at once. */
template <typename E>
static enum status launch_norm(const char *op, const struct norm_args<E> &a, size_t rows,
                               struct error *err)
{
    const bool wide =
        fits_width<E>(a.h, {a.stream, a.branch, a.branch_bias, a.weight, a.bias, a.sum, a.y});
    const size_t packs = a.h / WIDTH<E>;
    const size_t threads = rows <= (size_t)cuda_multiprocessors ? MAX_THREADS : 256;
    if (wide && packs <= threads) return launch_kept<E, 1>(op, a, rows, err);
    if (wide && packs <= 2 * threads) return launch_kept<E, 2>(op, a, rows, err);
    if (wide && packs <= 4 * KEPT_THREADS<4>) return launch_kept<E, 4>(op, a, rows, err);
    return launch_early(op, err, BY_WIDTH(norm_rows, E, wide), dim3((unsigned)rows),
                        row_threads<E>(a.h, wide), 0, a);
}

template <typename E> enum status op_norm(OP_ARGUMENTS)
{
    (void)workspace;
    struct norm_args<E> a = norm_args_of<E>(p, in + 1, out);
    a.stream = data_of<E>(in[0]);
    return launch_norm("norm", a, out[0].shape[0], err);
}

template <typename E> enum status op_add_norm(OP_ARGUMENTS)
{
    (void)workspace;
    struct norm_args<E> a = norm_args_of<E>(p, in + 3, out + 1);
    a.stream = data_of<E>(in[0]);
    a.branch = data_of<E>(in[1]);
    a.branch_bias = data_of<E>(in[2]);
    a.sum = data_of<E>(out[0]);
    return launch_norm("add_norm", a, out[0].shape[0], err);
}

template <typename E, int N>
__global__ void add_operands(const E *a, const E *b, const E *bias, E *c, size_t h)
{
    const size_t row = blockIdx.x * h;
    real_of<E> x[N];
    for (size_t i = first_column<N>(); i < h; i += next_column<N>()) {
        add_vectors<E, N>(x, a + row + i, b + row + i, bias ? bias + i : NULL);
        store_reals<E, N>(c + row + i, x);
    }
}

template <typename E> enum status op_add(OP_ARGUMENTS)
{
    (void)p, (void)workspace;
    const E *a = data_of<E>(in[0]), *b = data_of<E>(in[1]), *bias = data_of<E>(in[2]);
    E *c = data_of<E>(out[0]);
    const size_t h = out[0].shape[1];
    const bool wide = fits_width<E>(h, {a, b, bias, c});
    const struct spread s = spread_rows<E>(out[0].shape[0], h, wide);
    return launch("add", err, BY_WIDTH(add_operands, E, wide), s.grid, s.threads, 0, a, b, bias, c,
                  h);
}

FOR_ALL_TYPES(op_norm)
FOR_ALL_TYPES(op_add_norm)
FOR_ALL_TYPES(op_add)
