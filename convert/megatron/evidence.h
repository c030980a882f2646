/* evidence.h - facts about the model from names and shapes of stored
 * tensors. */
#ifndef FERRY_CONVERT_MEGATRON_EVIDENCE_H
#define FERRY_CONVERT_MEGATRON_EVIDENCE_H

#include "ckpt/checkpoint.h"

struct megatron_evidence {
    uint64_t num_layers; /* 0: not known */
    uint64_t conv_taps;  /* of Mamba's convolution */
    bool conv_bias;
    uint64_t mtp_layers; /* of multi-token prediction */
    bool output_layer, qkv_bias, proj_bias, mlp_bias, qk_norm, layer_norm_bias, position_embeddings;
    bool head_may_be_copy;    /* a legacy file without args: the head may copy the embedding */
    bool local_spec, te_spec; /* a name exists only in the local spec; only in TE's */
    uint64_t hidden_size;
    bool of_ranks; /* the sizes below are of one rank (legacy), not of whole tensors (torch_dist) */
    uint64_t fc1_rows, fc2_columns; /* of one MLP or expert */
    uint64_t mlp_columns, expert_columns, proj_columns, experts;
    struct layout_options layout; /* by file names; used without args' layout */
};

/* Adds one parameter. rest, half: as in dist_key and memory_name
 * (megatron_names.h); shape: of one layer. */
void evidence_add(struct megatron_evidence *e, const char *rest, bool of_expert, char half,
                  unsigned num_dims, const uint64_t *shape);
/* Adds all native tensors, named by torch_dist keys. ERR_CORRUPT if a tensor
 * cannot be the stack that its key names. */
MUST_CHECK enum status evidence_add_keys(struct checkpoint *c, struct megatron_evidence *e,
                                         struct error *err);

/* Sets sizes that are 0 in c. l: layout of the ranks whose shapes were
 * added. */
void evidence_fill_sizes(const struct megatron_evidence *e, const struct layout_options *l,
                         struct model_config *c);
/* Sets features that tensors show (biases, norms, gating, positions) despite
 * args, which may lack them. */
void evidence_use(const struct megatron_evidence *e, struct model_config *c);

#endif
