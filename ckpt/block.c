#include "ckpt/block.h"

#include <string.h>

struct block block_of(const struct pair *p, bool file_is_a)
{
    struct pair q = *p;
    if (!file_is_a) pair_swap(&q);
    (void)pair_nest(&q); /* sorts; a view that repeats elements is not nested, and need not be */
    struct block block = {.num_axes = q.num_axes};
    memcpy(block.axes, q.axes, sizeof block.axes);
    return block;
}

uint64_t block_count(const struct block *b)
{
    uint64_t n = 1;
    for (unsigned k = 0; k < b->num_axes; k++)
        n *= b->axes[k].extent;
    return n;
}

uint64_t block_span(const struct block *b)
{
    uint64_t span = 1;
    for (unsigned k = 0; k < b->num_axes; k++)
        span += (b->axes[k].extent - 1) * b->axes[k].a_stride;
    return span;
}

bool block_is_run(const struct block *b)
{
    return b->num_axes == 0 ||
           (b->num_axes == 1 && b->axes[0].a_stride == 1 && b->axes[0].b_stride == 1);
}

uint64_t block_file_run(const struct block *b)
{
    uint64_t run = 1;
    for (unsigned k = b->num_axes; k-- > 0 && b->axes[k].a_stride == run;)
        run *= b->axes[k].extent;
    return run;
}

struct block block_part(const struct block *b, uint64_t extent)
{
    struct block part = *b;
    part.axes[0].extent = extent;
    if (extent == 1) memmove(part.axes, part.axes + 1, --part.num_axes * sizeof *part.axes);
    return part;
}
