/* norm_backward.cu - OP_NORM_BACKWARD.
 *
 * With x^ = (x - mean) * r, r = 1 / sqrt(variance + epsilon), g = dy * (weight
 * + shift), and means over a row:
 *
 *   dx = r (g - mean(g) - x^ mean(g x^)), without mean(g) for RMS
 *   dweight = the sum over rows of dy x^, dbias that of dy
 *
 * 1. A block has a run of rows. If a row fits the registers of its threads, dx
 *    and the run's contributions to dweight and dbias take one pass, in at most
 *    NORM_PARTS parts.
 * 2. Longer or unaligned rows are read again: for dweight and dbias column by
 *    column, then for dx, which may replace dy.
 * 3. columns.h adds up the parts. */
#include "kernels/cuda/columns.h"

enum { NORM_PARTS = 256, MIN_NORM_ROWS = 4, MOST_NORM_THREADS = 512 };
/* Packs of a row that a thread has room for. */
template <typename E> constexpr int MOST_PACKS = sizeof(E) == 2 ? 2 : 4;

template <typename E> struct norm_backward_args {
    const E *x, *weight, *dy, *other; /* other may be NULL */
    const real_of<E> *stats;          /* [T, 2]: mean, r */
    E *dx;
    real_of<E> *dweights, *dbiases; /* [parts, h] */
    size_t rows, part_rows, h;
    real_of<E> shift;
    bool layer_norm;
};

/* ---- a row in registers ---- */

template <typename E, int N, int PACKS> struct row_in_registers {
    pack<E, N> x[PACKS], dy[PACKS];
};

template <typename E, int N, int PACKS>
__device__ inline void load_row(row_in_registers<E, N, PACKS> &r, const norm_backward_args<E> &a,
                                size_t row)
{
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const size_t at = (threadIdx.x + (size_t)i * blockDim.x) * N;
        if (at >= a.h) continue;
        r.x[i] = load_pack<E, N>(a.x + row * a.h + at);
        r.dy[i] = load_pack<E, N>(a.dy + row * a.h + at);
    }
}

/* Means of g and g x^ over a row; that of g is 0 for RMS. */
template <typename R> struct row_means {
    R g, gx;
};

template <typename E, int N, int PACKS>
__device__ inline row_means<real_of<E>> means_of(const row_in_registers<E, N, PACKS> &r,
                                                 const norm_backward_args<E> &a, real_of<E> mean,
                                                 real_of<E> scale)
{
    real_of<E> g_sum = 0, gx_sum = 0, weight[N];
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const size_t at = (threadIdx.x + (size_t)i * blockDim.x) * N;
        if (at >= a.h) continue;
        load_reals<E, N>(weight, a.weight + at);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const real_of<E> g = to_real(r.dy[i].at[j]) * (weight[j] + a.shift);
            g_sum += g;
            gx_sum += g * ((to_real(r.x[i].at[j]) - mean) * scale);
        }
    }
    row_means<real_of<E>> m;
    m.gx = block_sum(gx_sum) / real_of<E>(a.h);
    m.g = a.layer_norm ? block_sum(g_sum) / real_of<E>(a.h) : 0;
    return m;
}

/* dx of N elements: x, dy and weight with its shift are theirs; other
 * is added. */
template <typename R, int N>
__device__ inline void make_dx(R (&dx)[N], const R (&x)[N], const R (&dy)[N], const R (&weight)[N],
                               const R (&other)[N], R scale, R shift, const row_means<R> &m)
{
#pragma unroll
    for (int j = 0; j < N; j++)
        dx[j] = scale * (dy[j] * (weight[j] + shift) - m.g - x[j] * m.gx) + other[j];
}

/* dx of a row, and its contribution to the sums. */
template <typename E, int N, int PACKS>
__device__ inline void
finish_norm_row(const row_in_registers<E, N, PACKS> &r, const norm_backward_args<E> &a, size_t row,
                real_of<E> mean, real_of<E> scale, const row_means<real_of<E>> &m,
                real_of<E> (&dweight)[PACKS][N], real_of<E> (&dbias)[PACKS][N])
{
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const size_t at = (threadIdx.x + (size_t)i * blockDim.x) * N;
        real_of<E> x[N], dy[N], weight[N], other[N] = {}, dx[N];
        if (at >= a.h) continue;
        load_reals<E, N>(weight, a.weight + at);
        if (a.other) load_reals<E, N>(other, a.other + row * a.h + at);
#pragma unroll
        for (int j = 0; j < N; j++) {
            x[j] = (to_real(r.x[i].at[j]) - mean) * scale;
            dy[j] = to_real(r.dy[i].at[j]);
            dweight[i][j] += dy[j] * x[j];
            dbias[i][j] += dy[j];
        }
        make_dx(dx, x, dy, weight, other, scale, a.shift, m);
        store_reals<E, N>(a.dx + row * a.h + at, dx);
    }
}

/* A block for each part of the rows. */
template <typename E, int N, int PACKS>
__global__ void __launch_bounds__(MOST_NORM_THREADS)
    norm_backward_rows(const norm_backward_args<E> a)
{
    const size_t begin = blockIdx.x * a.part_rows, end = min(a.rows, begin + a.part_rows);
    real_of<E> dweight[PACKS][N] = {}, dbias[PACKS][N] = {};
    for (size_t row = begin; row < end; row++) {
        const real_of<E> mean = a.stats[2 * row], scale = a.stats[2 * row + 1];
        row_in_registers<E, N, PACKS> r;
        load_row(r, a, row);
        const row_means<real_of<E>> m = means_of(r, a, mean, scale);
        finish_norm_row(r, a, row, mean, scale, m, dweight, dbias);
    }
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const size_t at = (threadIdx.x + (size_t)i * blockDim.x) * N;
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (at >= a.h) continue;
            a.dweights[blockIdx.x * a.h + at + j] = dweight[i][j];
            if (a.dbiases) a.dbiases[blockIdx.x * a.h + at + j] = dbias[i][j];
        }
    }
}

/* ---- a row that is read again ---- */

/* A block has columns of part blockIdx.y, one a thread. */
template <typename E> __global__ void norm_backward_columns(const norm_backward_args<E> a)
{
    const size_t column = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const size_t begin = blockIdx.y * a.part_rows, end = min(a.rows, begin + a.part_rows);
    real_of<E> dweight = 0, dbias = 0;
    if (column >= a.h) return;
    for (size_t row = begin; row < end; row++) {
        const real_of<E> dy = to_real(a.dy[row * a.h + column]);
        const real_of<E> x = to_real(a.x[row * a.h + column]);
        dweight += dy * ((x - a.stats[2 * row]) * a.stats[2 * row + 1]);
        dbias += dy;
    }
    a.dweights[blockIdx.y * a.h + column] = dweight;
    if (a.dbiases) a.dbiases[blockIdx.y * a.h + column] = dbias;
}

template <typename E, int N> __global__ void norm_backward_long_rows(const norm_backward_args<E> a)
{
    typedef real_of<E> real;
    const size_t row = blockIdx.x * a.h;
    const real mean = a.stats[2 * (size_t)blockIdx.x], scale = a.stats[2 * (size_t)blockIdx.x + 1];
    real x[N], dy[N], weight[N], other[N] = {}, dx[N], g_sum = 0, gx_sum = 0;
    for (int pass = 0; pass < 2; pass++) {
        row_means<real> m = {0, 0};
        if (pass == 1) m.gx = block_sum(gx_sum) / real(a.h);
        if (pass == 1 && a.layer_norm) m.g = block_sum(g_sum) / real(a.h);
        for (size_t i = threadIdx.x * N; i < a.h; i += blockDim.x * N) {
            load_reals<E, N>(x, a.x + row + i);
            load_reals<E, N>(dy, a.dy + row + i);
            load_reals<E, N>(weight, a.weight + i);
            if (a.other && pass == 1) load_reals<E, N>(other, a.other + row + i);
#pragma unroll
            for (int j = 0; j < N; j++) {
                x[j] = (x[j] - mean) * scale;
                g_sum += dy[j] * (weight[j] + a.shift);
                gx_sum += dy[j] * (weight[j] + a.shift) * x[j];
            }
            if (pass == 0) continue;
            make_dx(dx, x, dy, weight, other, scale, a.shift, m);
            store_reals<E, N>(a.dx + row + i, dx);
        }
    }
}

/* ---- the launch ---- */

static size_t norm_part_rows(size_t rows)
{
    return std::max<size_t>(MIN_NORM_ROWS, (rows + NORM_PARTS - 1) / NORM_PARTS);
}

static size_t norm_parts(size_t rows)
{
    return std::max<size_t>(1, blocks_for(rows, norm_part_rows(rows)));
}

template <typename E>
static enum status launch_long(const norm_backward_args<E> &a, bool wide, struct error *err)
{
    const unsigned parts = (unsigned)norm_parts(a.rows);
    TRY(launch("norm_backward", err, norm_backward_columns<E>, dim3(blocks_for(a.h, 256), parts),
               256, 0, a));
    return launch("norm_backward", err, BY_WIDTH(norm_backward_long_rows, E, wide),
                  dim3((unsigned)a.rows), row_threads<E>(a.h, wide), 0, a);
}

/* 256 threads a row, or 512 if needed to hold it. */
template <typename E>
static enum status launch_rows(const norm_backward_args<E> &a, struct error *err)
{
    const bool wide = fits_width<E>(a.h, {a.x, a.weight, a.dy, a.other, a.dx});
    const size_t packs = a.h / WIDTH<E>;
    const unsigned most = packs > 256 * (size_t)MOST_PACKS<E> ? MOST_NORM_THREADS : 256;
    const unsigned threads = threads_for(packs, most), each = blocks_for(packs, threads);
    if (!wide || each > MOST_PACKS<E>) return launch_long(a, wide, err);
    return launch("norm_backward", err,
                  each == 1   ? norm_backward_rows<E, WIDTH<E>, 1>
                  : each == 2 ? norm_backward_rows<E, WIDTH<E>, 2>
                              : norm_backward_rows<E, WIDTH<E>, MOST_PACKS<E>>,
                  dim3((unsigned)norm_parts(a.rows)), threads, 0, a);
}

/* One of the two sums over the parts. */
template <typename E, typename G>
static enum status add_norm_parts(const real_of<E> *parts, size_t num_parts,
                                  const struct operand &sum, const struct operand &out,
                                  struct error *err)
{
    return launch_columns<real_of<E>, G>("norm_backward", parts, data_of<G>(sum), data_of<G>(out),
                                         num_parts, out.shape[0], 1, err);
}

template <typename E> enum status op_norm_backward(OP_ARGUMENTS)
{
    struct norm_backward_args<E> a = {
    };
    a.x = data_of<E>(in[0]);
    a.weight = data_of<E>(in[1]);
    a.stats = data_of<real_of<E>>(in[2]);
    a.dy = data_of<E>(in[3]);
    a.other = data_of<E>(in[4]);
    a.dx = data_of<E>(out[0]);
    a.rows = in[0].shape[0];
    a.h = in[0].shape[1];
    a.part_rows = norm_part_rows(a.rows);
    a.dweights = static_cast<real_of<E> *>(workspace);
    a.dbiases = out[2].data ? a.dweights + norm_parts(a.rows) * a.h : NULL;
    a.shift = (real_of<E>)p->norm.shift;
    a.layer_norm = p->norm.layer_norm;
    const size_t parts = a.rows == 0 ? 0 : norm_parts(a.rows);
    if (parts > 0) TRY(launch_rows(a, err));
    TRY(BY_TYPE(add_norm_parts, E, out[1])(a.dweights, parts, in[5], out[1], err));
    if (!a.dbiases) return OK;
    return BY_TYPE(add_norm_parts, E, out[2])(a.dbiases, parts, in[6], out[2], err);
}

template <typename E> size_t op_norm_backward_workspace(WORKSPACE_ARGUMENTS)
{
    const size_t sums = out[2].num_dims ? 2 : 1;
    (void)p;
    return sums * norm_parts(in[0].shape[0]) * in[0].shape[1] * sizeof(real_of<E>);
}

FOR_ALL_TYPES(op_norm_backward)
WORKSPACE_FOR_ALL_TYPES(op_norm_backward_workspace)
