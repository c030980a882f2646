/* own_outputs.h - the own tensors of a target, collected from an export before files are laid out.
 *
 * A target_kind adds what its naming exports, each own tensor under the name that its file has for
 * it; lays out files by their shapes; then plans the elements of each with own_outputs_fill(). */
#ifndef FERRY_CONVERT_OWN_OUTPUTS_H
#define FERRY_CONVERT_OWN_OUTPUTS_H

#include "convert/naming.h"

/* The part of an own tensor whose elements come from one logical tensor. */
struct out_part {
    struct own_source source;
    size_t next; /* the tensor's next part; SIZE_MAX: none */
};

struct own_outputs {
    struct target *t;
    struct out_tensors out;
    struct map own_names; /* own name and state -> index */
    struct out_part *parts;
    size_t num_parts, parts_capacity;
};

void own_outputs_init(struct own_outputs *x, struct target *t);
void own_outputs_release(struct own_outputs *x);

/* Adds an own tensor, or a part of one, as `name`; *at (may be NULL) is its index in x->out.
 * ERR_UNSUPPORTED if its parts differ in dtype. */
MUST_CHECK enum status own_outputs_add(struct own_outputs *x, const char *name,
                                       const struct own_output *own, size_t *at, struct error *err);
/* The index of the state (NULL: the parameter) of an own tensor by the name that the export gave;
 * SIZE_MAX: there is none. */
size_t own_outputs_find(const struct own_outputs *x, const char *own_name, const char *state);
/* ERR_UNSUPPORTED naming the first own tensor of which elements are missing, or there twice. */
MUST_CHECK enum status own_outputs_check(const struct own_outputs *x, struct error *err);
/* Plans elements of own tensor `at` for a segment: pair maps (flat in the own tensor, nested) to
 * elements of the segment. */
MUST_CHECK enum status own_outputs_fill(struct own_outputs *x, size_t at, const struct pair *pair,
                                        uint32_t segment, struct error *err);
uint64_t out_tensor_bytes(const struct out_tensor *o);
/* The dtype of most bytes of parameters. */
enum dtype own_outputs_main_dtype(const struct own_outputs *x);

#endif
