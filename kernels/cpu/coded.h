/* coded.h - weights in memory as codes with scales (struct weight_coding of
 * kernels/ops.h).
 *
 * Each row has its own scales, so rows can be placed in any order. */
#ifndef FERRY_KERNELS_CPU_CODED_H
#define FERRY_KERNELS_CPU_CODED_H

#include "kernels/ops.h"

/* Sets bits and offsets, from c's other members. False if rows of codes are not
 * whole bytes. */
bool coding_place(struct weight_coding *c, uint64_t rows, uint64_t cols);
/* Writes the codes' numbers into a weight's data. */
void coding_write_numbers(const struct weight_coding *c, void *data);
/* Scales of a row. */
static inline uint64_t coding_groups(const struct weight_coding *c, uint64_t cols)
{
    return cols / c->group + (cols % c->group != 0);
}

/* Decodes elements [col, col + count) of a row, counted over all matrices, to
 * to[count]. */
void coded_read(const struct operand *w, uint64_t row, uint64_t col, uint64_t count,
                enum dtype dtype, void *to);

#endif
