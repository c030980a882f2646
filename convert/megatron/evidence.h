/* evidence.h - facts about the model from the names and shapes of its stored tensors. */
#ifndef FERRY_CONVERT_MEGATRON_EVIDENCE_H
#define FERRY_CONVERT_MEGATRON_EVIDENCE_H

#include "ckpt/checkpoint.h"

struct megatron_evidence {
    uint64_t num_layers; /* 0: not known */
    bool output_layer, qkv_bias, proj_bias, mlp_bias, qk_norm, layer_norm_bias, position_embeddings;
    bool head_may_be_copy; /* the head may be a copy of the embedding: a legacy file without args */
    bool local_spec, te_spec; /* some name is only in the local spec; only in TE's */
    uint64_t hidden_size;
    bool of_ranks; /* the sizes below are of one rank (legacy files), not of whole tensors
                      (torch_dist) */
    uint64_t fc1_rows, fc2_columns; /* of one MLP or expert */
    uint64_t mlp_columns, expert_columns, proj_columns, experts;
    struct layout_options layout; /* from file names; used if args give no layout */
};

/* Adds one parameter. rest, half: as in dist_key and memory_name (megatron_names.h); shape: that of
 * one layer. */
void evidence_add(struct megatron_evidence *e, const char *rest, bool of_expert, char half,
                  unsigned num_dims, const uint64_t *shape);
/* Adds all own tensors, whose names are torch_dist keys. ERR_CORRUPT if a tensor cannot be the
 * stack that its key names. */
MUST_CHECK enum status evidence_add_keys(struct checkpoint *c, struct megatron_evidence *e,
                                         struct error *err);

/* Sets the sizes that are 0 in c. l: the layout of the ranks whose shapes were added. */
void evidence_fill_sizes(const struct megatron_evidence *e, const struct layout_options *l,
                         struct model_config *c);
/* Sets the features that tensors show (biases, norms, gating, positions), whatever args say: args
 * may lack them. */
void evidence_use(const struct megatron_evidence *e, struct model_config *c);

#endif
