/* block.h - a pair of which one side lies in a file and the other in a buffer, while it is copied.
 *
 * Axes are sorted by the file's stride, largest first; a_stride is the file's, b_stride the
 * buffer's. */
#ifndef FERRY_CKPT_BLOCK_H
#define FERRY_CKPT_BLOCK_H

#include "ckpt/view.h"

struct block {
    unsigned num_axes;
    struct axis axes[MAX_AXES];
};

/* file_is_a: which side of the pair is the file's. */
struct block block_of(const struct pair *p, bool file_is_a);
uint64_t block_count(const struct block *b);
/* Elements of the file from the first to the last of the block. */
uint64_t block_span(const struct block *b);
/* Elements of the longest runs that the file has of the block. */
uint64_t block_file_run(const struct block *b);
/* Whether file and buffer hold the block as one run in the same order. */
bool block_is_run(const struct block *b);
/* `extent` steps of the block's slowest axis. */
struct block block_part(const struct block *b, uint64_t extent);

#endif
