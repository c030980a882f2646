#include "ckpt/block.h"

#include <math.h>
#include <string.h>

#include "common/checked.h"
#include "kernels/cpu/cast.h"

struct block block_of(const struct pair *p, bool file_is_a)
{
    struct pair q = *p;
    if (!file_is_a) pair_swap(&q);
    (void)pair_nest(&q); /* sorts; a view that repeats elements need not nest */
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

/* Takes `extent` steps of axis k. */
static struct block axis_part(const struct block *b, unsigned k, uint64_t extent)
{
    struct block part = *b;
    part.axes[k].extent = extent;
    if (extent > 1) return part;
    part.num_axes--;
    memmove(part.axes + k, part.axes + k + 1, (part.num_axes - k) * sizeof *part.axes);
    return part;
}

struct block block_part(const struct block *b, uint64_t extent)
{
    return axis_part(b, 0, extent);
}

enum status block_split(const struct block *b, uint64_t file, uint64_t buffer, block_take *take,
                        void *context, struct error *err)
{
    bool taken = true;
    TRY(take(context, b, file, buffer, &taken, err));
    if (taken) return OK;
    uint64_t extent = b->axes[0].extent, half = (extent + 1) / 2;
    for (uint64_t i = 0; i < extent; i += half) {
        struct block part = block_part(b, min_u64(half, extent - i));
        TRY(block_split(&part, file + i * b->axes[0].a_stride, buffer + i * b->axes[0].b_stride,
                        take, context, err));
    }
    return OK;
}

/* ---- casts ---- */

enum {
    TILE = 4096,      /* elements cast at once where they are not a run */
    LONG_RUN = 512,   /* elements that are better cast in place */
    WIDEST_FLOAT = 8, /* bytes */
};

void cast_counts_join(struct cast_counts *c, const struct cast_counts *other)
{
    c->elements += other->elements;
    c->changed += other->changed;
    c->overflowed += other->overflowed;
}

bool sum_is_exact(double x, double add)
{
    const double back = x + add - add;
    return isnan(x) || isinf(x) || (!(back < x) && !(back > x) && signbit(back) == signbit(x));
}

/* Casts sums, and counts those that change value: rounded in F64, or in the
 * target's dtype. */
static void cast_sums(const struct casting *c, char *to, const void *from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++, to += dtype_bytes(c->to_dtype)) {
        const double x = dtype_load(c->from_dtype, from, i), sum = x + c->add;
        const bool changed =
            cast_elements(to, c->to_dtype, &sum, DT_F64, 1) > 0 || !sum_is_exact(x, c->add);
        if (!c->counts) continue;
        c->counts->elements += changed;
        c->counts->changed += changed;
        c->counts->overflowed += cast_overflows(to, c->to_dtype, &sum, DT_F64, 1);
    }
}

static void cast_run(const struct casting *c, void *to, const void *from, uint64_t count)
{
    if (c->add != 0) {
        cast_sums(c, to, from, count);
        return;
    }
    uint64_t changed = cast_elements(to, c->to_dtype, from, c->from_dtype, count);
    if (!c->counts) return;
    c->counts->elements += count;
    c->counts->changed += changed;
    c->counts->overflowed += cast_overflows(to, c->to_dtype, from, c->from_dtype, count);
}

/* Casts at most TILE elements. */
static void cast_tile(const struct casting *c, const struct block *b, void *to, const void *from)
{
    char packed[TILE * WIDEST_FLOAT], cast[TILE * WIDEST_FLOAT];
    struct axis packing[MAX_AXES], unpacking[MAX_AXES];
    uint64_t count = 1;
    for (unsigned k = b->num_axes; k-- > 0; count *= b->axes[k].extent) {
        packing[k] = (struct axis){b->axes[k].extent, b->axes[k].a_stride, count};
        unpacking[k] = (struct axis){b->axes[k].extent, count, b->axes[k].b_stride};
    }
    copy_axes(packed, from, dtype_bytes(c->from_dtype), b->num_axes, packing);
    cast_run(c, cast, packed, count);
    copy_axes(to, cast, dtype_bytes(c->to_dtype), b->num_axes, unpacking);
}

/* Elements of the runs common to both sides. */
static uint64_t common_run(const struct block *b)
{
    const struct axis *last = b->num_axes ? &b->axes[b->num_axes - 1] : NULL;
    return last && last->a_stride == 1 && last->b_stride == 1 ? last->extent : 1;
}

/* Runs stay whole. A transpose is halved along its longest axis, so that tiles
 * are squares. */
static unsigned axis_to_halve(const struct block *b)
{
    unsigned axes = b->num_axes - (common_run(b) > 1 && b->num_axes > 1), longest = 0;
    for (unsigned k = 1; k < axes; k++)
        if (b->axes[k].extent > b->axes[longest].extent) longest = k;
    return longest;
}

/* Casts a block that begins at element `from` of one array and `to` of the
 * other. */
static void cast_block(const struct casting *c, const struct block *b, uint64_t from, uint64_t to)
{
    char *first = (char *)c->to + dtype_run_bytes(c->to_dtype, to);
    const char *stored = (const char *)c->from + dtype_run_bytes(c->from_dtype, from);
    uint64_t count = block_count(b);
    if (block_is_run(b)) {
        cast_run(c, first, stored, count);
    } else if (count <= TILE && common_run(b) < LONG_RUN) {
        cast_tile(c, b, first, stored);
    } else {
        const unsigned k = axis_to_halve(b);
        const struct axis axis = b->axes[k];
        uint64_t half = (axis.extent + 1) / 2;
        for (uint64_t i = 0; i < axis.extent; i += half) {
            struct block part = axis_part(b, k, min_u64(half, axis.extent - i));
            cast_block(c, &part, from + i * axis.a_stride, to + i * axis.b_stride);
        }
    }
}

void cast_pair(const struct casting *c, const struct pair *p)
{
    struct block b = block_of(p, true);
    if (c->to_dtype == c->from_dtype && c->add == 0) {
        size_t bytes = dtype_bytes(c->to_dtype);
        copy_axes((char *)c->to + p->b_offset * bytes, (const char *)c->from + p->a_offset * bytes,
                  bytes, p->num_axes, p->axes);
        return;
    }
    cast_block(c, &b, p->a_offset, p->b_offset);
}
