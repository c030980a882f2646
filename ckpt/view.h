/* view.h - ways to see a tensor, and what two of them have in common.
 *
 * A *view* sees some elements of a row-major tensor as a block of axes: element (i0, i1, ..) of the
 * block is the tensor's flat element offset + sum of i[k] * stride[k]. Splitting a dimension
 * ([2I] -> [2, I]), permuting axes and taking a box each give a view again: only offset, extents
 * and strides change. A *pair* is two views with the same extents, of tensor a and of tensor b: it
 * says which elements of a are which elements of b. A piece of a checkpoint is a pair (logical
 * tensor, stored bytes), a row of a model map gives pairs (logical tensor, Hugging Face tensor).
 *
 * Everything is in elements. A view is *nested* when its axes go from the largest stride to the
 * smallest and each stride is at least the span of the axes behind it; then the elements come in
 * increasing order and none comes twice. All views that rows and columns, heads, gates and experts
 * are cut by are nested; pair_join() needs the side that it joins on to be.
 *
 * Resharding is pair_join(): (x, source) with (x, target) gives (source, target), as few blocks. */
#ifndef FERRY_CKPT_VIEW_H
#define FERRY_CKPT_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/arena.h"
#include "common/status.h"
#include "kernels/cpu/axes.h"

enum { MAX_AXES = 8 };

/* No tensor has more elements: so their spans fit int64_t, and their bytes off_t, in any dtype. */
#define MAX_ELEMENTS (UINT64_C(1) << 58)

struct pair {
    unsigned num_axes; /* 0: one element */
    uint64_t a_offset, b_offset;
    struct axis axes[MAX_AXES];
};

/* A pair as it is kept in memory, where a cut tensor has very many: most of them are runs. */
struct packed_pair {
    uint64_t a_offset, b_offset;
    union {
        uint64_t count;          /* num_axes 0: a run of so many elements on both sides */
        const struct axis *axes; /* [num_axes], in the arena of pair_pack() */
    };
    uint32_t num_axes;
};

struct packed_pair pair_pack(struct arena *a, const struct pair *p);
struct pair pair_unpack(const struct packed_pair *p);
/* Whether p.a, which is nested, certainly has no element in [first, first + count): cheaper than a
 * join, for the many pieces of a tensor that a panel of it does not meet. */
bool pair_is_apart(const struct packed_pair *p, uint64_t first, uint64_t count);

/* The pair of all numel elements of a tensor with themselves, starting at the offsets. */
struct pair pair_whole(uint64_t a_offset, uint64_t b_offset, uint64_t numel);

/* The pair of the box [start, start + extent) of a row-major tensor a of `shape` with elements of b
 * that lie by b_stride from b_offset (b_stride NULL: row-major over extent). start NULL: all 0.
 * The result is nested on a. num_dims is at most MAX_AXES; dimensions of extent 1 take no axis, so
 * tensors of higher rank fit while no more than MAX_AXES of their dimensions are larger: false
 * where they do not. */
bool pair_of_box(struct pair *out, unsigned num_dims, const uint64_t *shape, const uint64_t *start,
                 const uint64_t *extent, uint64_t b_offset, const uint64_t *b_stride);

uint64_t pair_count(const struct pair *p); /* elements; 0 for an empty one */
/* One past the highest flat element of a, relative to a_offset. 0 for an empty pair. */
uint64_t pair_a_span(const struct pair *p);
/* Whether the fast axis of a is a slow one of b. */
bool pair_is_transposed(const struct pair *p);
/* The elements of a that p has, paired with themselves. */
struct pair pair_onto_itself(const struct pair *p);
void pair_swap(struct pair *p); /* a becomes b and b becomes a; see pair_nest */
/* Drops axes of extent 1, sorts by the stride of a, joins axes that continue each other on both
 * sides. Returns false if a's view is not nested then, or spans more than MAX_ELEMENTS. */
bool pair_nest(struct pair *p);
/* pair_nest(); ERR_OURS with the tensor's name if a's view is not nested. */
MUST_CHECK enum status pair_require_nested(struct pair *p, const char *name, struct error *err);
/* Swaps a and b, and nests the new a so that pairs can be joined on it; ERR_OURS if it cannot be
 * nested. */
MUST_CHECK enum status pair_turn(struct pair *p, const char *name, struct error *err);

/* Called for each block of a join. */
typedef enum status pair_visit(void *context, const struct pair *p, struct error *err);

/* The elements that views y.a and z.a of one tensor share, as pairs (y.b, z.b), each shared element
 * in exactly one of them. Both a sides must be nested. The pairs need not be nested:
 * pair_join_nested() gives nested ones, which can be joined again, and ERR_OURS where there are
 * none. Few blocks come out where strides divide each other; where they do not, one comes for each
 * step of the larger stride, and more than a million steps are ERR_UNSUPPORTED. `name` begins the
 * messages: the tensor's, or what is done where a caller names the tensor. */
MUST_CHECK enum status pair_join(const struct pair *y, const struct pair *z, const char *name,
                                 pair_visit *visit, void *context, struct error *err);
MUST_CHECK enum status pair_join_nested(const struct pair *y, const struct pair *z,
                                        const char *name, pair_visit *visit, void *context,
                                        struct error *err);

/* The part of p in elements [first, first + count) of a, as nested pairs (element counted from
 * first, p.b). p.a must be nested. */
MUST_CHECK enum status pair_clip(const struct pair *p, uint64_t first, uint64_t count,
                                 const char *name, pair_visit *visit, void *context,
                                 struct error *err);

/* Whether y.a and z.a share an element; also true if finding out would take too long. */
bool pair_overlap(const struct pair *y, const struct pair *z);

/* Whether the a sides of pairs[] tile [0, numel): each element in exactly one. If not, *first_bad
 * is the index of a pair that overlaps an earlier one or leaves the range, or num_pairs where
 * elements are missing; *covered is the number of elements. pairs[] is reordered by a_offset. */
bool pairs_tile(struct pair *pairs, size_t num_pairs, uint64_t numel, size_t *first_bad,
                uint64_t *covered);

#endif
