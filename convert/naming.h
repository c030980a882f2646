/* naming.h - what programs call tensors: own ones (ckpt/catalog.h) become logical ones, and back.
 *
 *   hf        Hugging Face's names, by the rows of a family's model map
 *   megatron  keys of Megatron-Core: layers and experts stacked or not (megatron_names.h)
 *
 * Names know nothing of files: what makes own tensors of these is a source_kind, what deals them to
 * files a target_kind. */
#ifndef FERRY_CONVERT_NAMING_H
#define FERRY_CONVERT_NAMING_H

#include "convert/source_kind.h"
#include "convert/target.h"

struct naming_import {
    struct checkpoint *c; /* its own tensors are there, its config and params are known */
    const struct source_options *o;
    const struct model_map *map; /* of the family; hf alone wants it */
    bool quantised;              /* by config.json: shapes may be other than the map's */
    bool moe_layers_known;       /* the config says which layers have experts */
};

struct naming_export {
    struct target *t; /* megatron: its layout is known, and rows of padding are made */
    unsigned stacks;  /* megatron: STACK_* (ckpt/param.h), the axes that own tensors have */
};

/* What one logical tensor gives of an own one that is written. */
struct own_output {
    const char *name;
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
    /* Makes logical tensors of own ones; lists what is unexpected, and of what the naming knows to
     * be wanted what is missing. */
    enum status (*import)(const struct naming_import *x, struct error *err);
    /* Calls visit for what each parameter gives of each own tensor, in the order in which the
     * naming's program has parameters; lists gaps of the target. What is passed is valid during the
     * call. */
    enum status (*export)(const struct naming_export *x, export_visit *visit, void *context,
                          struct error *err);
};
extern const struct naming naming_hf, naming_megatron;

#endif
