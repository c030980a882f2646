/* module_names.h - names of a model that is part of another module.
 *
 * A trainer keeps the model in a module of its own, so that all parameters have
 * its attribute in front:
 *
 *   model.              Lightning, Composer (any name that the user chose)
 *   pretrained_model.   TRL's models with a value head
 *   _forward_module.    Fabric
 *   base_model.model.   PEFT
 *
 * The prefix is not listed anywhere. It is the one behind which all parameters
 * of the model map exist, if they do not without it. */
#ifndef FERRY_CONVERT_HF_MODULE_NAMES_H
#define FERRY_CONVERT_HF_MODULE_NAMES_H

#include "convert/naming.h"

/* Names of parameters, and the model that they should be of. */
struct module_search {
    const struct model_map *map;
    const struct model_config *config;
    const struct arg_list *allow_missing;
    struct hf_names names; /* .has finds a name among names[] of a search */
    struct arena *arena;
};

/* Sets *prefix to that of the model's names, "" if they have none or are
 * incomplete. ERR_UNSUPPORTED if there are two models, or a parameter exists
 * without the prefix, too. */
MUST_CHECK enum status module_prefix_find(const struct module_search *x, const char *const *names,
                                          size_t count, const char **prefix, struct error *err);

/* Strips wrappers (convert/wrapper_names.h) and the prefix from the names of
 * all native tensors and from those that groups of parameters list; notes both.
 * ERR_UNSUPPORTED if two names become equal, or if there are LoRA adapters. */
MUST_CHECK enum status module_names_strip(const struct naming_import *import, struct error *err);

#endif
