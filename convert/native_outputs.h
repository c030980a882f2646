/* native_outputs.h - a target's native tensors, collected from an export before
 * files are laid out.
 *
 * A target_kind adds the exported native tensors under the names of its files,
 * lays out files by their shapes, then plans the elements of each with
 * native_outputs_fill(). */
#ifndef FERRY_CONVERT_NATIVE_OUTPUTS_H
#define FERRY_CONVERT_NATIVE_OUTPUTS_H

#include "convert/naming.h"

/* The part of a native tensor whose elements come from one logical tensor. */
struct out_part {
    struct native_source source;
    size_t next; /* the tensor's next part; SIZE_MAX: none */
};

struct native_outputs {
    struct target *t;
    struct out_tensors out;
    struct map native_names; /* native name and state -> index */
    struct out_part *parts;
    size_t num_parts, parts_capacity;
};

void native_outputs_init(struct native_outputs *x, struct target *t);
void native_outputs_release(struct native_outputs *x);

/* Adds a native tensor, or a part of one, as `name`; *at (may be NULL) is its
 * index in x->out. ERR_UNSUPPORTED if its parts differ in dtype. */
MUST_CHECK enum status native_outputs_add(struct native_outputs *x, const char *name,
                                          const struct native_output *native, size_t *at,
                                          struct error *err);
/* Makes native tensor `at` one of this name with all elements of a tensor, which
 * must outlive the plan. */
void native_outputs_replace(struct native_outputs *x, size_t at, const char *name,
                            const struct tensor *from);
/* Adds the elements of native tensor `at` to an empty tensor.
 *
 * - order: from flat in the native tensor to flat in the other. */
MUST_CHECK enum status native_outputs_join(const struct native_outputs *x, size_t at,
                                           const struct pair *order, struct tensor *t,
                                           struct error *err);
/* Index of a native tensor (state NULL), or of its state, by the exported name;
 * SIZE_MAX: none. */
size_t native_outputs_find(const struct native_outputs *x, const char *native_name,
                           const char *state);
/* ERR_UNSUPPORTED, naming the first native tensor with missing or repeated
 * elements. */
MUST_CHECK enum status native_outputs_check(const struct native_outputs *x, struct error *err);
/* Plans elements of native tensor `at` for a segment; pair: from flat in the
 * native tensor, nested, to the segment. */
MUST_CHECK enum status native_outputs_fill(struct native_outputs *x, size_t at,
                                           const struct pair *pair, uint32_t segment,
                                           struct error *err);
uint64_t out_tensor_bytes(const struct out_tensor *o);
/* The dtype of most parameter bytes. */
enum dtype native_outputs_main_dtype(const struct native_outputs *x);

#endif
