/* naming.h - translates between a program's own tensors (ckpt/catalog.h) and logical tensors, in
 * both directions.
 *
 *   hf        Hugging Face's names, by the rows of a family's model map
 *   megatron  keys of Megatron-Core: layers and experts stacked or not (megatron_names.h)
 *   plain     none: an own tensor is a logical one, under its own name, where no config says of
 *             which model it is
 *
 * A naming knows no files. A source_kind makes own tensors from the stored ones of a format; a
 * target_kind distributes own tensors to the files of a format. */
#ifndef FERRY_CONVERT_NAMING_H
#define FERRY_CONVERT_NAMING_H

#include "convert/source_kind.h"
#include "convert/target.h"

struct naming_import {
    struct checkpoint *c; /* has own tensors, config and params */
    const struct source_options *o;
    const struct model_map *map; /* the family's; used by hf only */
    bool quantised;              /* config.json says so: shapes may differ from the map's */
    bool moe_layers_known;       /* the config says which layers have experts */
};

struct naming_export {
    struct target *t; /* megatron: after megatron_begin() */
    unsigned stacks;  /* megatron: STACK_* (ckpt/param.h), the axes that own tensors have */
};

/* The part of a written own tensor whose elements come from one logical tensor. */
struct own_output {
    const char *name;
    const char *state; /* the optimizer state "exp_avg" and the like; NULL: the parameter itself */
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape; /* of the whole own tensor */
    struct own_source {
        const struct tensor *logical;
        struct pair pair; /* a: flat in the logical tensor, nested; b: flat in the own one */
    } parts[2];           /* the tensor, and rows of padding */
    unsigned num_parts;
};
typedef enum status export_visit(void *context, const struct own_output *own, struct error *err);

struct naming {
    /* Adds the logical tensors to the catalog. Lists unexpected own tensors in c->gaps, and missing
     * logical tensors if the naming knows which there should be. */
    enum status (*import)(const struct naming_import *x, struct error *err);
    /* Then adds the logical tensors of own tensors with a state. Calls states_unread()
     * (convert/states.h) for those that it cannot read. */
    enum status (*import_states)(const struct naming_import *x, struct error *err);
    /* Calls visit for each pair of a parameter and an own tensor that holds elements of it, in the
     * order in which the naming's program lists parameters; after it for the states of the
     * parameter that the target has (target_state). Lists gaps of the target. The arguments
     * of visit are valid during the call only. */
    enum status (*export)(const struct naming_export *x, export_visit *visit, void *context,
                          struct error *err);
};
extern const struct naming naming_hf, naming_megatron, naming_plain;

#endif
