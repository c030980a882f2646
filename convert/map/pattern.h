/* pattern.h - a tensor's dimensions as named axes: the patterns of model maps. */
#ifndef FERRY_CONVERT_MAP_PATTERN_H
#define FERRY_CONVERT_MAP_PATTERN_H

#include "ckpt/view.h"
#include "convert/map/expr.h"

struct pattern_axis {
    const char *name; /* points into the pattern's text */
    size_t name_length;
    uint64_t extent, stride;
};

/* An evaluated pattern: a view of a row-major tensor. */
struct pattern_view {
    unsigned num_axes, num_dims;
    struct pattern_axis axes[MAX_AXES];
    uint64_t offset;
    uint64_t shape[MAX_AXES];
};

/* Evaluates a pattern. ERR_USAGE if the text is not a pattern, a name is
 * unknown or a part exceeds its total. */
MUST_CHECK enum status pattern_eval(const char *text, const struct expr_names *names,
                                    struct pattern_view *out, struct error *err);

/* The pair of two views with the same axes, in any order; nested on a.
 * ERR_USAGE if their axes differ. */
MUST_CHECK enum status pattern_pair(const struct pattern_view *a, const struct pattern_view *b,
                                    struct pair *out, struct error *err);

#endif
