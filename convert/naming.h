/* naming.h - translates a program's native tensors (ckpt/catalog.h) to logical
 * tensors and back.
 *
 *   hf        Hugging Face's names, by the rows of a family's model map
 *   megatron  keys of Megatron-Core: layers and experts stacked or not
 *             (megatron_names.h)
 *   plain     without a config: a native tensor is a logical tensor of the same name
 *
 * A naming knows no files. A source_kind makes native tensors from a format's
 * stored tensors; a target_kind distributes native tensors to a format's
 * files. */
#ifndef FERRY_CONVERT_NAMING_H
#define FERRY_CONVERT_NAMING_H

#include "convert/source_kind.h"
#include "convert/target.h"

struct naming_import {
    struct checkpoint *c; /* has native tensors, config and params */
    const struct source_options *o;
    const struct model_map *map;       /* the family's; used by hf only */
    struct quantization *quantization; /* of encoded weights (map/quantization.h); NULL */
    bool moe_layers_known;             /* the config says which layers have experts */
};

struct naming_export {
    struct target *t; /* megatron: after megatron_begin() */
    unsigned stacks;  /* megatron: STACK_* (ckpt/param.h), axes of native tensors */
};

/* A written native tensor, or the part of it that comes from one logical
 * tensor. */
struct native_output {
    const char *name;
    const char *state; /* optimizer state, as "exp_avg"; NULL: the parameter */
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape; /* of the whole native tensor */
    struct native_source {
        const struct tensor *logical;
        struct pair pair; /* a: flat in logical, nested; b: flat in native */
    } parts[2];           /* the tensor, and rows of padding */
    unsigned num_parts;
};
typedef enum status export_visit(void *context, const struct native_output *native,
                                 struct error *err);

struct naming {
    /* Adds logical tensors to the catalog. Lists unexpected native tensors in
     * c->gaps, and missing logical ones where the naming knows them. */
    enum status (*import)(const struct naming_import *x, struct error *err);
    /* Then adds logical tensors of native tensors with a state; calls
     * states_unread() (convert/states.h) for unreadable ones. */
    enum status (*import_states)(const struct naming_import *x, struct error *err);
    /* Calls visit for each pair of a parameter and a native tensor with
     * elements of it, in the program's order of parameters; then for the
     * parameter's states that the target has (target_state). Lists gaps of the
     * target. Arguments of visit are valid during the call only. */
    enum status (*export)(const struct naming_export *x, export_visit *visit, void *context,
                          struct error *err);
};
extern const struct naming naming_hf, naming_megatron, naming_plain;

#endif
