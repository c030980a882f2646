/* megatron_names.h - what Megatron-LM calls the parameters that we know by logical names: the keys
 * of torch_dist, and the names in memory, which are those of legacy files.
 *
 * torch_dist: decoder.layers.REST, layers stacked on a leading axis, or decoder.layers.N.REST.
 * Experts are mlp.experts.experts.REST with an expert axis, or mlp.experts.experts.E.REST; _w and
 * _v are the halves of a gated fc1 (singleton local shards). NeMo puts "module." in front.
 *
 * In memory: decoder.layers.LOCAL.REST. Experts are mlp.experts.local_experts.E.REST (sequential),
 * mlp.experts.linear_fcN.weightE (TE's grouped), or mlp.experts.weight1 and 2 (GroupedMLP). Under
 * the local spec norms are input_layernorm and pre_mlp_layernorm. Before Megatron-Core:
 * language_model.encoder.layers.LOCAL.*, query_key_value, dense_h_to_4h, ...
 *
 * Which name stands for which is data: the spellings of convert/models/params.json, which come with
 * a table of parameters.
 *
 * Sources: megatron/core/models/gpt/gpt_layer_specs.py, transformer/transformer_block.py,
 * transformer/moe/experts.py; megatron/legacy/model/language_model.py up to core_v0.12.0. */
#ifndef FERRY_CONVERT_MEGATRON_MEGATRON_NAMES_H
#define FERRY_CONVERT_MEGATRON_MEGATRON_NAMES_H

#include "convert/map/params.h"

/* ---- torch_dist ---- */

/* What a key of torch_dist stands for: one logical tensor, or a stack of them along leading axes.
 */
struct dist_key {
    bool in_layers;       /* below decoder.layers */
    bool stacked_layers;  /* first axis: layers; else `layer` */
    bool stacked_experts; /* next axis: experts */
    uint64_t layer;
    bool of_expert; /* one expert's: `expert` where experts are not stacked */
    uint64_t expert;
    char half;        /* 'w' or 'v' of a gated fc1; 0: whole */
    const char *rest; /* without layer and expert: "mlp.linear_fc2.weight", of experts
                       * "linear_fc1.weight"; the whole name outside of layers */
};
/* In arena a. Always succeeds: what is not below decoder.layers is its own rest. */
struct dist_key dist_key_parse(struct arena *a, const char *key);
/* The logical name of one member. moe: whether its layer has experts (the local spec spells the
 * norm before the router as that of a dense MLP). */
const char *dist_key_logical(struct arena *a, const struct param_table *t, const struct dist_key *k,
                             uint64_t layer, uint64_t expert, bool moe);

/* The key under which a parameter is written. stacks: STACK_*, the axes along which parameters are
 * one key, where they can be. local: the local spec's spelling. */
const char *dist_key_of(struct arena *a, const struct param_table *t, const struct param *p,
                        unsigned stacks, bool local);
/* The axes that such a key has in front of the parameter's own: their number, their sizes, and this
 * member's place in them. */
enum { MAX_LEAD = 2 };
unsigned dist_key_lead(const struct model_config *c, const struct param *p, unsigned stacks,
                       uint64_t sizes[MAX_LEAD], uint64_t at[MAX_LEAD]);
/* Whether it is the optimizer's. */
bool dist_key_is_optimizer(const char *key);

/* The module of a linear's weight key: "decoder.layers.mlp.linear_fc1" of "...linear_fc1.weight".
 */
const char *module_of(struct arena *a, const char *key);

/* ---- in memory ---- */

/* How a legacy name is to be read. */
enum memory_kind {
    MEMORY_PARAM,       /* one parameter */
    MEMORY_GROUPED_FC1, /* GroupedMLP's weight1: all local experts, [expert, hidden, rows] */
    MEMORY_GROUPED_FC2, /* weight2: [expert, columns, hidden] */
    MEMORY_SKIP,        /* extra state, a copy, a buffer: nothing of ours */
    MEMORY_UNKNOWN
};
struct memory_name {
    enum memory_kind kind;
    bool in_layers, of_expert;
    bool fused_qkv;         /* of before Core: rows ordered after checkpoint_version */
    bool local_spec;        /* a name that only the local spec has */
    uint64_t layer, expert; /* local ones */
    const char *rest;       /* as dist_key's; norms as a dense layer has them */
};
struct memory_name memory_name_parse(struct arena *a, const struct param_table *t,
                                     const char *name);
/* The logical name, with global numbers in place of local ones. */
const char *memory_name_logical(struct arena *a, const struct param_table *t,
                                const struct memory_name *m, uint64_t layer, uint64_t expert,
                                bool moe);

/* The in-memory name of a parameter: te: Transformer Engine's spec, else the local one; grouped:
 * names of TE's grouped linear layers. */
const char *memory_name_of(struct arena *a, const struct param *p, uint64_t local_layer,
                           uint64_t local_expert, bool te, bool grouped);

#endif
