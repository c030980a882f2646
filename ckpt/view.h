/* view.h - views of a tensor, and the elements that two views share.
 *
 * - *view*: elements of a row-major tensor as a block of axes. Element (i0, i1,
 *   ..) of the block is the tensor's flat element offset + sum of
 *   i[k] * stride[k]. Splitting a dimension ([2I] -> [2, I]), permuting axes and
 *   taking a box give views again: only offset, extents and strides change.
 * - *pair*: two views with equal extents, of tensors a and b; it maps elements
 *   of a to elements of b. A piece of a checkpoint is a pair (logical tensor,
 *   stored bytes); a row of a model map gives pairs (logical tensor, Hugging
 *   Face tensor).
 * - *nested*: the axes of a view go from the largest stride to the smallest,
 *   each stride at least the span of the axes behind it: elements come in
 *   increasing order, each once. Views by rows, columns, heads, gates and
 *   experts are nested. pair_join() needs it of the side that it joins.
 *
 * Resharding is pair_join(): (x, source) and (x, target) give (source, target),
 * in few blocks. All numbers count elements. */
#ifndef FERRY_CKPT_VIEW_H
#define FERRY_CKPT_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/arena.h"
#include "common/status.h"
#include "kernels/cpu/axes.h"

enum { MAX_AXES = 8 };

/* Limit of a tensor: its span fits int64_t, its bytes off_t, in any dtype. */
#define MAX_ELEMENTS (UINT64_C(1) << 58)

struct pair {
    unsigned num_axes; /* 0: one element */
    uint64_t a_offset, b_offset;
    struct axis axes[MAX_AXES];
};

/* A compact pair: a cut tensor has very many, and most of them are runs. */
struct packed_pair {
    uint64_t a_offset, b_offset;
    union {
        uint64_t count;          /* num_axes 0: elements of a run on both sides */
        const struct axis *axes; /* [num_axes], in the arena of pair_pack() */
    };
    uint32_t num_axes;
};

struct packed_pair pair_pack(struct arena *a, const struct pair *p);
struct pair pair_unpack(const struct packed_pair *p);
/* Whether p.a (nested) surely has no element in [first, first + count): cheaper
 * than a join, for a tensor of many pieces. */
bool pair_is_apart(const struct packed_pair *p, uint64_t first, uint64_t count);
/* Whether the pair is one run of whole blocks on both sides; true if `block` is
 * one element. */
bool pair_is_blocks(const struct packed_pair *p, unsigned block);

/* The pair of numel consecutive elements on both sides, from these offsets. */
struct pair pair_whole(uint64_t a_offset, uint64_t b_offset, uint64_t numel);

/* The pair of the box [start, start + extent) of a row-major tensor a of
 * `shape` with the elements of b from b_offset on, b_stride apart. start NULL:
 * all 0. b_stride NULL: row-major over extent. Nested on a. Dimensions of
 * extent 1 take no axis; false if more than MAX_AXES are larger. */
bool pair_of_box(struct pair *out, unsigned num_dims, const uint64_t *shape, const uint64_t *start,
                 const uint64_t *extent, uint64_t b_offset, const uint64_t *b_stride);

uint64_t pair_count(const struct pair *p); /* elements; 0 for an empty one */
/* One past the highest flat element of a, relative to a_offset. 0 for an empty
 * pair. */
uint64_t pair_a_span(const struct pair *p);
/* Whether the fastest axis of a is a slow one of b. */
bool pair_is_transposed(const struct pair *p);
/* The elements of a in p, paired with themselves. */
struct pair pair_onto_itself(const struct pair *p);
void pair_swap(struct pair *p); /* a becomes b and b becomes a; see pair_nest */
/* Drops axes of extent 1, sorts by a's stride, joins axes that continue each
 * other on both sides. False if a's view is then not nested, or spans more than
 * MAX_ELEMENTS. */
bool pair_nest(struct pair *p);
/* pair_nest(); ERR_OURS with `name` if it returns false. */
MUST_CHECK enum status pair_require_nested(struct pair *p, const char *name, struct error *err);
/* pair_swap(), then pair_require_nested(): pairs can be joined on the new a. */
MUST_CHECK enum status pair_turn(struct pair *p, const char *name, struct error *err);

/* Called for each block of a join. */
typedef enum status pair_visit(void *context, const struct pair *p, struct error *err);

/* Visits the elements that views y.a and z.a of one tensor share, as pairs
 * (y.b, z.b), each element in exactly one. Both a sides must be nested.
 *
 * - pair_join() may visit pairs that are not nested.
 * - pair_join_nested() visits nested ones, which can be joined again, or fails
 *   with ERR_OURS.
 * - Strides that divide each other give few blocks, others one for each step of
 *   the larger stride; more than a million steps are ERR_UNSUPPORTED.
 *
 * `name` begins the messages: the tensor, or the operation if the caller names
 * the tensor. */
MUST_CHECK enum status pair_join(const struct pair *y, const struct pair *z, const char *name,
                                 pair_visit *visit, void *context, struct error *err);
MUST_CHECK enum status pair_join_nested(const struct pair *y, const struct pair *z,
                                        const char *name, pair_visit *visit, void *context,
                                        struct error *err);

/* Visits the part of p in elements [first, first + count) of a, as nested pairs
 * (element counted from first, p.b). p.a must be nested. */
MUST_CHECK enum status pair_clip(const struct pair *p, uint64_t first, uint64_t count,
                                 const char *name, pair_visit *visit, void *context,
                                 struct error *err);

/* Whether y.a and z.a share an element; true if the answer takes too long. */
bool pair_overlap(const struct pair *y, const struct pair *z);

/* Whether the a sides of pairs[] tile [0, numel), each element in exactly one.
 * If not: *first_bad is a pair that overlaps an earlier one or leaves the
 * range, num_pairs if elements are missing; *covered counts the elements.
 * Reorders pairs[] by a_offset. */
bool pairs_tile(struct pair *pairs, size_t num_pairs, uint64_t numel, size_t *first_bad,
                uint64_t *covered);

#endif
