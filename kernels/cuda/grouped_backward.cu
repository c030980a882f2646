/* grouped_backward.cu - OP_GROUPED_DGRAD and OP_GROUPED_WGRAD.
 *
 * dx = dy w[e] has the forward's tiles, found on the device. dw[e] = dy^T x has
 * tiles by its shape, one block each, which sums over its expert's rows in one
 * order. Both run on tensor cores for bf16 and f16 with n and k multiples of 8,
 * else in plain tiles. */
#include "kernels/cuda/grouped.h"

template <typename E> struct grouped_dgrad_args {
    const E *dy, *w; /* [R, n], [num_experts, n, k] */
    const int32_t *counts;
    E *dx; /* [R, k] */
    unsigned num_experts;
    int n, k;
};

template <typename E, typename G> struct grouped_wgrad_args {
    const E *dy, *x; /* [R, n], [R, k] */
    const int32_t *counts;
    const G *dw_sum; /* [num_experts, n, k]; may be NULL, or dw */
    G *dw;
    int n, k;
};

/* ---- dx ---- */

template <int ROWS> using dgrad_shape = grouped_shape<ROWS, true, false>;

template <int ROWS, int STAGES, typename E>
__global__ void __launch_bounds__(GROUPED_THREADS) dgrad_groups(const grouped_dgrad_args<E> a)
{
    typedef dgrad_shape<ROWS> shape;
    DYNAMIC_SHARED(shared);
    __shared__ struct schedule s;
    make_schedule(&s, a.counts, a.num_experts, a.k, ROWS, COLUMNS);
    for (int i = (int)blockIdx.x; i < s.first_tile[a.num_experts]; i += (int)gridDim.x) {
        const struct grouped_tile t = find_tile(&s, a.num_experts, i, ROWS, COLUMNS);
        const E *w = a.w + (size_t)t.expert * a.n * a.k + t.column;
        const grouped_product<E> p = {a.dy + (size_t)t.row * a.n,
                                      w,
                                      (size_t)a.n,
                                      (size_t)a.k,
                                      t.num_rows,
                                      a.k - t.column,
                                      a.n};
        float sum[shape::M][shape::N][4] = {};
        multiply_tile<ROWS, STAGES, true, false>(sum, reinterpret_cast<E *>(shared), p);
        each_pair<shape>(sum, [&](int row, int column, float first, float second) {
            if (row < t.num_rows)
                store_two(a.dx + (size_t)(t.row + row) * a.k, t.column + column, a.k, first,
                          second);
        });
    }
}

template <typename E>
__global__ void __launch_bounds__(GROUPED_THREADS) dgrad_groups_plain(const grouped_dgrad_args<E> a)
{
    __shared__ struct schedule s;
    make_schedule(&s, a.counts, a.num_experts, a.k, PLAIN_TILE, PLAIN_TILE);
    for (int i = (int)blockIdx.x; i < s.first_tile[a.num_experts]; i += (int)gridDim.x) {
        const struct grouped_tile t = find_tile(&s, a.num_experts, i, PLAIN_TILE, PLAIN_TILE);
        const E *w = a.w + (size_t)t.expert * a.n * a.k + t.column;
        const plain_side<E> dy = {a.dy + (size_t)t.row * a.n, (size_t)a.n, 1, t.num_rows};
        const plain_side<E> b = {w, 1, (size_t)a.k, a.k - t.column};
        multiply_plain(dy, b, a.n, [&](int row, int column, real_of<E> sum) {
            a.dx[(size_t)(t.row + row) * a.k + t.column + column] = from_real<E>(sum);
        });
    }
}

template <typename E>
static enum status launch_dgrad_plain(const grouped_dgrad_args<E> &a, size_t rows,
                                      struct error *err)
{
    return launch("grouped_dgrad", err, dgrad_groups_plain<E>,
                  grouped_grid(rows, (size_t)a.k, a.num_experts, PLAIN_TILE, PLAIN_TILE),
                  GROUPED_THREADS, 0, a);
}

template <int ROWS, int STAGES, typename E>
static enum status launch_dgrad_stages(const grouped_dgrad_args<E> &a, size_t rows,
                                       struct error *err)
{
    const size_t bytes = STAGES * dgrad_shape<ROWS>::STAGE_BYTES;
    static bool is_set; /* shared memory has been allowed */
    if (!is_set) TRY(allow_shared("grouped_dgrad", dgrad_groups<ROWS, STAGES, E>, bytes, err));
    is_set = true;
    return launch("grouped_dgrad", err, dgrad_groups<ROWS, STAGES, E>,
                  grouped_grid(rows, (size_t)a.k, a.num_experts, ROWS, COLUMNS), GROUPED_THREADS,
                  bytes, a);
}

template <int ROWS, typename E>
static enum status launch_dgrad_tiles(const grouped_dgrad_args<E> &a, size_t rows,
                                      struct error *err)
{
    return has_room_for<dgrad_shape<ROWS>>(3) ? launch_dgrad_stages<ROWS, 3>(a, rows, err)
                                              : launch_dgrad_stages<ROWS, 2>(a, rows, err);
}

template <typename E>
static bool fits_tiles(int n, int k, std::initializer_list<const void *> places)
{
    return n % 8 == 0 && fits_width<E>((size_t)k, places);
}

/* Low tiles if experts have few rows each, as in the forward. */
template <typename E>
static enum status launch_dgrad(const grouped_dgrad_args<E> &a, size_t rows, struct error *err)
{
    if constexpr (HAS_MMA<E>)
        if (fits_tiles<E>(a.n, a.k, {a.dy, a.w, a.dx}))
            return rows <= 64 * (size_t)a.num_experts ? launch_dgrad_tiles<32>(a, rows, err)
                                                      : launch_dgrad_tiles<128>(a, rows, err);
    return launch_dgrad_plain(a, rows, err);
}

template <typename E> enum status op_grouped_dgrad(OP_ARGUMENTS)
{
    grouped_dgrad_args<E> a = {};
    (void)p, (void)workspace;
    a.dy = data_of<E>(in[0]);
    a.w = data_of<E>(in[1]);
    a.counts = data_of<int32_t>(in[2]);
    a.dx = data_of<E>(out[0]);
    a.num_experts = (unsigned)in[1].shape[0];
    a.n = (int)in[1].shape[1];
    a.k = (int)in[1].shape[2];
    if (a.num_experts > MAX_GROUPED_EXPERTS)
        return fail(err, ERR_UNSUPPORTED,
                    "grouped_dgrad: %u experts exceed the GPU kernels' limit of %d", a.num_experts,
                    MAX_GROUPED_EXPERTS);
    return launch_dgrad(a, in[0].shape[0], err);
}

/* ---- dw ---- */

/* A block's work: rows of n and columns of k of an expert's matrix. */
struct wgrad_tile {
    size_t expert, first_row; /* in dy and x */
    int row, column, depth;
};

/* Blocks of one expert are neighbours. Whole warps call it. */
__device__ inline struct wgrad_tile wgrad_tile_of(const int32_t *counts, int n, int k, int rows,
                                                  int columns)
{
    const int across = tiles_of(k, columns), each = tiles_of(n, rows) * across;
    const int expert = (int)blockIdx.x / each, number = (int)blockIdx.x % each;
    struct wgrad_tile t;
    t.expert = (size_t)expert;
    t.first_row = counted_rows(counts, (unsigned)expert, 0);
    t.row = number / across * rows;
    t.column = number % across * columns;
    t.depth = counts[expert];
    return t;
}

typedef grouped_shape<128, false, false> wgrad_shape;

template <int STAGES, typename E, typename G>
__global__ void __launch_bounds__(GROUPED_THREADS) wgrad_groups(const grouped_wgrad_args<E, G> a)
{
    const int ROWS = 128;
    DYNAMIC_SHARED(shared);
    const struct wgrad_tile t = wgrad_tile_of(a.counts, a.n, a.k, ROWS, COLUMNS);
    const grouped_product<E> p = {a.dy + t.first_row * a.n + t.row,
                                  a.x + t.first_row * a.k + t.column,
                                  (size_t)a.n,
                                  (size_t)a.k,
                                  a.n - t.row,
                                  a.k - t.column,
                                  t.depth};
    float sum[wgrad_shape::M][wgrad_shape::N][4] = {};
    multiply_tile<ROWS, STAGES, false, false>(sum, reinterpret_cast<E *>(shared), p);
    each_pair<wgrad_shape>(sum, [&](int row, int column, float first, float second) {
        const size_t at = (t.expert * a.n + t.row + row) * a.k + t.column + column;
        float before[2] = {0, 0};
        if (t.row + row >= a.n || t.column + column >= a.k) return;
        if (a.dw_sum) load_reals<G, 2>(before, a.dw_sum + at);
        store_reals<G, 2>(a.dw + at, {before[0] + first, before[1] + second});
    });
}

template <typename E, typename G>
__global__ void __launch_bounds__(GROUPED_THREADS)
    wgrad_groups_plain(const grouped_wgrad_args<E, G> a)
{
    const struct wgrad_tile t = wgrad_tile_of(a.counts, a.n, a.k, PLAIN_TILE, PLAIN_TILE);
    const plain_side<E> dy = {a.dy + t.first_row * a.n + t.row, 1, (size_t)a.n, a.n - t.row};
    const plain_side<E> x = {a.x + t.first_row * a.k + t.column, 1, (size_t)a.k, a.k - t.column};
    multiply_plain(dy, x, t.depth, [&](int row, int column, real_of<E> sum) {
        const size_t at = (t.expert * a.n + t.row + row) * a.k + t.column + column;
        a.dw[at] = from_real<G>(sum + (a.dw_sum ? to_real(a.dw_sum[at]) : 0));
    });
}

static dim3 wgrad_grid(size_t num_experts, int n, int k, int rows, int columns)
{
    return dim3((unsigned)(num_experts * blocks_for((size_t)n, (size_t)rows) *
                           blocks_for((size_t)k, (size_t)columns)));
}

template <typename E, typename G>
static enum status launch_wgrad_plain(const grouped_wgrad_args<E, G> &a, size_t num_experts,
                                      struct error *err)
{
    return launch("grouped_wgrad", err, wgrad_groups_plain<E, G>,
                  wgrad_grid(num_experts, a.n, a.k, PLAIN_TILE, PLAIN_TILE), GROUPED_THREADS, 0, a);
}

template <int STAGES, typename E, typename G>
static enum status launch_wgrad_stages(const grouped_wgrad_args<E, G> &a, size_t num_experts,
                                       struct error *err)
{
    const size_t bytes = STAGES * wgrad_shape::STAGE_BYTES;
    static bool is_set; /* shared memory has been allowed */
    if (!is_set) TRY(allow_shared("grouped_wgrad", wgrad_groups<STAGES, E, G>, bytes, err));
    is_set = true;
    return launch("grouped_wgrad", err, wgrad_groups<STAGES, E, G>,
                  wgrad_grid(num_experts, a.n, a.k, 128, COLUMNS), GROUPED_THREADS, bytes, a);
}

template <typename E, typename G>
static enum status launch_wgrad(const grouped_wgrad_args<E, G> &a, size_t num_experts,
                                struct error *err)
{
    if constexpr (HAS_MMA<E>)
        if (fits_tiles<E>(a.n, a.k, {a.dy, a.x, a.dw, a.dw_sum}))
            return has_room_for<wgrad_shape>(3) ? launch_wgrad_stages<3>(a, num_experts, err)
                                                : launch_wgrad_stages<2>(a, num_experts, err);
    return launch_wgrad_plain(a, num_experts, err);
}

template <typename E, typename G> static enum status run_wgrad(OP_ARGUMENTS)
{
    grouped_wgrad_args<E, G> a = {};
    (void)p, (void)workspace;
    a.dy = data_of<E>(in[0]);
    a.x = data_of<E>(in[1]);
    a.counts = data_of<int32_t>(in[2]);
    a.dw_sum = data_of<G>(in[3]);
    a.dw = data_of<G>(out[0]);
    a.n = (int)out[0].shape[1];
    a.k = (int)out[0].shape[2];
    return launch_wgrad(a, out[0].shape[0], err);
}

template <typename E> enum status op_grouped_wgrad(OP_ARGUMENTS)
{
    return BY_TYPE(run_wgrad, E, out[0])(p, in, out, workspace, err);
}

FOR_ALL_TYPES(op_grouped_dgrad)
FOR_ALL_TYPES(op_grouped_wgrad)
