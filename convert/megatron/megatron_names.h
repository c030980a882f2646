/* megatron_names.h - translates between logical names of parameters and Megatron-LM's names: keys
 * of torch_dist, and names in memory, which legacy files have.
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
 * The pairs of names are data: the spellings of convert/models/params.json, which come with a table
 * of parameters.
 *
 * Sources: megatron/core/models/gpt/gpt_layer_specs.py, transformer/transformer_block.py,
 * transformer/moe/experts.py; megatron/legacy/model/language_model.py up to core_v0.12.0. */
#ifndef FERRY_CONVERT_MEGATRON_MEGATRON_NAMES_H
#define FERRY_CONVERT_MEGATRON_MEGATRON_NAMES_H

#include "ckpt/layout.h"
#include "convert/map/params.h"

/* ---- torch_dist ---- */

/* A key of torch_dist, parsed: it names one logical tensor, or a stack of them along leading
 * axes. */
struct dist_key {
    bool in_layers;       /* below decoder.layers */
    bool stacked_layers;  /* first axis: layers; else `layer` */
    bool stacked_experts; /* next axis: experts */
    uint64_t layer;
    bool of_expert; /* of an expert; its number is `expert` unless stacked_experts */
    uint64_t expert;
    char half;        /* 'w' or 'v' of a gated fc1; 0: whole */
    const char *rest; /* without layer and expert: "mlp.linear_fc2.weight", of experts
                       * "linear_fc1.weight"; the whole name outside of layers */
};
/* Parses a key, in arena a. Always succeeds: a key that is not below decoder.layers is its own
 * rest. */
struct dist_key dist_key_parse(struct arena *a, const char *key);
/* The logical name of one member of the stack. moe: whether its layer has experts (the local spec
 * gives the norm before a router the name of the norm before a dense MLP). */
const char *dist_key_logical(struct arena *a, const struct param_table *t, const struct dist_key *k,
                             uint64_t layer, uint64_t expert, bool moe);

/* The key under which a parameter is written. stacks: STACK_*, the axes along which parameters
 * share a key, if they can. local: whether to use the local spec's names. */
const char *dist_key_of(struct arena *a, const struct param_table *t, const struct param *p,
                        unsigned stacks, bool local);
/* The leading axes of such a key: their number, their sizes, and the position of this parameter
 * along them. */
enum { MAX_LEAD = 2 };
unsigned dist_key_lead(const struct model_config *c, const struct param *p, unsigned stacks,
                       uint64_t sizes[MAX_LEAD], uint64_t at[MAX_LEAD]);

/* The module of a linear's weight key: "decoder.layers.mlp.linear_fc1" of "...linear_fc1.weight".
 */
const char *module_of(struct arena *a, const char *key);

/* ---- in memory ---- */

/* The kind of tensor that a legacy name names. */
enum memory_kind {
    MEMORY_PARAM,       /* one parameter */
    MEMORY_GROUPED_FC1, /* GroupedMLP's weight1: all local experts, [expert, hidden, rows] */
    MEMORY_GROUPED_FC2, /* weight2: [expert, columns, hidden] */
    MEMORY_SKIP,        /* extra state, a copy or a buffer: no parameter */
    MEMORY_UNKNOWN
};
struct memory_name {
    enum memory_kind kind;
    bool in_layers, of_expert;
    bool fused_qkv;         /* from before Core: checkpoint_version tells the order of rows */
    bool local_spec;        /* a name that only the local spec has */
    uint64_t layer, expert; /* local ones */
    const char *rest;       /* as in dist_key; norms as in a dense layer */
};
struct memory_name memory_name_parse(struct arena *a, const struct param_table *t,
                                     const char *name);
/* The logical name of a parsed name. layer, expert: global numbers. */
const char *memory_name_logical(struct arena *a, const struct param_table *t,
                                const struct memory_name *m, uint64_t layer, uint64_t expert,
                                bool moe);

/* The in-memory name of a parameter. te: Transformer Engine's spec, else the local one; grouped:
 * names of TE's grouped linear layers. */
const char *memory_name_of(struct arena *a, const struct param *p, uint64_t local_layer,
                           uint64_t local_expert, bool te, bool grouped);
/* The folder of a rank's files in the legacy format: mp_rank_TT[_PPP][_EEE]. */
const char *megatron_rank_folder(struct arena *a, const struct layout *l, uint64_t tp, uint64_t pp,
                                 uint64_t ep);

#endif
