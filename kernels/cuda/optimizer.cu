/* optimizer.cu - a step of the optimizer: OP_SQUARE_SUM, OP_STEP_SCALARS,
 * OP_ADAM, OP_SGD, and OP_CAST.
 *
 * Nothing waits for the host: `scalars` on the device tells whether
 * gradients are finite, and their factor. Kernels read each array once, RUN
 * elements a thread: 16 bytes of f32. Elements beyond the last whole run
 * have a thread each. */
#include <algorithm>

#include "kernels/cuda/cuda.h"

enum { RUN = 4, RUN_THREADS = 256, SUM_BLOCKS = 1024, SUM_RUNS = 8, NUM_SUMS = 3 };

/* Places in `scalars`, written by step_scalars. */
enum { LR, WEIGHT_DECAY, CORRECTION1, CORRECTION2, FACTOR, NOT_FINITE, NORM, NUM_ZEROS };
/* Places in `control`, besides the first four. */
enum { GRADIENT_FACTOR = 4, LARGEST_NORM = 5 };

/* Calls f<N>(args, first element) for the thread's run, or for its
 * single element. */
#define EACH_RUN(f, args, n)                                                                       \
    do {                                                                                           \
        const size_t runs_ = (n) / N;                                                              \
        const size_t at_ = (size_t)blockIdx.x * blockDim.x + threadIdx.x;                          \
        if (at_ < runs_)                                                                           \
            f<N>(args, at_ * N);                                                                   \
        else if (runs_ * N + (at_ - runs_) < (n))                                                  \
            f<1>(args, runs_ * N + (at_ - runs_));                                                 \
    } while (0)

static dim3 grid_of_runs(size_t n, bool wide)
{
    return dim3(blocks_for(wide ? n / RUN + n % RUN : n, RUN_THREADS));
}

static bool are_aligned(std::initializer_list<const void *> places)
{
    bool fits = true;
    for (const void *place : places)
        fits &= (uintptr_t)place % 16 == 0;
    return fits;
}

/* ---- cast ---- */

template <typename X, typename Y> struct cast_args {
    const X *x;
    Y *y;
    size_t n;
};

template <int M, typename X, typename Y>
__device__ inline void cast_run(const cast_args<X, Y> &a, size_t at)
{
    real_of<X> v[M];
    load_reals<X, M>(v, a.x + at);
    store_reals<Y, M>(a.y + at, v);
}

template <typename X, typename Y, int N> __global__ void cast_elements(const cast_args<X, Y> a)
{
    EACH_RUN(cast_run, a, a.n);
}

template <typename X, typename Y>
static enum status launch_cast(const struct operand &x, const struct operand &y, struct error *err)
{
    const cast_args<X, Y> a = {data_of<X>(x), data_of<Y>(y), x.shape[0]};
    const bool wide = are_aligned({a.x, a.y});
    return launch("cast", err, wide ? cast_elements<X, Y, RUN> : cast_elements<X, Y, 1>,
                  grid_of_runs(a.n, wide), RUN_THREADS, 0, a);
}

/* X is the type of x; that of y is E or REAL. */
template <typename E, typename X> static enum status cast_to(OP_ARGUMENTS)
{
    (void)p, (void)workspace;
    return out[0].type == OPERAND_REAL ? launch_cast<X, real_of<E>>(in[0], out[0], err)
                                       : launch_cast<X, E>(in[0], out[0], err);
}

template <typename E> enum status op_cast(OP_ARGUMENTS)
{
    return BY_TYPE(cast_to, E, in[0])(p, in, out, workspace, err);
}

/* ---- the norm of gradients ---- */

/* Exact for squares of f32, and counts up to 2^53. */
struct square_sums {
    double squares, not_finite, zeros;
};

template <typename R> __device__ inline void add_square(struct square_sums &s, R x)
{
    const bool finite = x - x == 0;
    s.squares += finite ? (double)x * (double)x : 0;
    s.not_finite += finite ? 0 : 1;
    s.zeros += x == 0 ? 1 : 0;
}

template <typename X> struct square_args {
    const X *x;
    size_t n;
    struct square_sums *parts; /* one for each block */
};

__device__ inline struct square_sums sums_of_block(const struct square_sums &s)
{
    struct square_sums all;
    all.squares = block_sum(s.squares);
    all.not_finite = block_sum(s.not_finite);
    all.zeros = block_sum(s.zeros);
    return all;
}

template <typename X, int N> __global__ void square_parts(const square_args<X> a)
{
    const size_t runs = a.n / N, threads = (size_t)gridDim.x * blockDim.x;
    const size_t first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    struct square_sums s = {0, 0, 0};
    real_of<X> v[N];
#pragma unroll 4
    for (size_t i = first; i < runs; i += threads) {
        load_reals<X, N>(v, a.x + i * N);
#pragma unroll
        for (int j = 0; j < N; j++)
            add_square(s, v[j]);
    }
    if (runs * N + first < a.n) add_square(s, to_real(a.x[runs * N + first]));
    s = sums_of_block(s);
    if (threadIdx.x == 0) a.parts[blockIdx.x] = s;
}

template <typename R>
__global__ void add_square_parts(const struct square_sums *parts, unsigned num_parts,
                                 const R *sums_sum, R *sums)
{
    struct square_sums s = {0, 0, 0};
    for (unsigned i = threadIdx.x; i < num_parts; i += blockDim.x) {
        s.squares += parts[i].squares;
        s.not_finite += parts[i].not_finite;
        s.zeros += parts[i].zeros;
    }
    s = sums_of_block(s);
    if (threadIdx.x != 0) return;
    const double all[NUM_SUMS] = {s.squares, s.not_finite, s.zeros};
    for (int i = 0; i < NUM_SUMS; i++)
        sums[i] = R(all[i] + (sums_sum ? (double)sums_sum[i] : 0));
}

/* SUM_RUNS runs a thread, in at most SUM_BLOCKS blocks. */
static unsigned sum_blocks(size_t n)
{
    const unsigned blocks = blocks_for(n, (size_t)RUN_THREADS * RUN * SUM_RUNS);
    return std::max(1u, std::min<unsigned>(SUM_BLOCKS, blocks));
}

template <typename E, typename X> static enum status sum_squares(OP_ARGUMENTS)
{
    typedef real_of<E> real;
    const square_args<X> a = {data_of<X>(in[0]), in[0].shape[0],
                              static_cast<struct square_sums *>(workspace)};
    const unsigned blocks = sum_blocks(a.n);
    (void)p;
    TRY(launch("square_sum", err,
               are_aligned({a.x}) ? square_parts<X, WIDTH<X>> : square_parts<X, 1>, dim3(blocks),
               RUN_THREADS, 0, a));
    return launch("square_sum", err, add_square_parts<real>, dim3(1), RUN_THREADS, 0, a.parts,
                  blocks, data_of<real>(in[1]), data_of<real>(out[0]));
}

template <typename E> enum status op_square_sum(OP_ARGUMENTS)
{
    return BY_TYPE(sum_squares, E, in[0])(p, in, out, workspace, err);
}

template <typename E> size_t op_square_sum_workspace(WORKSPACE_ARGUMENTS)
{
    (void)p, (void)out;
    return sum_blocks(in[0].shape[0]) * sizeof(struct square_sums);
}

template <typename R> __global__ void make_scalars(const R *sums, const R *control, R *scalars)
{
    const R norm = control[GRADIENT_FACTOR] * sqrt(sums[0]), largest = control[LARGEST_NORM];
    const R share = largest / (norm + R(1e-6));
    if (threadIdx.x != 0) return;
    for (int i = LR; i <= CORRECTION2; i++)
        scalars[i] = control[i];
    scalars[FACTOR] = control[GRADIENT_FACTOR] * (largest > 0 && share < 1 ? share : 1);
    scalars[NOT_FINITE] = sums[1] != 0 ? 1 : 0;
    scalars[NORM] = norm;
    scalars[NUM_ZEROS] = sums[2];
}

template <typename E> enum status op_step_scalars(OP_ARGUMENTS)
{
    typedef real_of<E> real;
    (void)p, (void)workspace;
    return launch("step_scalars", err, make_scalars<real>, dim3(1), WARP, 0, data_of<real>(in[0]),
                  data_of<real>(in[1]), data_of<real>(out[0]));
}

/* ---- a step ---- */

template <typename E, typename G> struct step_args {
    const G *grad;
    const E *weight;
    const real_of<E> *scalars, *m, *v, *master; /* v: Adam's; m and master may be NULL */
    E *new_weight;
    real_of<E> *new_m, *new_v, *new_master;
    size_t n;
    real_of<E> beta1, rest1, beta2, rest2, epsilon, momentum; /* rest: 1 - beta */
    real_of<E> lr_mult, wd_mult;
};

/* A run's values before the step; w is master, or weight if that is absent. */
template <typename R, int M> struct step_run {
    R g[M], w[M], m[M], v[M];
};

template <int M, typename E, typename G>
__device__ inline void load_run(step_run<real_of<E>, M> &r, const step_args<E, G> &a, size_t at)
{
    load_reals<G, M>(r.g, a.grad + at);
    if (a.master)
        load_reals<real_of<E>, M>(r.w, a.master + at);
    else
        load_reals<E, M>(r.w, a.weight + at);
    if (a.m) load_reals<real_of<E>, M>(r.m, a.m + at);
    if (a.v) load_reals<real_of<E>, M>(r.v, a.v + at);
}

template <int M, typename E, typename G>
__device__ inline void store_run(const step_run<real_of<E>, M> &r, const step_args<E, G> &a,
                                 size_t at)
{
    store_reals<E, M>(a.new_weight + at, r.w);
    if (a.new_master) store_reals<real_of<E>, M>(a.new_master + at, r.w);
    if (a.new_m) store_reals<real_of<E>, M>(a.new_m + at, r.m);
    if (a.new_v) store_reals<real_of<E>, M>(a.new_v + at, r.v);
}

/* A skipped step still writes results not in place. The weight stays, even if
 * master would round to another one. */
template <int M, typename E, typename G>
__device__ inline void keep_run(const step_args<E, G> &a, size_t at)
{
#pragma unroll
    for (int j = 0; j < M; j++) {
        a.new_weight[at + j] = a.weight[at + j];
        if (a.new_master) a.new_master[at + j] = a.master[at + j];
        if (a.new_m) a.new_m[at + j] = a.m[at + j];
        if (a.new_v) a.new_v[at + j] = a.v[at + j];
    }
}

template <int M, typename E, typename G>
__device__ inline void adam_run(const step_args<E, G> &a, size_t at)
{
    typedef real_of<E> real;
    const real *const s = a.scalars;
    const real lr = s[LR] * a.lr_mult;
    const real decay = real(1 - (double)lr * ((double)s[WEIGHT_DECAY] * a.wd_mult));
    step_run<real, M> r = {};
    if (s[NOT_FINITE] != 0) {
        keep_run<M>(a, at);
        return;
    }
    load_run<M>(r, a, at);
#pragma unroll
    for (int j = 0; j < M; j++) {
        const real g = s[FACTOR] * r.g[j];
        r.m[j] = a.beta1 * r.m[j] + a.rest1 * g;
        r.v[j] = a.beta2 * r.v[j] + a.rest2 * g * g;
        const real root = sqrt(r.v[j] * s[CORRECTION2]) + a.epsilon;
        r.w[j] = r.w[j] * decay - lr * (r.m[j] * s[CORRECTION1]) / root;
    }
    store_run<M>(r, a, at);
}

template <int M, typename E, typename G>
__device__ inline void sgd_run(const step_args<E, G> &a, size_t at)
{
    typedef real_of<E> real;
    const real *const s = a.scalars;
    const real lr = s[LR] * a.lr_mult, decay = s[WEIGHT_DECAY] * a.wd_mult;
    step_run<real, M> r = {};
    if (s[NOT_FINITE] != 0) {
        keep_run<M>(a, at);
        return;
    }
    load_run<M>(r, a, at);
#pragma unroll
    for (int j = 0; j < M; j++) {
        const real g = s[FACTOR] * r.g[j] + decay * r.w[j];
        r.m[j] = a.m ? a.momentum * r.m[j] + g : g;
        r.w[j] -= lr * r.m[j];
    }
    store_run<M>(r, a, at);
}

template <typename E, typename G, int N> __global__ void step_adam(const step_args<E, G> a)
{
    EACH_RUN(adam_run, a, a.n);
}

template <typename E, typename G, int N> __global__ void step_sgd(const step_args<E, G> a)
{
    EACH_RUN(sgd_run, a, a.n);
}

/* grad, scalars, weight and m have the same order in both. */
template <typename E, typename G>
static step_args<E, G> step_args_of(const union op_params *p, const struct operand *in,
                                    const struct operand *out)
{
    typedef real_of<E> real;
    step_args<E, G> a = {};
    a.grad = data_of<G>(in[0]);
    a.scalars = data_of<real>(in[1]);
    a.weight = data_of<E>(in[2]);
    a.m = data_of<real>(in[3]);
    a.new_weight = data_of<E>(out[0]);
    a.new_m = data_of<real>(out[1]);
    a.n = in[0].shape[0];
    a.beta1 = (real)p->optimizer.beta1;
    a.rest1 = (real)(1 - p->optimizer.beta1);
    a.beta2 = (real)p->optimizer.beta2;
    a.rest2 = (real)(1 - p->optimizer.beta2);
    a.epsilon = (real)p->optimizer.epsilon;
    a.momentum = (real)p->optimizer.momentum;
    a.lr_mult = (real)p->optimizer.lr_mult;
    a.wd_mult = (real)p->optimizer.wd_mult;
    return a;
}

template <typename E, typename G>
static enum status launch_step(const char *op, void (*wide_kernel)(step_args<E, G>),
                               void (*kernel)(step_args<E, G>), const step_args<E, G> &a,
                               struct error *err)
{
    const bool wide = are_aligned(
        {a.grad, a.weight, a.m, a.v, a.master, a.new_weight, a.new_m, a.new_v, a.new_master});
    return launch(op, err, wide ? wide_kernel : kernel, grid_of_runs(a.n, wide), RUN_THREADS, 0, a);
}

template <typename E, typename G> static enum status run_adam(OP_ARGUMENTS)
{
    step_args<E, G> a = step_args_of<E, G>(p, in, out);
    (void)workspace;
    a.v = data_of<real_of<E>>(in[4]);
    a.master = data_of<real_of<E>>(in[5]);
    a.new_v = data_of<real_of<E>>(out[2]);
    a.new_master = data_of<real_of<E>>(out[3]);
    return launch_step<E, G>("adam", step_adam<E, G, RUN>, step_adam<E, G, 1>, a, err);
}

template <typename E, typename G> static enum status run_sgd(OP_ARGUMENTS)
{
    step_args<E, G> a = step_args_of<E, G>(p, in, out);
    (void)workspace;
    a.master = data_of<real_of<E>>(in[4]);
    a.new_master = data_of<real_of<E>>(out[2]);
    return launch_step<E, G>("sgd", step_sgd<E, G, RUN>, step_sgd<E, G, 1>, a, err);
}

template <typename E> enum status op_adam(OP_ARGUMENTS)
{
    return BY_TYPE(run_adam, E, in[0])(p, in, out, workspace, err);
}

template <typename E> enum status op_sgd(OP_ARGUMENTS)
{
    return BY_TYPE(run_sgd, E, in[0])(p, in, out, workspace, err);
}

FOR_ALL_TYPES(op_cast)
FOR_ALL_TYPES(op_square_sum)
WORKSPACE_FOR_ALL_TYPES(op_square_sum_workspace)
FOR_ALL_TYPES(op_step_scalars)
FOR_ALL_TYPES(op_adam)
FOR_ALL_TYPES(op_sgd)
