/* block.h - a pair between a file and a buffer, while elements are copied or
 * cast.
 *
 * Axes are sorted by the file's stride, largest first; a_stride is the file's,
 * b_stride the buffer's. */
#ifndef FERRY_CKPT_BLOCK_H
#define FERRY_CKPT_BLOCK_H

#include "ckpt/view.h"
#include "common/dtype.h"

struct block {
    unsigned num_axes;
    struct axis axes[MAX_AXES];
};

/* file_is_a: side a of the pair is the file's, else side b. */
struct block block_of(const struct pair *p, bool file_is_a);
uint64_t block_count(const struct block *b);
/* Elements of the file from the block's first to its last. */
uint64_t block_span(const struct block *b);
/* Elements of the longest runs of the block in the file. */
uint64_t block_file_run(const struct block *b);
/* Whether the block is one run, in the same order, in file and buffer. */
bool block_is_run(const struct block *b);
/* Takes `extent` steps of the block's slowest axis. */
struct block block_part(const struct block *b, uint64_t extent);

/* Counts of casts; overflowed: finite elements that became infinite. */
struct cast_counts {
    uint64_t elements, changed, overflowed;
};

void cast_counts_join(struct cast_counts *c, const struct cast_counts *other);

/* A cast between arrays of two dtypes. */
struct casting {
    void *to;
    const void *from;
    enum dtype to_dtype, from_dtype;
    struct cast_counts *counts; /* increased; NULL: not counted */
    double add;                 /* added to each element, in F64; exact sums are not counted */
};
/* Whether the number comes back exactly, sign of zero included, when `add` is
 * taken from x + add. */
bool sum_is_exact(double x, double add);
/* Casts the elements of a pair from array a, `from`, to array b, `to`. Equal
 * dtypes are copied, and not counted, unless a number is added. */
void cast_pair(const struct casting *c, const struct pair *p);

/* Copies a block from element `file` of the file and `buffer` of the buffer on,
 * or sets *taken (true before the call) to false if it is too large for one
 * copy. */
typedef enum status block_take(void *context, const struct block *b, uint64_t file, uint64_t buffer,
                               bool *taken, struct error *err);
/* Calls take for the block. If it is not taken, does the same for each half, in
 * the order of the file. */
MUST_CHECK enum status block_split(const struct block *b, uint64_t file, uint64_t buffer,
                                   block_take *take, void *context, struct error *err);

#endif
