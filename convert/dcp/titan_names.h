/* titan_names.h - torchtitan's names of parameters and the order of their rows.
 *
 * The rows of the table in titan_names.c pair torchtitan's names with Hugging Face's
 * (torchtitan/models/llama3/state_dict_adapter.py, qwen3/state_dict_adapter.py at 0.3.0). Two
 * things are no renaming:
 *
 *   1. Rows of q and k of Llama: torchtitan rotates neighbours, Hugging Face halves of a head. In
 *      torchtitan head h has rows [h, i, half], in Hugging Face [h, half, i], i < head_dim / 2.
 *   2. The optimizer of a run with fuse_qkv=True, the default, has q, k and v as one parameter
 *      wqkv, rows [num_query_groups, heads of a group + 2, head_dim]: a group's q, then k, then v.
 */
#ifndef FERRY_CONVERT_TITAN_NAMES_H
#define FERRY_CONVERT_TITAN_NAMES_H

#include "ckpt/checkpoint.h"

struct titan_names {
    bool known;   /* the config is known: else names stay torchtitan's */
    bool rotates; /* rows of q and k differ */
    uint64_t groups, heads_per_group, head_dim;
};

/* By the model of c. ERR_UNSUPPORTED where torchtitan's names of the family are not known, or a
 * field of the config is missing. Without a config c->family is NULL, and the names stay. */
MUST_CHECK enum status titan_names_init(struct titan_names *n, const struct checkpoint *c,
                                        struct error *err);

/* A tensor of one side and the elements of the other that are its. */
struct titan_part {
    const char *name;
    unsigned num_dims;
    uint64_t shape[MAX_AXES];
    struct pair pair; /* a: in Hugging Face's tensor, nested; b: in torchtitan's */
};

/* Hugging Face's tensors that a tensor of torchtitan has elements of: one, or of wqkv three. Where
 * the name is not known: the tensor itself. shape NULL: only names are wanted. ERR_UNSUPPORTED
 * where the shape does not fit the config. */
MUST_CHECK enum status titan_to_hf(const struct titan_names *n, struct arena *a, const char *name,
                                   unsigned num_dims, const uint64_t *shape,
                                   struct titan_part parts[3], size_t *count, struct error *err);
/* The tensor of torchtitan that has the elements of a Hugging Face tensor. fused: wqkv for q, k
 * and v. ERR_UNSUPPORTED for a name that is not in the table. */
MUST_CHECK enum status titan_from_hf(const struct titan_names *n, struct arena *a, const char *name,
                                     bool fused, unsigned num_dims, const uint64_t *shape,
                                     struct titan_part *part, struct error *err);

#endif
