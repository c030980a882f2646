#include "kernels/cuda/few_rows.h"

/* A warp makes COLUMNS of c, so that what it reads of a serves as many rows of w; it asks for AHEAD
 * packs of each before it needs the first. */
enum { COLUMNS = 2, AHEAD = 4, WARPS = 8 };

template <typename E, int N> __device__ inline pack<E, N> load_or_zero(const E *from, bool there)
{
    pack<E, N> p;
    if (there) return load_pack<E, N>(from);
#pragma unroll
    for (int i = 0; i < N; i++)
        p.at[i] = from_real<E>(0);
    return p;
}

template <typename E, int N>
__device__ inline real_of<E> dot(const pack<E, N> &x, const pack<E, N> &y, real_of<E> sum)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        sum += to_real(x.at[i]) * to_real(y.at[i]);
    return sum;
}

/* Elements [at, at + N) of AHEAD steps of a warp. */
template <typename E, int N, int M>
__device__ inline void add_products(real_of<E> (&sums)[COLUMNS][M], const E *a,
                                    const E *const (&w)[COLUMNS], size_t at, size_t k)
{
    pack<E, N> ahead[COLUMNS][AHEAD];
#pragma unroll
    for (int u = 0; u < AHEAD; u++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            const size_t place = at + (size_t)u * WARP * N;
            ahead[j][u] = load_or_zero<E, N>(w[j] + place, place < k);
        }
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
        const size_t place = at + (size_t)u * WARP * N;
        if (place >= k) break;
#pragma unroll
        for (int i = 0; i < M; i++) {
            const pack<E, N> x = load_pack<E, N>(a + i * k + place);
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                sums[j][i] = dot<E, N>(x, ahead[j][u], sums[j][i]);
        }
    }
}

template <typename E, typename C> struct few_rows_args {
    const E *a, *w, *bias;
    C *c;
    size_t n, k;
    real_of<E> alpha;
};

template <typename E, typename C, int N, int M>
__global__ void __launch_bounds__(WARPS *WARP) multiply_columns(const few_rows_args<E, C> x)
{
    const size_t first = ((size_t)blockIdx.x * WARPS + warp_id()) * COLUMNS;
    real_of<E> sums[COLUMNS][M] = {};
    const E *w[COLUMNS];
    if (first >= x.n) return;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
        w[j] = x.w + (first + j < x.n ? first + j : x.n - 1) * x.k;
    for (size_t at = lane_id() * N; at < x.k; at += (size_t)AHEAD * WARP * N)
        add_products<E, N, M>(sums, x.a, w, at, x.k);
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
#pragma unroll
        for (int i = 0; i < M; i++) {
            const real_of<E> sum = warp_reduce(sums[j][i], add_up());
            if (lane_id() > 0 || first + j >= x.n) continue;
            const real_of<E> bias = x.bias ? to_real(x.bias[first + j]) : real_of<E>(0);
            x.c[i * x.n + first + j] = from_real<C>(x.alpha * sum + bias);
        }
}

template <typename E, typename C>
static enum status launch_columns(const struct few_rows &x, struct error *err)
{
    typedef void kernel(const few_rows_args<E, C>);
    static kernel *const wide[MOST_FEW_ROWS] = {
        multiply_columns<E, C, WIDTH<E>, 1>, multiply_columns<E, C, WIDTH<E>, 2>,
        multiply_columns<E, C, WIDTH<E>, 3>, multiply_columns<E, C, WIDTH<E>, 4>};
    static kernel *const narrow[MOST_FEW_ROWS] = {
        multiply_columns<E, C, 1, 1>, multiply_columns<E, C, 1, 2>, multiply_columns<E, C, 1, 3>,
        multiply_columns<E, C, 1, 4>};
    const few_rows_args<E, C> args = {static_cast<const E *>(x.a),
                                      static_cast<const E *>(x.w),
                                      static_cast<const E *>(x.bias),
                                      static_cast<C *>(x.c),
                                      x.n,
                                      x.k,
                                      (real_of<E>)x.alpha};
    kernel *const *const kernels = fits_width<E>(x.k, {x.a, x.w}) ? wide : narrow;
    return launch("matmul", err, kernels[x.m - 1], dim3(blocks_for(x.n, WARPS * COLUMNS)),
                  WARPS * WARP, 0, args);
}

template <typename E> enum status multiply_few_rows(const struct few_rows &x, struct error *err)
{
    return x.c_is_real ? launch_columns<E, real_of<E>>(x, err) : launch_columns<E, E>(x, err);
}

template enum status multiply_few_rows<float>(const struct few_rows &x, struct error *err);
template enum status multiply_few_rows<double>(const struct few_rows &x, struct error *err);
template enum status multiply_few_rows<bf16>(const struct few_rows &x, struct error *err);
