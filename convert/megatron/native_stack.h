/* native_stack.h - a Megatron checkpoint's native tensor as a stack of
 * parameters: its first axes count layers and experts. */
#ifndef FERRY_CONVERT_MEGATRON_NATIVE_STACK_H
#define FERRY_CONVERT_MEGATRON_NATIVE_STACK_H

#include "ckpt/checkpoint.h"
#include "convert/megatron/megatron_names.h"

/* A stack; a single parameter is a stack of one. A key of a half (_w, _v) or of
 * a section (NAME.SECTION) has some rows of the parameter. */
struct native_stack {
    const struct native_tensor *native;
    struct dist_key key;
    unsigned lead;            /* axes before the parameter's */
    uint64_t layers, experts; /* sizes of these axes; 1 without one */
    const uint64_t *shape;    /* of one parameter */
    unsigned num_dims;
    uint64_t numel;
    uint64_t first_row, rows; /* it is rows from first_row on of a parameter of `rows` */
};

/* ERR_CORRUPT if the tensor has too few dimensions for its name, or too many
 * empty members; ERR_UNSUPPORTED if a section has other rows than the config
 * gives it. */
MUST_CHECK enum status native_stack_make(struct checkpoint *c, const struct native_tensor *native,
                                         struct native_stack *out, struct error *err);

/* Whether a stored name is program state (RNG, extra states, optimizer), not a
 * parameter. */
bool native_name_is_state(const char *name);
bool native_is_parameter(const struct native_tensor *native);

/* The stored name for messages: of the first part if ranks split the tensor. */
const char *native_stored_name(const struct checkpoint *c, const struct native_tensor *native);

#endif
