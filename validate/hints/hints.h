/* hints.h - why two tensors differ, where it is one of the things that happen to checkpoints.
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
 * Each is tried on every tensor that differs, on a few elements first; it is told where all
 * elements were read and prove it. The first of the tables that holds is told. Besides, where the
 * vocabulary is not known and padding may be what differs, that is told. */
#ifndef FERRY_VALIDATE_HINTS_HINTS_H
#define FERRY_VALIDATE_HINTS_HINTS_H

#include "validate/compare/compare.h"

/* What is known of one tensor. */
struct hint {
    const char *id, *text; /* "transposed", "B is A transposed"; in the comparison's arena */
};

/* Fills in hint of the tensors that do not pass, and c->hints: sentences that sum them up. */
MUST_CHECK enum status hints_find(struct comparison *c, struct error *err);

#endif
