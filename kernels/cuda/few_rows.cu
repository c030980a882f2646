/* few_rows.cu - products of up to four rows at the speed of memory
 * (products.h), and when to use them. */
#include <stdio.h>
#include <string.h>
#include <type_traits>

#include "kernels/cuda/products.h"
#include "kernels/cuda/trust.h"

/* A warp makes COLUMNS of c, so that elements of a serve several rows of w. It
 * requests AHEAD packs of each before it needs the first. */
enum { COLUMNS = 2, AHEAD = 4, WARPS = 8 };

/* A pack in raw form: as elements, the load would have to end at once. */
template <typename E, int N>
using loaded = std::conditional_t<N * sizeof(E) == 16, uint4, pack<E, N>>;

template <typename E, int N> __device__ inline pack<E, N> elements_of(const loaded<E, N> &x)
{
    pack<E, N> p;
    memcpy(&p, &x, sizeof p);
    return p;
}

template <typename E, int N> __device__ inline loaded<E, N> load_or_zero(const E *from, bool there)
{
    if constexpr (N * sizeof(E) == 16)
        return load_16_bytes_once(from, there);
    else
        return there ? load_pack<E, N>(from) : pack<E, N>();
}

template <typename E, int N>
__device__ inline real_of<E> dot(const pack<E, N> &x, const pack<E, N> &y, real_of<E> sum)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        sum += to_real(x.at[i]) * to_real(y.at[i]);
    return sum;
}

/* Elements [at, at + N) of a warp's AHEAD steps. */
template <typename E, int N>
__device__ inline void load_ahead(loaded<E, N> (&ahead)[COLUMNS][AHEAD],
                                  const E *const (&w)[COLUMNS], size_t at, size_t k)
{
#pragma unroll
    for (int u = 0; u < AHEAD; u++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            const size_t place = at + (size_t)u * WARP * N;
            ahead[j][u] = load_or_zero<E, N>(w[j] + place, place < k);
        }
}

template <typename E, int N, int M>
__device__ inline void add_products(real_of<E> (&sums)[COLUMNS][M], const E *a,
                                    const loaded<E, N> (&ahead)[COLUMNS][AHEAD], size_t at,
                                    size_t k)
{
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
        const size_t place = at + (size_t)u * WARP * N;
        if (place >= k) break;
#pragma unroll
        for (int i = 0; i < M; i++) {
            const pack<E, N> x = load_pack<E, N>(a + i * k + place);
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                sums[j][i] = dot<E, N>(x, elements_of<E, N>(ahead[j][u]), sums[j][i]);
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
    loaded<E, N> ahead[COLUMNS][AHEAD];
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
        w[j] = x.w + (first + j < x.n ? first + j : x.n - 1) * x.k;
    if (first < x.n) load_ahead<E, N>(ahead, w, lane_id() * N, x.k);
    wait_for_kernel_before();
    let_kernel_behind_start();
    if (first >= x.n) return;
    for (size_t at = lane_id() * N; at < x.k;) {
        add_products<E, N, M>(sums, x.a, ahead, at, x.k);
        at += (size_t)AHEAD * WARP * N;
        load_ahead<E, N>(ahead, w, at, x.k);
    }
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
static enum status launch_columns(const struct product &x, struct error *err)
{
    typedef void kernel(const few_rows_args<E, C>);
    static kernel *const wide[MAX_FEW_ROWS] = {
        multiply_columns<E, C, WIDTH<E>, 1>, multiply_columns<E, C, WIDTH<E>, 2>,
        multiply_columns<E, C, WIDTH<E>, 3>, multiply_columns<E, C, WIDTH<E>, 4>};
    static kernel *const narrow[MAX_FEW_ROWS] = {
        multiply_columns<E, C, 1, 1>, multiply_columns<E, C, 1, 2>, multiply_columns<E, C, 1, 3>,
        multiply_columns<E, C, 1, 4>};
    const few_rows_args<E, C> args = {static_cast<const E *>(x.a),
                                      static_cast<const E *>(x.b),
                                      static_cast<const E *>(x.bias),
                                      static_cast<C *>(x.c),
                                      x.n,
                                      x.k,
                                      (real_of<E>)x.alpha};
    kernel *const *const kernels = fits_width<E>(x.k, {x.a, x.b}) ? wide : narrow;
    return launch_early("matmul", err, kernels[x.m - 1], dim3(blocks_for(x.n, WARPS * COLUMNS)),
                        WARPS * WARP, 0, args);
}

bool few_rows_takes(const struct product &x)
{
    return x.m <= MAX_FEW_ROWS && x.transpose_b && !x.transpose_a && !x.accumulate;
}

template <typename E> enum status multiply_few_rows(const struct product &x, struct error *err)
{
    return x.c_is_real ? launch_columns<E, real_of<E>>(x, err) : launch_columns<E, E>(x, err);
}

template enum status multiply_few_rows<float>(const struct product &x, struct error *err);
template enum status multiply_few_rows<double>(const struct product &x, struct error *err);
template enum status multiply_few_rows<bf16>(const struct product &x, struct error *err);
template enum status multiply_few_rows<f16>(const struct product &x, struct error *err);

/* ---- for compute capability 9.0 ---- */

/* Each of these has its own kernel or branch. */
static enum verdict verdicts[NUM_ELEM_TYPES][MAX_FEW_ROWS][2]
                            [2]; /* by elem, m - 1, c_is_real, presence of a bias */

bool few_rows_sm90_takes(const struct product &x)
{
    const bool has_type = x.elem == ELEM_BF16 || x.elem == ELEM_F16;
    return sm90_kernels.few_rows && sm90_is_on() && has_type && few_rows_takes(x) && x.k > 0 &&
           fits_width<bf16>(x.k, {x.a, x.b});
}

void few_rows_close(void)
{
    memset(verdicts, 0, sizeof verdicts);
}

/* Enough columns that every warp of a GPU makes several, in rows of two pieces,
 * the second of which ends within a warp's. */
static struct op_call small_case(const struct product &x)
{
    const uint64_t n = 40 * (uint64_t)cuda_multiprocessors + 3, k = 1544;
    struct op_call call = {};
    call.elem = x.elem;
    call.p.matmul.transpose_b = true;
    call.p.matmul.alpha = 0.5;
    call.in[0] = {const_cast<void *>(x.a), OPERAND_ELEM, 2, {x.m, k}, nullptr};
    call.in[1] = {const_cast<void *>(x.b), OPERAND_ELEM, 2, {n, k}, nullptr};
    call.in[2] = {const_cast<void *>(x.bias), OPERAND_ELEM, 1, {n}, nullptr};
    call.out[0] = {x.c, x.c_is_real ? OPERAND_REAL : OPERAND_ELEM, 2, {x.m, n}, nullptr};
    return call;
}

static enum status run_small_case(const struct op_call *call, const void *context, void *workspace,
                                  struct error *err)
{
    const struct operand *in = call->in, *out = call->out;
    struct product x = {};
    (void)workspace;
    x.elem = call->elem;
    x.a = in[0].data;
    x.b = in[1].data;
    x.bias = in[2].data;
    x.c = out[0].data;
    x.c_is_real = out[0].type == OPERAND_REAL;
    x.transpose_b = true;
    x.m = out[0].shape[0];
    x.n = out[0].shape[1];
    x.k = in[0].shape[1];
    x.alpha = call->p.matmul.alpha;
    if (context) return sm90_kernels.few_rows(x, err);
    return x.elem == ELEM_F16 ? multiply_few_rows<f16>(x, err) : multiply_few_rows<bf16>(x, err);
}

static enum verdict try_out(const struct product &x)
{
    const struct op_call call = small_case(x);
    const struct contender plain = {"few_rows", 0, run_small_case, NULL};
    const struct contender faster = {"few_rows_sm90", 0, run_small_case, &sm90_kernels};
    const char *elem = x.elem == ELEM_F16 ? "f16" : "bf16";
    char what[64];
    (void)snprintf(what, sizeof what, "%s into %s, %zu rows%s", elem, x.c_is_real ? "f32" : elem,
                   x.m, x.bias ? ", bias" : "");
    return try_sm90(what, &call, NULL, &plain, &faster);
}

bool few_rows_sm90_is_trusted(const struct product &x)
{
    enum verdict *const v = &verdicts[x.elem][x.m - 1][x.c_is_real][x.bias != NULL];
    if (*v == NOT_TRIED) *v = try_out(x);
    return *v == TRUSTED;
}
