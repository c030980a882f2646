/* parts.h - the stored tensors of a logical tensor: which of them differ, and
 * the position of an element in them. */
#ifndef FERRY_VALIDATE_COMPARE_PARTS_H
#define FERRY_VALIDATE_COMPARE_PARTS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "ckpt/checkpoint.h"

/* An element of a logical tensor, in its stored tensor. */
struct stored_element {
    const struct stored_tensor *stored;
    uint64_t index; /* flat, in the stored tensor */
};

/* Finds the stored tensor of an element. False if the element is not stored or
 * its position is unknown. */
bool stored_element_of(const struct checkpoint *c, const struct tensor *t, uint64_t element,
                       struct stored_element *out);

/* The parts of one side's tensor during a comparison. */
struct parts {
    const struct tensor *tensor;
    size_t *name_of_piece;   /* [num_pieces], into stored_names; SIZE_MAX: not known */
    _Atomic uint64_t *first; /* [num_stored_names]: the first differing element, as an index of
                              * the logical tensor; UINT64_MAX: none */
    atomic_bool lost;        /* gave up, since it would take too long: nothing is known */
};

/* Prepares the parts of tensor t of side c, in arena a. */
void parts_init(struct parts *p, struct arena *a, const struct checkpoint *c,
                const struct tensor *t);
/* Records differing elements of a panel: elements [low, low + count) of the
 * logical tensor, of element_bytes each, on side A and B. From any thread. */
void parts_add(struct parts *p, const void *a, const void *b, size_t element_bytes, uint64_t low,
               uint64_t count);

#endif
