#include <cblas.h>
#include <limits.h>

#include "kernels/cpu/ops/ops_internal.h"

#ifdef ELEM_f64
#define gemm cblas_dgemm
#else
#define gemm cblas_sgemm
#endif

/* c [m, n] = alpha op(a) op(b) + bias (+ c where it accumulates) */
struct product {
    const elem *a, *b, *bias; /* bias may be NULL */
    void *c;
    size_t m, n, k;
    bool transpose_a, transpose_b, accumulate, c_is_real;
    real alpha;
};

/* Up to so many rows, reading b is all the work there is: BLAS would copy it first. */
enum { FEW_ROWS = 4 };

static bool has_few_rows(const struct product *x)
{
    return x->m <= FEW_ROWS && !x->transpose_a && x->transpose_b;
}

static real dot(const elem *a, const elem *b, size_t n)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++)
        sum += load(a[i]) * load(b[i]);
    return sum;
}

/* Element `at` of c, in column j, becomes `value` with what is to be added to it. */
static void store_element(const struct product *x, size_t at, size_t j, real value)
{
    real *const c_real = x->c;
    elem *const c_elem = x->c;
    if (x->bias) value += load(x->bias[j]);
    if (x->accumulate) value += x->c_is_real ? c_real[at] : load(c_elem[at]);
    if (x->c_is_real)
        c_real[at] = value;
    else
        c_elem[at] = store(value);
}

static void multiply_few_rows(const struct product *x)
{
#pragma omp parallel for if (x->n * x->k >= WORTH_THREADS)
    for (size_t j = 0; j < x->n; j++)
        for (size_t i = 0; i < x->m; i++)
            store_element(x, i * x->n + j, j,
                          x->alpha * dot(x->a + i * x->k, x->b + j * x->k, x->k));
}

/* Everything larger is cut into tiles of c by its shape alone, each for one thread: BLAS, left to
 * divide a product among threads, sums in another order for another number of them. */
enum { TILE_M = 256, TILE_N = 256 }; /* at most */

static size_t divide_up(size_t n, size_t by)
{
    return (n + by - 1) / by;
}

/* A product of few tiles has narrower ones, so that two, four or eight threads get the same. */
static size_t tile_columns(const struct product *x)
{
    const size_t even = divide_up(x->m, TILE_M) < 8 ? 8 : 1, unit = 16;
    const size_t tiles = divide_up(divide_up(x->n, TILE_N), even) * even;
    return divide_up(divide_up(x->n, tiles), unit) * unit;
}

static void call_gemm(const struct product *x, size_t m, size_t n, size_t k, const real *a,
                      size_t lda, const real *b, size_t ldb, real beta, real *c, size_t ldc)
{
    gemm(CblasRowMajor, x->transpose_a ? CblasTrans : CblasNoTrans,
         x->transpose_b ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, x->alpha, a, (int)lda,
         b, (int)ldb, beta, c, (int)ldc);
}

#ifdef ELEM_bf16
/* A worker has blocks of a, b and c as REAL in the workspace, one behind the other. */
enum { BLOCK_K = 256, BLOCKS_REALS = (TILE_M + TILE_N) * BLOCK_K + TILE_M * TILE_N };

static size_t blocks_bytes(void)
{
    return most_workers() * BLOCKS_REALS * sizeof(real);
}

static void widen(real *to, const elem *from, size_t stride, size_t rows, size_t columns)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++)
            to[i * columns + j] = load(from[i * stride + j]);
}

static void multiply_tile(const struct product *x, size_t i0, size_t j0, size_t m, size_t n,
                          void *workspace)
{
    real *a = (real *)workspace + worker() * BLOCKS_REALS;
    real *b = a + TILE_M * BLOCK_K, *c = b + TILE_N * BLOCK_K;
    memset(c, 0, m * n * sizeof *c);
    for (size_t k0 = 0; k0 < x->k; k0 += BLOCK_K) {
        const size_t k = min_size(x->k - k0, BLOCK_K);
        if (x->transpose_a)
            widen(a, x->a + k0 * x->m + i0, x->m, k, m);
        else
            widen(a, x->a + i0 * x->k + k0, x->k, m, k);
        if (x->transpose_b)
            widen(b, x->b + j0 * x->k + k0, x->k, n, k);
        else
            widen(b, x->b + k0 * x->n + j0, x->n, k, n);
        call_gemm(x, m, n, k, a, x->transpose_a ? m : k, b, x->transpose_b ? k : n, 1, c, n);
    }
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            store_element(x, (i0 + i) * x->n + j0 + j, j0 + j, c[i * n + j]);
}
#else
static size_t blocks_bytes(void)
{
    return 0;
}

/* The tile starts as what the product is added to. */
static void start_with_bias(const struct product *x, real *c, const elem *bias, size_t m, size_t n)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            c[i * x->n + j] = bias[j] + (x->accumulate ? c[i * x->n + j] : 0);
}

static void multiply_tile(const struct product *x, size_t i0, size_t j0, size_t m, size_t n,
                          void *workspace)
{
    (void)workspace;
    real *c = (real *)x->c + i0 * x->n + j0;
    if (x->bias) start_with_bias(x, c, x->bias + j0, m, n);
    call_gemm(x, m, n, x->k, x->a + (x->transpose_a ? i0 : i0 * x->k), x->transpose_a ? x->m : x->k,
              x->b + (x->transpose_b ? j0 * x->k : j0), x->transpose_b ? x->k : x->n,
              x->bias || x->accumulate, c, x->n);
}
#endif

/* Always with all threads: in a parallel region OpenBLAS does not divide the tile once more. */
static void multiply_tiles(const struct product *x, void *workspace)
{
    const size_t tile_n = tile_columns(x);
    const size_t tiles_m = divide_up(x->m, TILE_M), tiles_n = divide_up(x->n, tile_n);
#pragma omp parallel for num_threads(workers()) schedule(dynamic)
    for (size_t tile = 0; tile < tiles_m * tiles_n; tile++) {
        const size_t i = tile % tiles_m * TILE_M, j = tile / tiles_m * tile_n;
        multiply_tile(x, i, j, min_size(x->m - i, TILE_M), min_size(x->n - j, tile_n), workspace);
    }
}

static enum status multiply(const struct product *x, void *workspace, struct error *err)
{
    if (x->m > INT_MAX || x->n > INT_MAX || x->k > INT_MAX)
        return fail(err, ERR_OURS, "a matrix product of [%zu, %zu] and [%zu, %zu]", x->m, x->k,
                    x->k, x->n);
    if (x->m == 0 || x->n == 0) return OK;
    if (has_few_rows(x))
        multiply_few_rows(x);
    else
        multiply_tiles(x, workspace);
    return OK;
}

enum status NAME(matmul)(const union op_params *p, const struct operand *in,
                         const struct operand *out, void *workspace, struct error *err)
{
    const struct product x = {.a = in[0].data,
                              .b = in[1].data,
                              .bias = in[2].data,
                              .c = out[0].data,
                              .m = out[0].shape[0],
                              .n = out[0].shape[1],
                              .k = in[0].shape[!p->matmul.transpose_a],
                              .transpose_a = p->matmul.transpose_a,
                              .transpose_b = p->matmul.transpose_b,
                              .accumulate = p->matmul.accumulate,
                              .c_is_real = out[0].type == OPERAND_REAL,
                              .alpha = (real)p->matmul.alpha};
    return multiply(&x, workspace, err);
}

size_t NAME(matmul_workspace)(const union op_params *p, const struct operand *in,
                              const struct operand *out)
{
    (void)p, (void)in, (void)out;
    return blocks_bytes();
}

enum status NAME(grouped_matmul)(const union op_params *p, const struct operand *in,
                                 const struct operand *out, void *workspace, struct error *err)
{
    (void)p;
    const elem *x = in[0].data, *w = in[1].data;
    const int32_t *counts = in[2].data;
    elem *y = out[0].data;
    const size_t num_experts = in[1].shape[0], n = in[1].shape[1], k = in[1].shape[2];
    for (size_t e = 0, row = 0; e < num_experts; row += (size_t)counts[e], e++) {
        const struct product one = {.a = x + row * k,
                                    .b = w + e * n * k,
                                    .c = y + row * n,
                                    .m = (size_t)counts[e],
                                    .n = n,
                                    .k = k,
                                    .transpose_b = true,
                                    .alpha = 1};
        TRY(multiply(&one, workspace, err));
    }
    return OK;
}

size_t NAME(grouped_matmul_workspace)(const union op_params *p, const struct operand *in,
                                      const struct operand *out)
{
    (void)p, (void)in, (void)out;
    return blocks_bytes();
}
