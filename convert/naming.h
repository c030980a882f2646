/* naming.h - what programs call tensors: own ones (ckpt/catalog.h) become logical ones.
 *
 *   hf        Hugging Face's names, by the rows of a family's model map
 *   megatron  keys of Megatron-Core: layers and experts stacked or not (megatron_names.h)
 *
 * Names know nothing of files: what makes own tensors of these is a source_kind. */
#ifndef FERRY_CONVERT_NAMING_H
#define FERRY_CONVERT_NAMING_H

#include "convert/source.h"

struct naming_import {
    struct checkpoint *c; /* its own tensors are there, its config and params are known */
    const struct source_options *o;
    const struct model_map *map; /* of the family; hf alone wants it */
    bool quantised;              /* by config.json; for messages */
    bool moe_layers_known;       /* the config says which layers have experts */
};

struct naming {
    const char *name;
    /* Makes logical tensors of own ones; lists what is unexpected, and of what the naming knows to
     * be wanted what is missing. */
    enum status (*import)(const struct naming_import *x, struct error *err);
};
extern const struct naming naming_hf, naming_megatron;

#endif
