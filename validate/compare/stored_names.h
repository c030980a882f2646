/* stored_names.h - the names of a tensor in the files of each side, for users who know these names
 * and not the logical one. */
#ifndef FERRY_VALIDATE_COMPARE_STORED_NAMES_H
#define FERRY_VALIDATE_COMPARE_STORED_NAMES_H

#include "validate/compare/compare.h"

/* "model.layers.3.mlp.{gate,up}_proj.weight"; NULL if the tensor is not on that side, or its only
 * name there is the logical one. In arena a. */
const char *stored_names_text(struct arena *a, const struct compared *t, unsigned side);
/* The same for the stored tensors with different elements; NULL if all have some, or it is not
 * known. */
const char *differing_names_text(struct arena *a, const struct compared *t, unsigned side);

/* A stored tensor that differs, and its first different element. */
struct stored_difference {
    const struct stored_tensor *stored;
    uint64_t first; /* flat in it */
};
/* The stored tensors of one side that differ, in the order of stored_names; in arena a. */
struct stored_difference *stored_differences(struct arena *a, const struct comparison *c,
                                             const struct compared *t, unsigned side,
                                             size_t *count);
/* "model.layers.3.mlp.up_proj.weight [5, 7]": the stored position of the first different element;
 * NULL: not known. */
const char *first_stored_text(struct arena *a, const struct comparison *c, const struct compared *t,
                              unsigned side);

/* A name of t, logical or stored, with * for the numbers of its layer and expert; unchanged if it
 * does not contain them. In arena a. */
const char *starred_name(struct arena *a, const struct compared *t, const char *name);

/* A tensor that differs, or several of one kind that differ alike: their stored names differ only
 * in the numbers of layers and experts, for which * stands. */
struct stored_line {
    const char *logical;
    const char *names[2], *differing[2]; /* NULL as in the functions above */
    const struct compared *first;        /* of the tensors */
    size_t num_tensors;
};
/* The lines for the tensors that do not pass and have a stored name other than the logical one on
 * some side, in their order; in the comparison's arena. */
struct stored_line *stored_lines(struct comparison *c, size_t *count);

/* "[12, 3]": the coordinates of element `index` in a tensor of this shape; in arena a. */
const char *coordinates_text(struct arena *a, unsigned num_dims, const uint64_t *shape,
                             uint64_t index);

#endif
