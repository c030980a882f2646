/* parts.h - the stored tensors of a logical tensor: which of them have different elements, and at
 * which position of a stored tensor an element lies. */
#ifndef FERRY_VALIDATE_COMPARE_PARTS_H
#define FERRY_VALIDATE_COMPARE_PARTS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "ckpt/checkpoint.h"

/* The stored tensor in which an element of a logical one lies. */
struct stored_element {
    const struct stored_tensor *stored;
    uint64_t index; /* the element's flat index in the stored tensor */
};

/* Finds the stored tensor of an element. False if the element is not stored, or its position cannot
 * be told. */
bool stored_element_of(const struct checkpoint *c, const struct tensor *t, uint64_t element,
                       struct stored_element *out);

/* The parts of one side's tensor, while panels of both sides are compared. */
struct parts {
    const struct tensor *tensor;
    size_t *name_of_piece;   /* [num_pieces], into stored_names; SIZE_MAX: not known */
    _Atomic uint64_t *first; /* [num_stored_names]: the first element that differs, of the logical
                              * tensor; UINT64_MAX: none */
    atomic_bool lost;        /* gave up because it would take too long: nothing is known */
};

/* Prepares the parts of tensor t of side c, in arena a. */
void parts_init(struct parts *p, struct arena *a, const struct checkpoint *c,
                const struct tensor *t);
/* Records which elements of a panel differ: elements [low, low + count) of the logical tensor on
 * both sides, of element_bytes each. From any thread. */
void parts_add(struct parts *p, const void *a, const void *b, size_t element_bytes, uint64_t low,
               uint64_t count);

#endif
