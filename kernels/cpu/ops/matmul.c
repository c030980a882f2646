/* matmul.c - OP_MATMUL, OP_GROUPED_MATMUL and its gradients: by BLAS, and by
 * kernels for few rows and for 16-bit types.
 *
 * Coded weights are decoded by rows, by blocks of 16-bit types, or whole for
 * BLAS, which sums by sizes. */
#include <assert.h>
#include <cblas.h>
#include <limits.h>

#include "common/threads.h"
#include "kernels/cpu/coded.h"
#include "kernels/cpu/ops/ops_internal.h"
#ifdef __AVX512BF16__
#define PAIRS
#include "kernels/cpu/ops/pairs.h"
#endif
#ifdef __AMX_BF16__
#include "kernels/cpu/ops/amx.h"
#endif

/* y [m, n] = alpha op(a) op(b) + bias + c. If it accumulates, c lies in y. */
struct product {
    const elem *a, *b, *bias; /* bias may be NULL */
    /* Instead of b: the rows of a coded weight from first_row on, and room for
     * decoded ones. */
    const struct operand *coded;
    size_t first_row;
    elem *room;
    void *c;
    size_t m, n, k;
    bool transpose_a, transpose_b, accumulate, c_is_real;
    real alpha;
};

/* Up to FEW_ROWS rows, the time goes into reading b, which tiles would copy
 * first. FEW_COLUMNS of c are stored at once. */
enum { FEW_ROWS = 4, FEW_COLUMNS = 16 };

static bool has_few_rows(const struct product *x)
{
    return x->m <= FEW_ROWS && !x->transpose_a && x->transpose_b;
}

/* A decoded row is aligned as in a decoded weight: compilers cut sums at lines
 * of the cache. */
enum { LINE = 64 / sizeof(elem) };

static size_t row_room(size_t k)
{
    return (k + 2 * LINE - 1) / LINE * LINE;
}

/* Room of a worker for decoded elements: a row, or a block of 16-bit types. */
#ifdef ELEM_IS_16_BITS
enum { BLOCK_K = 256, TILE_M = 256, TILE_N = 256 }; /* at most */

static size_t room_numel(size_t k)
{
    return row_room(k) > TILE_N * BLOCK_K ? row_room(k) : TILE_N * BLOCK_K;
}
#else
static size_t room_numel(size_t k)
{
    return row_room(k);
}
#endif

#ifdef PAIRS
ALWAYS_INLINE void add_dot(__m512 *sum, const elem *a, const elem *b, __mmask32 present)
{
    *sum = _mm512_dpbf16_ps(*sum, (__m512bh)_mm512_maskz_loadu_epi16(present, a),
                            (__m512bh)_mm512_maskz_loadu_epi16(present, b));
}

/* Two sums, so that an instruction does not wait for the one before. */
static real dot(const elem *a, const elem *b, size_t n)
{
    enum { STEP = 2 * SQUARE };
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    size_t i = 0;
    for (; i + 2 * STEP <= n; i += 2 * STEP) {
        add_dot(&even, a + i, b + i, UINT32_MAX);
        add_dot(&odd, a + i + STEP, b + i + STEP, UINT32_MAX);
    }
    for (; i < n; i += STEP)
        add_dot(&even, a + i, b + i, mask_of(n - i));
    return _mm512_reduce_add_ps(_mm512_add_ps(even, odd));
}
#else
static real dot(const elem *a, const elem *b, size_t n)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++)
        sum += load(a[i]) * load(b[i]);
    return sum;
}

#ifdef ELEM_f64
#define gemm cblas_dgemm
#else
#define gemm cblas_sgemm
#endif

static void call_gemm(const struct product *x, size_t m, size_t n, size_t k, real alpha,
                      const real *a, size_t lda, const real *b, size_t ldb, real beta, real *c,
                      size_t ldc)
{
    gemm(CblasRowMajor, x->transpose_a ? CblasTrans : CblasNoTrans,
         x->transpose_b ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, alpha, a, (int)lda, b,
         (int)ldb, beta, c, (int)ldc);
}
#endif

static void add_reals(real *restrict to, const real *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += from[i];
}

static void add_elems(real *restrict to, const elem *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += load(from[i]);
}

/* Stores n elements of row i of c, from column j on: sums times alpha, plus
 * bias and addend. Changes the sums. */
static void store_row(const struct product *x, size_t i, size_t j, real *sums, size_t n)
{
    real *c_real = (real *)x->c + i * x->n + j;
    elem *c_elem = (elem *)x->c + i * x->n + j;
    const real alpha = x->alpha;
    for (size_t l = 0; l < n; l++)
        sums[l] *= alpha;
    if (x->bias) add_elems(sums, x->bias + j, n);
    if (x->accumulate && x->c_is_real) add_reals(sums, c_real, n);
    if (x->accumulate && !x->c_is_real) add_elems(sums, c_elem, n);
    if (x->c_is_real)
        memcpy(c_real, sums, n * sizeof *sums);
    else
        store_elems(c_elem, sums, n);
}

/* Row j of b. Inlined, its cases would be summed in different orders. */
__attribute__((noinline)) static const elem *row_of_b(const struct product *x, size_t j, elem *room)
{
    if (!x->coded) return x->b + j * x->k;
    elem *to = room + (x->first_row + j) * x->k % LINE;
    coded_read(x->coded, x->first_row + j, 0, x->k, ELEM_DTYPE, to);
    return to;
}

static void multiply_few_columns(const struct product *x, size_t j0, size_t n, elem *room)
{
    real sums[FEW_ROWS][FEW_COLUMNS];
    for (size_t j = 0; j < n; j++) {
        const elem *b = row_of_b(x, j0 + j, room);
        for (size_t i = 0; i < x->m; i++)
            sums[i][j] = dot(x->a + i * x->k, b, x->k);
    }
    for (size_t i = 0; i < x->m; i++)
        store_row(x, i, j0, sums[i], n);
}

static void multiply_few_rows(const struct product *x)
{
#pragma omp parallel for if (x->n * x->k >= WORTH_THREADS) num_threads(workers())
    for (size_t j = 0; j < x->n; j += FEW_COLUMNS)
        multiply_few_columns(x, j, min_size(x->n - j, FEW_COLUMNS),
                             x->coded ? x->room + worker() * room_numel(x->k) : NULL);
}

/* Larger products are cut into tiles of c by their shape alone, one thread a
 * tile. BLAS itself would divide a product by the number of threads, and sum in
 * an order that depends on it. */
struct tiling {
    size_t m, n; /* of a tile */
};

/* The number of tiles is a multiple of this, so that two, four or eight threads
 * share them evenly. */
enum { EVEN_TILES = 8 };

static size_t divide_up(size_t n, size_t by)
{
    return (n + by - 1) / by;
}

static size_t round_up(size_t n, size_t unit)
{
    return divide_up(n, unit) * unit;
}

#ifdef ELEM_IS_16_BITS
/* Products of few tiles have narrower ones. */
static struct tiling tiling_of(const struct product *x)
{
    const size_t even = divide_up(x->m, TILE_M) < EVEN_TILES ? EVEN_TILES : 1, unit = 16;
    const size_t tiles = round_up(divide_up(x->n, TILE_N), even);
    return (struct tiling){TILE_M, round_up(divide_up(x->n, tiles), unit)};
}

/* A block of op(a) [m, k] and of op(b) [k, n], beginning at row i, column j and
 * l along k. */
struct block {
    size_t i, j, l, m, n, k;
};

static const elem *a_at(const struct product *x, const struct block *b)
{
    return x->a + (x->transpose_a ? b->l * x->m + b->i : b->i * x->k + b->l);
}

static size_t a_stride(const struct product *x)
{
    return x->transpose_a ? x->m : x->k;
}

struct right {
    const elem *at;
    size_t stride;
};

static struct right right_of(const struct product *x, const struct block *b)
{
    elem *to = x->coded ? x->room + worker() * room_numel(x->k) : NULL;
    if (!x->coded && x->transpose_b) return (struct right){x->b + b->j * x->k + b->l, x->k};
    if (!x->coded) return (struct right){x->b + b->l * x->n + b->j, x->n};
    for (size_t j = 0; j < b->n; j++)
        coded_read(x->coded, x->first_row + b->j + j, b->l, b->k, ELEM_DTYPE, to + j * BLOCK_K);
    return (struct right){to, BLOCK_K};
}

#ifdef PAIRS
/* Strides that keep the rows of a strip out of one set of the L1 cache. */
enum { A_STRIDE = BLOCK_K / 2 + SQUARE, B_STRIDE = BLOCK_K / 2 * SQUARE };

/* A worker's memory. */
struct blocks {
    uint32_t a[TILE_M][A_STRIDE], b[TILE_N / SQUARE][B_STRIDE];
    real c[TILE_M][TILE_N];
};

#ifdef __AMX_BF16__
/* Rows of whole squares: rows from m on are multiplied too, and never read. */
static void multiply_packed(const struct block *b, struct blocks *to)
{
    const size_t pairs = divide_up(b->k, 2 * SQUARE) * SQUARE;
    begin_tiles();
    for (size_t j = 0; j < b->n; j += PAIR_COLUMNS)
        for (size_t i = 0; i < b->m; i += SQUARES_ROWS)
            multiply_squares(&to->c[i][j], TILE_N, to->a[i], A_STRIDE, to->b[j / SQUARE], B_STRIDE,
                             pairs);
    end_tiles();
}
#else
typedef void strip_function(real *c, const uint32_t *a, const uint32_t *b, size_t pairs);
#define STRIP_OF(n)                                                                                \
    static void multiply_##n(real *c, const uint32_t *a, const uint32_t *b, size_t pairs)          \
    {                                                                                              \
        multiply_pairs(c, TILE_N, a, A_STRIDE, b, B_STRIDE, n, pairs);                             \
    }
#define STRIP_ENTRY(n) [n] = multiply_##n,
#define STRIPS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
STRIPS(STRIP_OF)
static strip_function *const strips[MAX_PAIR_ROWS + 1] = {STRIPS(STRIP_ENTRY)};

static void multiply_packed(const struct block *b, struct blocks *to)
{
    for (size_t j = 0; j < b->n; j += PAIR_COLUMNS)
        for (size_t i = 0; i < b->m; i += MAX_PAIR_ROWS)
            strips[min_size(b->m - i, MAX_PAIR_ROWS)](&to->c[i][j], to->a[i], to->b[j / SQUARE],
                                                      divide_up(b->k, 2));
}
#endif

static void pack_a(const struct product *x, const struct block *b, struct blocks *to)
{
    if (x->transpose_a)
        pack_left(to->a[0], A_STRIDE, a_at(x, b), a_stride(x), b->m, b->k);
    else
        for (size_t i = 0; i < b->m; i++)
            copy_pairs(to->a[i], a_at(x, b) + i * a_stride(x), b->k);
}

/* Columns of b and c from n on are multiplied too, and never read. */
static void add_blocks(const struct product *x, const struct block *b, struct blocks *to)
{
    const struct right right = right_of(x, b);
    pack_a(x, b, to);
    pack_right(to->b[0], B_STRIDE, right.at, right.stride, x->transpose_b, b->n, b->k);
    multiply_packed(b, to);
}
#else
/* A worker's memory. */
struct blocks {
    real a[TILE_M * BLOCK_K], b[TILE_N * BLOCK_K], c[TILE_M][TILE_N];
};

static void widen_block(real *to, const elem *from, size_t stride, size_t rows, size_t columns)
{
    for (size_t i = 0; i < rows; i++)
        load_elems(to + i * columns, from + i * stride, columns);
}

static void add_blocks(const struct product *x, const struct block *b, struct blocks *to)
{
    const size_t a_columns = x->transpose_a ? b->m : b->k, b_columns = x->transpose_b ? b->k : b->n;
    const struct right right = right_of(x, b);
    widen_block(to->a, a_at(x, b), a_stride(x), x->transpose_a ? b->k : b->m, a_columns);
    widen_block(to->b, right.at, right.stride, x->transpose_b ? b->n : b->k, b_columns);
    call_gemm(x, b->m, b->n, b->k, 1, to->a, a_columns, to->b, b_columns, 1, to->c[0], TILE_N);
}
#endif

static size_t blocks_bytes(void)
{
    return most_workers() * sizeof(struct blocks);
}

static void multiply_tile(const struct product *x, size_t i0, size_t j0, size_t m, size_t n,
                          void *workspace)
{
    struct blocks *to = (struct blocks *)workspace + worker();
    memset(to->c, 0, m * sizeof *to->c);
    for (size_t l = 0; l < x->k; l += BLOCK_K) {
        const struct block b = {i0, j0, l, m, n, min_size(x->k - l, BLOCK_K)};
        add_blocks(x, &b, to);
    }
    for (size_t i = 0; i < m; i++)
        store_row(x, i0 + i, j0, to->c[i], n);
}
#else
static size_t blocks_bytes(void)
{
    return 0;
}

/* Elements of c in a tile, if there are more than EVEN_TILES tiles; units of
 * its sides. */
enum { TILE_NUMEL = 1 << 19, ROW_UNIT = 8, COLUMN_UNIT = 16 };

static struct tiling cut_into(const struct product *x, size_t tiles_m, size_t tiles_n)
{
    return (struct tiling){round_up(divide_up(x->m, tiles_m), ROW_UNIT),
                           round_up(divide_up(x->n, tiles_n), COLUMN_UNIT)};
}

/* Elements along k that BLAS copies for all tiles: the rows of a once for
 * each column of tiles; the columns of b, which cost more, once for each row
 * of tiles. */
static double copies_of(const struct product *x, struct tiling t)
{
    return (double)divide_up(x->n, t.n) * (double)x->m +
           1.5 * (double)divide_up(x->m, t.m) * (double)x->n;
}

/* Large tiles, of the shape with the fewest copies. */
static struct tiling tiling_of(const struct product *x)
{
    const size_t tiles = round_up(divide_up(x->m * x->n, TILE_NUMEL), EVEN_TILES);
    struct tiling best = cut_into(x, 1, tiles);
    for (size_t tiles_m = 2; tiles_m <= tiles; tiles_m++) {
        const struct tiling t = cut_into(x, tiles_m, tiles / tiles_m);
        if (tiles % tiles_m == 0 && copies_of(x, t) < copies_of(x, best)) best = t;
    }
    return best;
}

/* The tile starts as bias and addend. */
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
    call_gemm(x, m, n, x->k, x->alpha, x->a + (x->transpose_a ? i0 : i0 * x->k),
              x->transpose_a ? x->m : x->k, x->b + (x->transpose_b ? j0 * x->k : j0),
              x->transpose_b ? x->k : x->n, x->bias || x->accumulate, c, x->n);
}
#endif

/* Always with all threads: inside a parallel region OpenBLAS does not divide
 * tiles again. */
static void multiply_tiles(const struct product *x, void *workspace)
{
    const struct tiling t = tiling_of(x);
    const size_t tiles_m = divide_up(x->m, t.m), tiles_n = divide_up(x->n, t.n);
#pragma omp parallel for num_threads(workers()) schedule(dynamic)
    for (size_t tile = 0; tile < tiles_m * tiles_n; tile++) {
        if (work_stopped())
            continue; /* an op may take minutes, and its result is not needed any more */
        const size_t i = tile % tiles_m * t.m, j = tile / tiles_m * t.n;
        multiply_tile(x, i, j, min_size(x->m - i, t.m), min_size(x->n - j, t.n), workspace);
    }
}

/* ---- coded weights ---- */

#ifdef ELEM_IS_16_BITS
static size_t matrix_numel(size_t n, size_t k)
{
    (void)n, (void)k;
    return 0;
}

static void decode_matrix(struct product *x)
{
    (void)x;
}
#else
static size_t matrix_numel(size_t n, size_t k)
{
    return n * k;
}

static void decode_matrix(struct product *x)
{
    if (!x->coded || has_few_rows(x)) return;
#pragma omp parallel for if (x->n * x->k >= WORTH_THREADS)
    for (size_t j = 0; j < x->n; j++)
        coded_read(x->coded, x->first_row + j, 0, x->k, ELEM_DTYPE, x->room + j * x->k);
    x->b = x->room;
    x->coded = NULL;
}
#endif

/* Bytes of a workspace for decoded elements, which begin it. */
static size_t room_bytes(const struct operand *w)
{
    const size_t n = w->shape[w->num_dims - 2], k = w->shape[w->num_dims - 1], unit = 256;
    const size_t rows = most_workers() * room_numel(k), matrix = matrix_numel(n, k);
    return w->coding ? round_up((rows > matrix ? rows : matrix) * sizeof(elem), unit) : 0;
}

/* The workspace behind it. */
static void *rest_of(void *workspace, const struct operand *w)
{
    return w->coding ? (char *)workspace + room_bytes(w) : workspace;
}

/* Makes rows `first` on of a weight the product's b. */
static void take_weight(struct product *x, const struct operand *w, size_t first, void *workspace)
{
    if (!w->coding) {
        x->b = (const elem *)w->data + first * x->k;
        return;
    }
    x->coded = w;
    x->first_row = first;
    x->room = workspace;
    decode_matrix(x);
}

/* ---- a product ---- */

static enum status multiply(const struct product *x, void *workspace, struct error *err)
{
    if (x->m > INT_MAX || x->n > INT_MAX || x->k > INT_MAX)
        return fail(err, ERR_UNSUPPORTED,
                    "matmul: [%zu, %zu] times [%zu, %zu] is too large for BLAS", x->m, x->k, x->k,
                    x->n);
    if (x->m == 0 || x->n == 0) return OK;
    if (has_few_rows(x))
        multiply_few_rows(x);
    else
        multiply_tiles(x, workspace);
    return OK;
}

/* ---- long sums ---- */

/* A product of few elements, each a long sum, is cut along k by its shape
 * alone: for small tiles BLAS copies more than it multiplies. */
enum { PARTS = EVEN_TILES, DEEP_K = 8192, DEEP_NUMEL = 1 << 20 };

#ifdef ELEM_IS_16_BITS
static bool is_deep(const struct product *x)
{
    (void)x;
    return false;
}

static void multiply_parts(const struct product *x, real *parts)
{
    (void)x, (void)parts;
}
#else
static bool is_deep(const struct product *x)
{
    const size_t numel = x->m * x->n;
    return x->k >= DEEP_K && x->k <= INT_MAX && numel > 0 && numel <= DEEP_NUMEL &&
           !has_few_rows(x);
}

/* A part is all of c, summed over [first, first + k). */
static void multiply_part(const struct product *x, real *part, size_t first, size_t k)
{
    call_gemm(x, x->m, x->n, k, 1, x->a + (x->transpose_a ? first * x->m : first),
              x->transpose_a ? x->m : x->k, x->b + (x->transpose_b ? first : first * x->n),
              x->transpose_b ? x->k : x->n, 0, part, x->n);
}

static void add_parts(const struct product *x, real *parts)
{
    const size_t numel = x->m * x->n;
#pragma omp parallel for if (numel >= WORTH_THREADS)
    for (size_t i = 0; i < x->m; i++) {
        real *sums = parts + i * x->n;
        for (size_t part = 1; part < PARTS; part++)
            add_reals(sums, sums + part * numel, x->n);
        store_row(x, i, 0, sums, x->n);
    }
}

static void multiply_parts(const struct product *x, real *parts)
{
    const size_t each = divide_up(x->k, PARTS);
#pragma omp parallel for num_threads(workers()) schedule(dynamic)
    for (size_t part = 0; part < PARTS; part++) {
        const size_t first = part * each;
        if (!work_stopped())
            multiply_part(x, parts + part * x->m * x->n, first, min_size(x->k - first, each));
    }
    add_parts(x, parts);
}
#endif

/* y starts as c, which may lie there. */
static void start_as(const struct operand *y, const struct operand *c)
{
    const size_t bytes = y->type == OPERAND_REAL ? sizeof(real) : sizeof(elem);
    if (c->data && c->data != y->data) memcpy(y->data, c->data, operand_numel(y) * bytes);
}

static struct product matmul_product(const union op_params *p, const struct operand *in,
                                     const struct operand *out)
{
    return (struct product){.a = in[0].data,
                            .bias = in[2].data,
                            .c = out[0].data,
                            .m = out[0].shape[0],
                            .n = out[0].shape[1],
                            .k = in[0].shape[!p->matmul.transpose_a],
                            .transpose_a = p->matmul.transpose_a,
                            .transpose_b = p->matmul.transpose_b,
                            .accumulate = in[3].data != NULL,
                            .c_is_real = out[0].type == OPERAND_REAL,
                            .alpha = (real)p->matmul.alpha};
}

enum status NAME(matmul)(const union op_params *p, const struct operand *in,
                         const struct operand *out, void *workspace, struct error *err)
{
    struct product x = matmul_product(p, in, out);
    void *const rest = rest_of(workspace, in + 1);
    assert(!in[3].data || in[3].type == out[0].type);
    assert(!in[1].coding || p->matmul.transpose_b);
    start_as(out, in + 3);
    take_weight(&x, in + 1, 0, workspace);
    if (!is_deep(&x)) return multiply(&x, rest, err);
    multiply_parts(&x, rest);
    return OK;
}

size_t NAME(matmul_workspace)(const union op_params *p, const struct operand *in,
                              const struct operand *out)
{
    const struct product x = matmul_product(p, in, out);
    return room_bytes(in + 1) + (is_deep(&x) ? PARTS * x.m * x.n * sizeof(real) : blocks_bytes());
}

enum status NAME(grouped_matmul)(const union op_params *p, const struct operand *in,
                                 const struct operand *out, void *workspace, struct error *err)
{
    (void)p;
    const elem *x = in[0].data;
    const int32_t *counts = in[2].data;
    void *const rest = rest_of(workspace, in + 1);
    elem *y = out[0].data;
    const size_t num_experts = in[1].shape[0], n = in[1].shape[1], k = in[1].shape[2];
    for (size_t e = 0, row = 0; e < num_experts; row += (size_t)counts[e], e++) {
        struct product one = {.a = x + row * k,
                              .c = y + row * n,
                              .m = (size_t)counts[e],
                              .n = n,
                              .k = k,
                              .transpose_b = true,
                              .alpha = 1};
        if (counts[e] == 0) continue; /* a matrix that is not decoded */
        take_weight(&one, in + 1, e * n, workspace);
        TRY(multiply(&one, rest, err));
    }
    return OK;
}

size_t NAME(grouped_matmul_workspace)(const union op_params *p, const struct operand *in,
                                      const struct operand *out)
{
    (void)p, (void)out;
    return room_bytes(in + 1) + blocks_bytes();
}

enum status NAME(grouped_dgrad)(const union op_params *p, const struct operand *in,
                                const struct operand *out, void *workspace, struct error *err)
{
    (void)p;
    const elem *dy = in[0].data, *w = in[1].data;
    const int32_t *counts = in[2].data;
    elem *dx = out[0].data;
    const size_t num_experts = in[1].shape[0], n = in[1].shape[1], k = in[1].shape[2];
    for (size_t e = 0, row = 0; e < num_experts; row += (size_t)counts[e], e++) {
        const struct product one = {.a = dy + row * n,
                                    .b = w + e * n * k,
                                    .c = dx + row * k,
                                    .m = (size_t)counts[e],
                                    .n = k,
                                    .k = n,
                                    .alpha = 1};
        TRY(multiply(&one, workspace, err));
    }
    return OK;
}

size_t NAME(grouped_dgrad_workspace)(const union op_params *p, const struct operand *in,
                                     const struct operand *out)
{
    (void)p, (void)in, (void)out;
    return blocks_bytes();
}

/* dw of an expert without rows is dw_sum, or 0: BLAS does not promise that. */
enum status NAME(grouped_wgrad)(const union op_params *p, const struct operand *in,
                                const struct operand *out, void *workspace, struct error *err)
{
    (void)p;
    const elem *dy = in[0].data, *x = in[1].data;
    const int32_t *counts = in[2].data;
    const bool is_real = out[0].type == OPERAND_REAL;
    const size_t num_experts = out[0].shape[0], n = out[0].shape[1], k = out[0].shape[2];
    const size_t bytes = n * k * (is_real ? sizeof(real) : sizeof(elem));
    start_as(out, in + 3);
    for (size_t e = 0, row = 0; e < num_experts; row += (size_t)counts[e], e++) {
        char *dw = (char *)out[0].data + e * bytes;
        const struct product one = {.a = dy + row * n,
                                    .b = x + row * k,
                                    .c = dw,
                                    .m = n,
                                    .n = k,
                                    .k = (size_t)counts[e],
                                    .transpose_a = true,
                                    .accumulate = in[3].data != NULL,
                                    .c_is_real = is_real,
                                    .alpha = 1};
        if (counts[e] > 0)
            TRY(multiply(&one, workspace, err));
        else if (!in[3].data)
            memset(dw, 0, bytes);
    }
    return OK;
}

size_t NAME(grouped_wgrad_workspace)(const union op_params *p, const struct operand *in,
                                     const struct operand *out)
{
    (void)p, (void)in, (void)out;
    return blocks_bytes();
}
