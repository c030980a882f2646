/* args_tree.h - converts Megatron-LM's args, a Python Namespace, to a JSON
 * tree, and values of such a tree to Python values. */
#ifndef FERRY_CONVERT_MEGATRON_ARGS_TREE_H
#define FERRY_CONVERT_MEGATRON_ARGS_TREE_H

#include <cjson/cJSON.h>

#include "formats/value.h"

/* A Namespace's attributes as an object: scalars and lists of scalars unchanged
 * (tuples become lists), a pipeline layout as its text, other values as their
 * text in Python ("torch.bfloat16", "<AttnBackend: 5>"). Empty if args is NULL
 * or no Namespace. The caller frees it. */
cJSON *args_tree(const struct value *args);

/* The Python value of such a tree's item `name`, in arena a: {"_target_":
 * "torch.bfloat16"} becomes a Python reference, window_size a tuple, as
 * argparse makes it. */
struct value *args_value(struct arena *a, const char *name, const cJSON *item);

#endif
