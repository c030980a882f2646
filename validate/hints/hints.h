/* hints.h - explains the difference of two tensors by a cause common in
 * checkpoints.
 *
 *   values        only the sign of zero or the bits of NaN; one side is a constant, or zero
 *                 wherever they differ; only rounding; plus or minus one; a factor, or one for
 *                 each row; bytes swapped
 *   decodings     of encoded weights: without scales, divided by them, with the
 *                 halves of bytes swapped
 *   arrangements  transposed; q, k and v in another order, or their names exchanged; rotary halves
 *                 interleaved; gate and up swapped or interleaved: the tables of arrange.c
 *   extents       leading rows equal, the others added or cut
 *   slices        rows, or experts of a stack, permuted
 *   names         a tensor, an expert or a layer under the name of another
 *
 * Each is tested on a few elements of every differing tensor, then on all. The
 * first in the tables that holds for all elements is reported. Another hint
 * tells that the difference may be padding, if the vocabulary size is not
 * known. */
#ifndef FERRY_VALIDATE_HINTS_HINTS_H
#define FERRY_VALIDATE_HINTS_HINTS_H

#include "validate/compare/compare.h"

/* The explanation of a differing tensor. */
struct hint {
    const char *id, *text; /* "transposed", "B is A transposed"; in the comparison's arena */
};

/* Sets `hint` of failing tensors, and fills c->hints with lines that sum them
 * up. */
MUST_CHECK enum status hints_find(struct comparison *c, struct error *err);

#endif
