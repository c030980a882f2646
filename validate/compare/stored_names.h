/* stored_names.h - names of a tensor in the files of each side, for users who
 * do not know the logical name. */
#ifndef FERRY_VALIDATE_COMPARE_STORED_NAMES_H
#define FERRY_VALIDATE_COMPARE_STORED_NAMES_H

#include "validate/compare/compare.h"

/* "model.layers.3.mlp.{gate,up}_proj.weight"; NULL if that side lacks the
 * tensor or stores it under its logical name. In arena a. */
const char *stored_names_text(struct arena *a, const struct compared *t, unsigned side);
/* The same for differing stored tensors only; NULL if all differ, or not known. */
const char *differing_names_text(struct arena *a, const struct compared *t, unsigned side);

/* A differing stored tensor, and its first different element. */
struct stored_difference {
    const struct stored_tensor *stored;
    uint64_t first; /* flat in it */
};
/* Differing stored tensors of one side, in the order of stored_names; in arena
 * a. */
struct stored_difference *stored_differences(struct arena *a, const struct comparison *c,
                                             const struct compared *t, unsigned side,
                                             size_t *count);
/* "model.layers.3.mlp.up_proj.weight [5, 7]": stored position of the first
 * different element; NULL: not known. */
const char *first_stored_text(struct arena *a, const struct comparison *c, const struct compared *t,
                              unsigned side);

/* A logical or stored name of t, with * for the numbers of its layer and
 * expert; unchanged without such numbers. In arena a. */
const char *starred_name(struct arena *a, const struct compared *t, const char *name);

/* One or several differing tensors whose stored names differ only in numbers of
 * layers and experts, replaced by *. */
struct stored_line {
    const char *logical;
    const char *names[2], *differing[2]; /* NULL as in the functions above */
    const struct compared *first;        /* of the tensors */
    size_t num_tensors;
};
/* Lines for failing tensors with a stored name other than the logical one on
 * some side, in order; in the comparison's arena. */
struct stored_line *stored_lines(struct comparison *c, size_t *count);

/* "[12, 3]": the coordinates of element `index` in a tensor of this shape; in
 * arena a. */
const char *coordinates_text(struct arena *a, unsigned num_dims, const uint64_t *shape,
                             uint64_t index);

#endif
