/* row_sums.h - sums over rows of arrays, equal for any number of threads: rows
 * are cut into blocks by their number alone; each block is summed in REAL, and
 * block sums are added in double, in order. */
#ifndef FERRY_KERNELS_CPU_OPS_ROW_SUMS_H
#define FERRY_KERNELS_CPU_OPS_ROW_SUMS_H

#include "kernels/cpu/ops/ops_internal.h"

/* Fewest rows of a block; largest number of blocks; columns added at once. */
enum { LEAST_BLOCK_ROWS = 32, MOST_ROW_BLOCKS = 256, SUM_COLUMNS = 256 };

struct row_blocks {
    size_t num_rows, rows, count; /* rows in total, in a block; number of blocks */
};

static inline struct row_blocks row_blocks_of(size_t num_rows)
{
    const size_t even = (num_rows + MOST_ROW_BLOCKS - 1) / MOST_ROW_BLOCKS;
    const size_t rows = even > LEAST_BLOCK_ROWS ? even : LEAST_BLOCK_ROWS;
    return (struct row_blocks){num_rows, rows, (num_rows + rows - 1) / rows};
}

static inline size_t row_block_end(const struct row_blocks *b, size_t block)
{
    return min_size((block + 1) * b->rows, b->num_rows);
}

/* Stores columns [first, first + n), n up to SUM_COLUMNS, of the sum of `count`
 * rows of partial sums, `stride` apart. */
static inline void store_block_sums(const struct gradient *to, const real *partial, size_t count,
                                    size_t stride, size_t first, size_t n)
{
    double total[SUM_COLUMNS] = {0};
    real sum[SUM_COLUMNS];
    for (size_t b = 0; b < count; b++)
        for (size_t i = 0; i < n; i++)
            total[i] += (double)partial[b * stride + first + i];
    for (size_t i = 0; i < n; i++)
        sum[i] = (real)total[i];
    gradient_store(to, first, sum, n);
}

/* Stores the sums of all columns. */
static inline void store_row_sums(const struct gradient *to, const real *partial, size_t count,
                                  size_t stride, size_t columns)
{
#pragma omp parallel for if (count * columns >= WORTH_THREADS)
    for (size_t i = 0; i < columns; i += SUM_COLUMNS)
        store_block_sums(to, partial, count, stride, i, min_size(columns - i, SUM_COLUMNS));
}

#endif
