/* megatron_source.h - what the readers of Megatron's two formats share. */
#ifndef FERRY_CONVERT_MEGATRON_MEGATRON_SOURCE_H
#define FERRY_CONVERT_MEGATRON_MEGATRON_SOURCE_H

#include "convert/source.h"

struct megatron_source {
    struct checkpoint *c; /* c->folder is the iteration's folder */
    const struct source_options *o;
    const struct model_maps *maps;
    struct layout_options written_layout; /* as args or run_config.yaml say */
    bool moe_layers_known;                /* args, run_config.yaml or config.json say them */
};

/* Readers: they open the files, set common state, config and layout by megatron_describe(), add own
 * tensors and have logical ones made of them by megatron_import(). */
MUST_CHECK enum status megatron_open_torch_dist(struct megatron_source *m, struct error *err);
MUST_CHECK enum status megatron_open_torch(struct megatron_source *m, struct error *err);

/* What the names and shapes of the stored tensors tell of the model. */
struct megatron_evidence {
    uint64_t num_layers; /* 0: not known */
    bool output_layer, qkv_bias, proj_bias, mlp_bias, qk_norm, layer_norm_bias, position_embeddings;
    bool head_may_be_copy;    /* of the embedding: a legacy file without args */
    bool local_spec, te_spec; /* names that only one of the two specs has */
    uint64_t hidden_size;
    /* Of one rank: a legacy file holds the shards of one, torch_dist whole tensors. */
    bool of_ranks;
    uint64_t fc1_rows, fc2_columns; /* of one MLP or expert */
    uint64_t mlp_columns, expert_columns, proj_columns, experts;
    struct layout_options layout; /* what the names of files tell; where args say nothing */
};
/* Takes in one parameter: its name as dist_key/memory_name have it (half: of a gated fc1), and the
 * shape of one layer's. */
void evidence_add(struct megatron_evidence *e, const char *rest, bool of_expert, char half,
                  unsigned num_dims, const uint64_t *shape);
/* Takes in all own tensors that are named as keys of torch_dist. ERR_CORRUPT where one cannot be
 * the stack that its key says. */
MUST_CHECK enum status evidence_add_keys(struct checkpoint *c, struct megatron_evidence *e,
                                         struct error *err);

/* Completes c->config, family, layout: from the args of the common state or run_config.yaml, from
 * the evidence, from config.json (--hf-config, or ferry-hf beside the weights). Of ranks' files,
 * whose layers must be known, the layout is left empty where what is said of it cannot be. */
MUST_CHECK enum status megatron_describe(struct megatron_source *m,
                                         const struct megatron_evidence *e, struct error *err);

/* Makes logical tensors of own ones that are named as keys of torch_dist, stacked or not; of a
 * model of which nobody says which layers have experts, the routers tell. */
MUST_CHECK enum status megatron_import(struct megatron_source *m, struct error *err);

/* Lists parameters that some layer has and another of its kind lacks, and those that the model map
 * knows and nobody has. */
MUST_CHECK enum status megatron_find_missing(struct megatron_source *m, struct error *err);

/* A copy of a value in another arena. */
MUST_CHECK enum status value_copy(struct arena *a, const struct value *v, struct value **out,
                                  struct error *err);

#endif
