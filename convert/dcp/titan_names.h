/* titan_names.h - torchtitan's parameter names and the order of their rows.
 *
 * The table in titan_names.c pairs torchtitan's names with Hugging Face's
 * (torchtitan/models/llama3/state_dict_adapter.py, qwen3/state_dict_adapter.py
 * at 0.3.0). Three differences go beyond names:
 *
 *   1. Rows of q and k of Llama: torchtitan rotates neighbours, Hugging Face
 *      halves of a head. In torchtitan head h has rows [h, i, half], in Hugging
 *      Face [h, half, i], i < head_dim / 2.
 *   2. The optimizer of a run with fuse_qkv=True, the default, has q, k and v as
 *      one parameter wqkv, rows [num_query_groups, heads of a group + 2,
 *      head_dim]: a group's q, then k, then v.
 *   3. A layer's experts are one tensor, [num_experts, ...]. A buffer
 *      expert_bias_E balances them while it trains; published models have
 *      none. */
#ifndef FERRY_CONVERT_TITAN_NAMES_H
#define FERRY_CONVERT_TITAN_NAMES_H

#include "ckpt/checkpoint.h"

struct titan_names {
    bool known;   /* with a config; else names stay torchtitan's */
    bool rotates; /* rows of q and k differ */
    uint64_t groups, heads_per_group, head_dim, num_experts;
};

/* Sets the names for the model of c. ERR_UNSUPPORTED if torchtitan's names of
 * the family are unknown, or a config field is missing. Without a config
 * c->family is NULL, and names stay. */
MUST_CHECK enum status titan_names_init(struct titan_names *n, const struct checkpoint *c,
                                        struct error *err);

/* A tensor of one side, and its elements in the other side's tensor. */
struct titan_part {
    const char *name;
    unsigned num_dims;
    uint64_t shape[MAX_AXES];
    struct pair pair; /* a: in Hugging Face's tensor, nested; b: in torchtitan's */
};

/* Sets the Hugging Face tensors with elements of a torchtitan tensor, in arena
 * a: one, three for wqkv, or one per expert; for an unknown name, the tensor
 * itself. shape NULL: names only. ERR_UNSUPPORTED if the shape does not fit the
 * config. */
MUST_CHECK enum status titan_to_hf(const struct titan_names *n, struct arena *a, const char *name,
                                   unsigned num_dims, const uint64_t *shape,
                                   struct titan_part **parts, size_t *count, struct error *err);
/* Sets the torchtitan tensor with the elements of a Hugging Face tensor. fused:
 * wqkv for q, k and v. ERR_UNSUPPORTED for a name outside the table. */
MUST_CHECK enum status titan_from_hf(const struct titan_names *n, struct arena *a, const char *name,
                                     bool fused, unsigned num_dims, const uint64_t *shape,
                                     struct titan_part *part, struct error *err);
/* Whether a name is that of a layer's buffer for balancing experts. */
bool titan_is_expert_bias(const char *name);
/* The name of the buffer beside a tensor of a layer's experts, in arena a; NULL:
 * it is none. */
const char *titan_expert_bias(struct arena *a, const char *name);

#endif
