/* dcp_entry.h - what an entry of a DCP folder is: a parameter, a state of the optimizer, a setting
 * of a group of its parameters, or another program's business.
 *
 * An entry has a path of keys in the nested state dict that was saved (stored.nested_path). States
 * and settings are known by their place in it, in two forms
 * (torch/distributed/checkpoint/state_dict.py, flatten_optimizer_state_dict=False and True):
 *
 *   1. ..., "state", PARAMETER, STATE              ..., "param_groups", NUMBER, KEY
 *   2. ..., "state.PARAMETER.STATE"                ..., "param_groups.PARAMETER.KEY"
 *   3. ..., "param_groups"                         one object: the list of all groups (torch < 2.4)
 *
 * All other tensors are parameters: the last key is the name. */
#ifndef FERRY_CONVERT_DCP_ENTRY_H
#define FERRY_CONVERT_DCP_ENTRY_H

#include <stdbool.h>
#include <stddef.h>

#include "common/arena.h"

enum dcp_entry_kind {
    DCP_PARAMETER,
    DCP_STATE,
    DCP_SETTING, /* of the group `name`, a number, or of the parameter `name` */
    DCP_GROUPS,
    DCP_OTHER
};

struct dcp_entry {
    enum dcp_entry_kind kind;
    const char *below; /* the keys above, joined by '.'; "": none */
    const char *name;  /* without wrappers; of another object: its last key */
    const char *key;   /* of a state or a setting; else NULL */
    bool numbered;     /* of a setting: `name` is the group's number */
    bool unwrapped;    /* wrappers were taken from the name */
};

/* name: of the stored tensor or object; nested_path may be NULL. Texts are in arena a. */
struct dcp_entry dcp_entry_of(struct arena *a, const char *name, const char *nested_path,
                              bool is_tensor);

#endif
