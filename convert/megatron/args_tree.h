/* args_tree.h - a Namespace of Python's as a tree of JSON, and values of the tree as Python's. */
#ifndef FERRY_CONVERT_MEGATRON_ARGS_TREE_H
#define FERRY_CONVERT_MEGATRON_ARGS_TREE_H

#include <cjson/cJSON.h>

#include "formats/value.h"

/* An object of what a Namespace says: scalars and lists of scalars as they are (tuples are lists),
 * a pipeline layout as its text, all else as Python's text of it ("torch.bfloat16", "<AttnBackend:
 * 5>"). Empty where args (NULL allowed) are none. The caller frees it. */
cJSON *args_tree(const struct value *args);

/* The value of item `name` of such a tree, in arena a: {"_target_": "torch.bfloat16"} is the name
 * in Python, window_size a tuple, as argparse makes it. */
struct value *args_value(struct arena *a, const char *name, const cJSON *item);

#endif
