/* megatron_names.h - translates between logical parameter names and
 * Megatron-LM's names: torch_dist keys, and names in memory, which legacy files
 * have.
 *
 * torch_dist: decoder.layers.REST, layers stacked on a leading axis, or
 * decoder.layers.N.REST. Experts are mlp.experts.experts.REST with an expert
 * axis, or mlp.experts.experts.E.REST; _w and _v are halves of a gated fc1
 * (singleton local shards). NeMo prepends "module.". A layer of multi-token
 * prediction is mtp.layers.N.transformer_layer.REST, in some releases
 * mtp_model_layer, beside mtp.layers.N.{enorm,hnorm,eh_proj,final_layernorm}.
 *
 * In memory: decoder.layers.LOCAL.REST, mtp.layers.N.mtp_model_layer.REST. Experts are
 * mlp.experts.local_experts.E.REST (sequential), mlp.experts.linear_fcN.weightE
 * (TE's grouped), or mlp.experts.weight1 and 2 (GroupedMLP). The local spec
 * calls norms input_layernorm and pre_mlp_layernorm. Before Megatron-Core:
 * language_model.encoder.layers.LOCAL.*, query_key_value, dense_h_to_4h, ...
 *
 * The pairs of names are data: spellings in convert/models/params.json, part of
 * a parameter table.
 *
 * Sources: megatron/core/models/gpt/gpt_layer_specs.py,
 * transformer/transformer_block.py, transformer/moe/experts.py;
 * megatron/legacy/model/language_model.py up to core_v0.12.0. */
#ifndef FERRY_CONVERT_MEGATRON_MEGATRON_NAMES_H
#define FERRY_CONVERT_MEGATRON_MEGATRON_NAMES_H

#include "ckpt/layout.h"
#include "convert/map/params.h"

/* ---- torch_dist ---- */

/* A parsed torch_dist key of one logical tensor, or of a stack along leading
 * axes. */
struct dist_key {
    bool in_layers;       /* below decoder.layers */
    bool in_mtp;          /* below mtp.layers.N.transformer_layer; layer is N */
    bool stacked_layers;  /* first axis: layers; else `layer` */
    bool stacked_experts; /* next axis: experts */
    uint64_t layer;
    bool of_expert; /* of an expert, number `expert` unless stacked_experts */
    uint64_t expert;
    char half;        /* 'w' or 'v' of a gated fc1; 0: whole */
    const char *rest; /* without layer and expert: "mlp.linear_fc2.weight", an expert's
                         "linear_fc1.weight"; the whole name outside layers */
};
/* Parses a key, in arena a. Never fails: a key that is neither in a layer nor in
 * one of multi-token prediction is its own rest. */
struct dist_key dist_key_parse(struct arena *a, const char *key);
/* The logical name of a stack's member. moe: whether its layer has experts (the
 * local spec names the norm before a router like that before a dense MLP). */
const char *dist_key_logical(struct arena *a, const struct param_table *t, const struct dist_key *k,
                             uint64_t layer, uint64_t expert, bool moe);

/* The key to write a parameter under. stacks: STACK_*, axes along which
 * parameters may share a key. local: use the local spec's names. */
const char *dist_key_of(struct arena *a, const struct param_table *t, const struct param *p,
                        unsigned stacks, bool local);
/* Leading axes of such a key: returns their number; sets their sizes, and the
 * parameter's position along them. */
enum { MAX_LEAD = 2 };
unsigned dist_key_lead(const struct model_config *c, const struct param *p, unsigned stacks,
                       uint64_t sizes[MAX_LEAD], uint64_t at[MAX_LEAD]);

/* A weight key's module: "decoder.layers.mlp.linear_fc1" of
 * "...linear_fc1.weight". */
const char *module_of(struct arena *a, const char *key);

/* ---- in memory ---- */

/* Kinds of tensors with a legacy name. */
enum memory_kind {
    MEMORY_PARAM,       /* one parameter */
    MEMORY_GROUPED_FC1, /* GroupedMLP's weight1: all local experts, [expert, hidden, rows] */
    MEMORY_GROUPED_FC2, /* weight2: [expert, columns, hidden] */
    MEMORY_SKIP,        /* extra state, a copy or a buffer: no parameter */
    MEMORY_UNKNOWN
};
struct memory_name {
    enum memory_kind kind;
    bool in_layers, in_mtp, of_expert;
    bool fused_qkv;         /* before Core: checkpoint_version gives the order of rows */
    bool local_spec;        /* a name of the local spec only */
    uint64_t layer, expert; /* local ones */
    const char *rest;       /* as in dist_key; norms as in a dense layer */
};
struct memory_name memory_name_parse(struct arena *a, const struct param_table *t,
                                     const char *name);
/* The logical name of a parsed name. layer, expert: global numbers. */
const char *memory_name_logical(struct arena *a, const struct param_table *t,
                                const struct memory_name *m, uint64_t layer, uint64_t expert,
                                bool moe);

/* A parameter's name in memory. te: Transformer Engine's spec, else the local
 * one; grouped: names of TE's grouped linear layers. */
const char *memory_name_of(struct arena *a, const struct param_table *t, const struct param *p,
                           uint64_t local_layer, uint64_t local_expert, bool te, bool grouped);
/* A rank's folder in the legacy format: mp_rank_TT[_PPP][_EEE]. */
const char *megatron_rank_folder(struct arena *a, const struct layout *l, uint64_t tp, uint64_t pp,
                                 uint64_t ep);

#endif
