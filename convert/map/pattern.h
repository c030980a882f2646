/* pattern.h - how a tensor's dimensions are made of named axes, as model maps write it.
 *
 *   "h i"                            two dimensions
 *   "(g (r d)[0 of s]) h"            the rows are groups; in the s rows of each, r*d from 0 on
 *   "(g d[r*d of s]) h"              and d from r*d on
 *   "1[e of E] i[i of 2*i] h"        of a stack of E, number e; the second half of its rows
 *
 * A dimension is an axis, a number 1, or axes in parentheses, slowest first. [OFFSET of TOTAL]
 * behind one places it in a larger extent. Axis names, offsets and totals are expressions (expr.h)
 * over the same names. Two patterns with the same axes say which elements of one tensor are which
 * of the other: a pair. */
#ifndef FERRY_CONVERT_MAP_PATTERN_H
#define FERRY_CONVERT_MAP_PATTERN_H

#include "ckpt/view.h"
#include "convert/map/expr.h"

struct pattern_axis {
    const char *name; /* in the pattern's text */
    size_t name_length;
    uint64_t extent, stride;
};

/* A pattern with numbers put in: a view of a row-major tensor. */
struct pattern_view {
    unsigned num_axes, num_dims;
    struct pattern_axis axes[MAX_AXES];
    uint64_t offset;
    uint64_t shape[MAX_AXES];
};

/* ERR_USAGE where the text is no pattern, a name is unknown or a part does not fit its total. */
MUST_CHECK enum status pattern_eval(const char *text, const struct expr_names *names,
                                    struct pattern_view *out, struct error *err);

/* The pair of two views that have the same axes, in any order; nested on a. ERR_USAGE where they
 * have not. */
MUST_CHECK enum status pattern_pair(const struct pattern_view *a, const struct pattern_view *b,
                                    struct pair *out, struct error *err);

#endif
