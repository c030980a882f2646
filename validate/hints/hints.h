/* hints.h - explains why two tensors differ, if the cause is one that is common in checkpoints.
 *
 *   values        only the sign of zero or the bits of NaN; one side is a constant, or zero
 *                 wherever they differ; only rounding; one added or taken away; a factor, or one
 *                 for each row; bytes swapped
 *   arrangements  transposed; q, k and v in another order, or their names exchanged; rotary halves
 *                 interleaved; gate and up swapped or interleaved: the tables of arrange.c
 *   extents       leading rows equal, the others added or cut
 *   slices        rows, or experts of a stack, permuted
 *   names         a tensor, an expert, a layer that stands under the name of another
 *
 * Each is tested on a few elements of every tensor that differs, then on all. The first hint in the
 * tables that holds for all elements is reported. A further hint tells that the vocabulary size is
 * not known and that the difference may be padding. */
#ifndef FERRY_VALIDATE_HINTS_HINTS_H
#define FERRY_VALIDATE_HINTS_HINTS_H

#include "validate/compare/compare.h"

/* The explanation of one tensor that differs. */
struct hint {
    const char *id, *text; /* "transposed", "B is A transposed"; in the comparison's arena */
};

/* Sets `hint` of the tensors that do not pass, and fills c->hints with lines that sum them up. */
MUST_CHECK enum status hints_find(struct comparison *c, struct error *err);

#endif
