/* grouped_matmul.cu - OP_GROUPED_MATMUL: multiplies each expert's rows by its
 * own matrix, in one launch.
 *
 * 1. bf16 and f16 with k a multiple of 8: tiles on tensor cores, with three
 *    stages, or two if a block's shared memory is too small (99 KB on compute
 *    capability 8.6, 8.9, 12.0).
 * 2. Everything else: plain tiles, 4 x 4 elements a thread. Coded weights are
 *    decoded as they are read. */
#include "kernels/cuda/coded.h"
#include "kernels/cuda/grouped.h"
#include "kernels/device.h"

template <typename E> struct grouped_args {
    const E *x, *w; /* [R, k], [num_experts, n, k] */
    const int32_t *counts;
    E *y; /* [R, n] */
    unsigned num_experts;
    int n, k;
};

/* ---- tiles ---- */

template <int ROWS> using forward_shape = grouped_shape<ROWS, true, true>;

template <int ROWS, int STAGES, typename E>
__global__ void __launch_bounds__(GROUPED_THREADS) multiply_groups(const grouped_args<E> a)
{
    typedef forward_shape<ROWS> shape;
    DYNAMIC_SHARED(shared);
    __shared__ struct schedule s;
    make_schedule(&s, a.counts, a.num_experts, a.n, ROWS, COLUMNS);
    for (int i = (int)blockIdx.x; i < s.first_tile[a.num_experts]; i += (int)gridDim.x) {
        const struct grouped_tile t = find_tile(&s, a.num_experts, i, ROWS, COLUMNS);
        const E *w = a.w + ((size_t)t.expert * a.n + t.column) * a.k;
        const grouped_product<E> p = {a.x + (size_t)t.row * a.k,
                                      w,
                                      (size_t)a.k,
                                      (size_t)a.k,
                                      t.num_rows,
                                      a.n - t.column,
                                      a.k};
        float sum[shape::M][shape::N][4] = {};
        multiply_tile<ROWS, STAGES, true, true>(sum, reinterpret_cast<E *>(shared), p);
        each_pair<shape>(sum, [&](int row, int column, float first, float second) {
            if (row < t.num_rows)
                store_two(a.y + (size_t)(t.row + row) * a.n, t.column + column, a.n, first, second);
        });
    }
}

/* Rows of w from `row` on, `rows` of them. */
template <typename E>
__device__ inline plain_side<E> rows_of_weight(const grouped_args<E> &a, const E *w, size_t row,
                                               int rows)
{
    return {w + row * a.k, (size_t)a.k, 1, rows};
}

template <typename E>
__device__ inline coded_rows<E> rows_of_weight(const grouped_args<E> &, const coded_rows<E> &w,
                                               size_t row, int rows)
{
    return w.rows_from(row, (size_t)rows);
}

template <typename E, typename W>
__global__ void __launch_bounds__(GROUPED_THREADS)
    multiply_groups_plain(const grouped_args<E> a, const W w)
{
    __shared__ struct schedule s;
    make_schedule(&s, a.counts, a.num_experts, a.n, PLAIN_TILE, PLAIN_TILE);
    for (int i = (int)blockIdx.x; i < s.first_tile[a.num_experts]; i += (int)gridDim.x) {
        const struct grouped_tile t = find_tile(&s, a.num_experts, i, PLAIN_TILE, PLAIN_TILE);
        const plain_side<E> x = {a.x + (size_t)t.row * a.k, (size_t)a.k, 1, t.num_rows};
        const auto b = rows_of_weight(a, w, (size_t)t.expert * a.n + t.column, a.n - t.column);
        multiply_plain(x, b, a.k, [&](int row, int column, real_of<E> sum) {
            a.y[(size_t)(t.row + row) * a.n + t.column + column] = from_real<E>(sum);
        });
    }
}

/* ---- the op ---- */

template <typename E, typename W>
static enum status launch_plain(const grouped_args<E> &a, const W &w, size_t rows,
                                struct error *err)
{
    return launch("grouped_matmul", err, multiply_groups_plain<E, W>,
                  grouped_grid(rows, (size_t)a.n, a.num_experts, PLAIN_TILE, PLAIN_TILE),
                  GROUPED_THREADS, 0, a, w);
}

template <int ROWS, int STAGES, typename E>
static enum status launch_stages(const grouped_args<E> &a, size_t rows, struct error *err)
{
    const size_t bytes = STAGES * forward_shape<ROWS>::STAGE_BYTES;
    static bool is_set; /* shared memory has been allowed */
    if (!is_set) TRY(allow_shared("grouped_matmul", multiply_groups<ROWS, STAGES, E>, bytes, err));
    is_set = true;
    return launch("grouped_matmul", err, multiply_groups<ROWS, STAGES, E>,
                  grouped_grid(rows, (size_t)a.n, a.num_experts, ROWS, COLUMNS), GROUPED_THREADS,
                  bytes, a);
}

template <int ROWS, typename E>
static enum status launch_tiles(const grouped_args<E> &a, size_t rows, struct error *err)
{
    return has_room_for<forward_shape<ROWS>>(3) ? launch_stages<ROWS, 3>(a, rows, err)
                                                : launch_stages<ROWS, 2>(a, rows, err);
}

template <typename E> static bool fits_tiles(const grouped_args<E> &a)
{
    return (((uintptr_t)a.x | (uintptr_t)a.w) % 16 == 0) && a.k % 8 == 0 && (uintptr_t)a.y % 4 == 0;
}

/* Low tiles if experts have few rows each, so that reads of matrices are not
 * waited for. */
template <typename E>
static enum status launch_best(const grouped_args<E> &a, size_t rows, struct error *err)
{
    if constexpr (HAS_MMA<E>)
        if (fits_tiles(a))
            return rows <= 64 * (size_t)a.num_experts ? launch_tiles<32>(a, rows, err)
                                                      : launch_tiles<128>(a, rows, err);
    return launch_plain(a, a.w, rows, err);
}

template <typename E>
static struct grouped_args<E> args_of(const struct operand *in, const struct operand *out) {
    struct grouped_args<E> a = {
    };
    a.x = data_of<E>(in[0]);
    a.w = data_of<E>(in[1]);
    a.counts = data_of<int32_t>(in[2]);
    a.y = data_of<E>(out[0]);
    a.num_experts = (unsigned)in[1].shape[0];
    a.n = (int)in[1].shape[1];
    a.k = (int)in[1].shape[2];
    return a;
}

template <typename E>
enum status op_grouped_matmul(OP_ARGUMENTS)
{
    (void)p, (void)workspace;
    const struct grouped_args<E> a = args_of<E>(in, out);
    if (a.num_experts > MAX_GROUPED_EXPERTS)
        return fail(err, ERR_UNSUPPORTED,
                    "grouped_matmul: %u experts exceed the GPU kernels' limit of %d", a.num_experts,
                    MAX_GROUPED_EXPERTS);
    if (in[1].coding) return launch_plain(a, coded_rows_of<E>(in[1]), in[0].shape[0], err);
    return launch_best(a, in[0].shape[0], err);
}

FOR_ALL_TYPES(op_grouped_matmul)

/* ---- named kernels ---- */

template <typename E, int ROWS, int STAGES> static bool takes_stages(WORKSPACE_ARGUMENTS)
{
    const struct grouped_args<E> a = args_of<E>(in, out);
    (void)p;
    return !in[1].coding && a.num_experts <= MAX_GROUPED_EXPERTS && fits_tiles(a) &&
           has_room_for<forward_shape<ROWS>>(STAGES);
}

template <typename E, int ROWS, int STAGES> static enum status multiply_by(OP_ARGUMENTS)
{
    (void)p, (void)workspace;
    return launch_stages<ROWS, STAGES>(args_of<E>(in, out), in[0].shape[0], err);
}

const struct device_kernel grouped_kernels[] = {
    {"low_2_stages", ELEM_BF16, takes_stages<bf16, 32, 2>, {multiply_by<bf16, 32, 2>, NULL}},
    {"low_3_stages", ELEM_BF16, takes_stages<bf16, 32, 3>, {multiply_by<bf16, 32, 3>, NULL}},
    {"high_2_stages", ELEM_BF16, takes_stages<bf16, 128, 2>, {multiply_by<bf16, 128, 2>, NULL}},
    {"high_3_stages", ELEM_BF16, takes_stages<bf16, 128, 3>, {multiply_by<bf16, 128, 3>, NULL}},
    {"low_2_stages", ELEM_F16, takes_stages<f16, 32, 2>, {multiply_by<f16, 32, 2>, NULL}},
    {"low_3_stages", ELEM_F16, takes_stages<f16, 32, 3>, {multiply_by<f16, 32, 3>, NULL}},
    {"high_2_stages", ELEM_F16, takes_stages<f16, 128, 2>, {multiply_by<f16, 128, 2>, NULL}},
    {"high_3_stages", ELEM_F16, takes_stages<f16, 128, 3>, {multiply_by<f16, 128, 3>, NULL}},
    {},
};
