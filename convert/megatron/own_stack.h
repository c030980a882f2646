/* own_stack.h - an own tensor of a Megatron checkpoint as a stack of parameters: its first axes
 * count layers and experts. */
#ifndef FERRY_CONVERT_MEGATRON_OWN_STACK_H
#define FERRY_CONVERT_MEGATRON_OWN_STACK_H

#include "ckpt/checkpoint.h"
#include "convert/megatron/megatron_names.h"

/* A stack; a tensor that is one parameter is a stack of one. */
struct own_stack {
    const struct own_tensor *own;
    struct dist_key key;
    unsigned lead;            /* axes before the parameter's own */
    uint64_t layers, experts; /* sizes of these axes; 1 if it has no such axis */
    const uint64_t *shape;    /* of one parameter */
    unsigned num_dims;
    uint64_t numel;
};

/* ERR_CORRUPT if the tensor has fewer dimensions than its name needs, or too many empty members. */
MUST_CHECK enum status own_stack_make(struct checkpoint *c, const struct own_tensor *own,
                                      struct own_stack *out, struct error *err);

/* Whether a stored name is of the program's state (RNG, extra states, optimizer), and so of no
 * parameter. */
bool own_name_is_state(const char *name);
bool own_is_parameter(const struct own_tensor *own);

/* The name for messages: the stored name, of the first part if ranks have cut the tensor. */
const char *own_stored_name(const struct checkpoint *c, const struct own_tensor *own);

#endif
