/* dcp_entry.h - classifies an entry of a DCP folder: parameter, optimizer
 * state, setting of a parameter group, or another program's data.
 *
 * An entry has a path of keys in the saved nested state dict
 * (stored.nested_path). States and settings are recognised by their place in
 * it, in two forms (torch/distributed/checkpoint/state_dict.py,
 * flatten_optimizer_state_dict=False and True):
 *
 *   1. ..., "state", PARAMETER, STATE        ..., "param_groups", NUMBER, KEY
 *   2. ..., "state.PARAMETER.STATE"          ..., "param_groups.PARAMETER.KEY"
 *   3. ..., "param_groups"                   one object: all groups (torch < 2.4)
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
    DCP_SETTING, /* of group number `name`, or of parameter `name` */
    DCP_GROUPS,
    DCP_OTHER
};

struct dcp_entry {
    enum dcp_entry_kind kind;
    const char *below; /* keys above, joined by '.'; "": none */
    const char *name;  /* without wrappers; of another object: the last key */
    const char *key;   /* of a state or a setting; else NULL */
    bool numbered;     /* setting: `name` is the group's number */
    bool unwrapped;    /* the name had wrappers */
};

/* name: of the stored tensor or object; nested_path may be NULL. Texts are in
 * arena a. */
struct dcp_entry dcp_entry_of(struct arena *a, const char *name, const char *nested_path,
                              bool is_tensor);

#endif
