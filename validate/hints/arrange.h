/* arrange.h - other orders of a tensor's elements that occur in practice, a row
 * each, as pairs of patterns (convert/map/pattern.h); and rearranged tensors. */
#ifndef FERRY_VALIDATE_HINTS_ARRANGE_H
#define FERRY_VALIDATE_HINTS_ARRANGE_H

#include "ckpt/checkpoint.h"
#include "validate/compare/sides.h"

/* One arrangement: the order of b relative to a. */
struct arrangement {
    const char *id;              /* "transposed" */
    const char *text;            /* "B is A transposed", in arena a of the call */
    struct pair parts[MAX_AXES]; /* a: flat in A's tensor, nested; b: flat in B's */
    unsigned num_parts;
};

/* Calls visit for each arrangement that fits the shape, the likeliest first:
 * for some shapes several are equal, and the first name is reported. Any status
 * except OK from visit ends the calls. heads: of the attention; all 0: tries
 * the heads of common models. */
typedef enum status arrangement_visit(void *context, const struct arrangement *x,
                                      struct error *err);
MUST_CHECK enum status arrangements(struct arena *a, const char *name, unsigned num_dims,
                                    const uint64_t *shape, const struct heads *heads,
                                    arrangement_visit *visit, void *context, struct error *err);

/* Makes a tensor of shape `shape` from t's elements, rearranged by the parts.
 * False if it needs more than MAX_ARRANGED_PIECES pieces. */
enum { MAX_ARRANGED_PIECES = 1 << 16 };
bool tensor_arranged(struct arena *a, const struct tensor *t, const struct pair *parts,
                     size_t num_parts, unsigned num_dims, const uint64_t *shape,
                     struct tensor *out);
/* The box of t that begins at start[] (NULL: all 0). False as above. */
bool tensor_box(struct arena *a, const struct tensor *t, const uint64_t *start,
                const uint64_t *extent, struct tensor *out);
/* A tensor of zeros. */
struct tensor tensor_of_zeros(struct arena *a, enum dtype dtype, unsigned num_dims,
                              const uint64_t *shape);

#endif
