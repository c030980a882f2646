/* columns.h - sums over rows, column by column. Their order depends on shapes
 * alone, so equal numbers give equal bits: many rows are summed in parts, and
 * the parts in order. */
#ifndef FERRY_KERNELS_CUDA_COLUMNS_H
#define FERRY_KERNELS_CUDA_COLUMNS_H

#include <algorithm>

#include "kernels/cuda/cuda.h"

enum { COLUMN_WARPS = 8, COLUMN_THREADS = COLUMN_WARPS * WARP, MIN_PART_ROWS = 32 };

/* Rows of a part for at most `most` parts; the resulting number of parts. */
static inline size_t rows_of_part(size_t rows, size_t most)
{
    return std::max<size_t>(MIN_PART_ROWS, (rows + most - 1) / most);
}

static inline size_t parts_of(size_t rows, size_t most)
{
    return std::max<size_t>(1, blocks_for(rows, rows_of_part(rows, most)));
}

/* y[part, column] = y_sum[column] + sum of x over the part's rows. A block has
 * WARP * N columns of part blockIdx.y; its warps take rows in turn. */
template <typename X, typename Y, int N>
__global__ void __launch_bounds__(COLUMN_THREADS)
    sum_columns(const X *x, const Y *y_sum, Y *y, size_t rows, size_t columns, size_t part_rows)
{
    typedef real_of<X> real;
    __shared__ real sums[COLUMN_WARPS][WARP * N];
    const size_t first = (size_t)blockIdx.x * WARP * N, at = first + lane_id() * N;
    const size_t begin = blockIdx.y * part_rows, end = min(rows, begin + part_rows);
    real sum[N] = {}, v[N];
    if (at < columns) {
#pragma unroll 4
        for (size_t row = begin + warp_id(); row < end; row += COLUMN_WARPS) {
            load_reals<X, N>(v, x + row * columns + at);
#pragma unroll
            for (int j = 0; j < N; j++)
                sum[j] += v[j];
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++)
        sums[warp_id()][lane_id() * N + j] = sum[j];
    __syncthreads();
    const size_t column = first + threadIdx.x;
    if (threadIdx.x >= WARP * N || column >= columns) return;
    real total = 0;
    for (int w = 0; w < COLUMN_WARPS; w++)
        total += sums[w][threadIdx.x];
    if (y_sum) total += to_real(y_sum[column]);
    y[blockIdx.y * columns + column] = from_real<Y>(total);
}

/* x [rows, columns] to y [parts, columns]; y_sum may be NULL, or y. */
template <typename X, typename Y>
enum status launch_columns(const char *op, const X *x, const Y *y_sum, Y *y, size_t rows,
                           size_t columns, size_t parts, struct error *err)
{
    const bool wide = fits_width<X>(columns, {x});
    const size_t part_rows = (rows + parts - 1) / parts;
    const unsigned blocks = blocks_for(columns, (size_t)WARP * (wide ? WIDTH<X> : 1));
    return launch(op, err, wide ? sum_columns<X, Y, WIDTH<X>> : sum_columns<X, Y, 1>,
                  dim3(blocks, (unsigned)parts), COLUMN_THREADS, 0, x, y_sum, y, rows, columns,
                  part_rows);
}

#endif
