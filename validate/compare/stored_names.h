/* stored_names.h - what a tensor is called in the files of each side, for those who know these
 * names and not the logical one. */
#ifndef FERRY_VALIDATE_COMPARE_STORED_NAMES_H
#define FERRY_VALIDATE_COMPARE_STORED_NAMES_H

#include "validate/compare/compare.h"

/* "model.layers.3.mlp.{gate,up}_proj.weight"; NULL: it has no name but the logical one there, or is
 * not on that side. In arena a. */
const char *stored_names_text(struct arena *a, const struct compared *t, unsigned side);
/* The same of those that have elements that differ; NULL where all have, or it is not known. */
const char *differing_names_text(struct arena *a, const struct compared *t, unsigned side);

/* A stored tensor that differs, and its first element that does. */
struct stored_difference {
    const struct stored_tensor *stored;
    uint64_t first; /* flat in it */
};
/* Those of a side, in the order of stored_names; in arena a. */
struct stored_difference *stored_differences(struct arena *a, const struct comparison *c,
                                             const struct compared *t, unsigned side,
                                             size_t *count);
/* "model.layers.3.mlp.up_proj.weight [5, 7]": where the first element that differs is stored; NULL:
 * not known. */
const char *first_stored_text(struct arena *a, const struct comparison *c, const struct compared *t,
                              unsigned side);

/* A name of t, logical or stored, with * for the numbers of its layer and expert; the name itself
 * where it does not have these. In arena a. */
const char *starred_name(struct arena *a, const struct compared *t, const char *name);

/* Tensors that differ alike: of one kind, stored under names that differ in the numbers of layers
 * and experts only, for which * stands; or one tensor. */
struct stored_line {
    const char *logical;
    const char *names[2], *differing[2]; /* NULL as above */
    const struct compared *first;        /* of the tensors */
    size_t num_tensors;
};
/* Of the tensors that do not pass and have another name on some side, in their order; in the
 * comparison's arena. */
struct stored_line *stored_lines(struct comparison *c, size_t *count);

/* "[12, 3]": the coordinates of element `index` in a tensor of this shape; in arena a. */
const char *coordinates_text(struct arena *a, unsigned num_dims, const uint64_t *shape,
                             uint64_t index);

#endif
