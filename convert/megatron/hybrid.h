/* hybrid.h - Megatron's HybridModel, whose layers are single parts, *mixers*:
 * attention, an MLP, experts, Mamba 2, a gated delta net.
 *
 * A layer of GPTModel is two mixers, 2l and 2l + 1; a layer of a model like
 * Nemotron-H is one. Logical names, config and args are GPTModel's here, so
 * this module translates between keys and args of both:
 *
 *   decoder.layers.LAYER.self_attention.*   decoder.layers.MIXER.self_attention.*
 *   decoder.final_layernorm                 decoder.final_norm
 *   mtp.layers.K.transformer_layer.*        mtp.layers.K.mtp_model_layer.layers.MIXER.*
 *
 * Source: megatron/core/models/hybrid/hybrid_block.py, hybrid_layer_allocation.py. */
#ifndef FERRY_CONVERT_MEGATRON_HYBRID_H
#define FERRY_CONVERT_MEGATRON_HYBRID_H

#include <cjson/cJSON.h>

#include "ckpt/layout.h"
#include "ckpt/model_config.h"
#include "formats/stored.h"

struct hybrid_stack {
    uint64_t num_mixers;
    const char *symbols;     /* [num_mixers] of --hybrid-layer-pattern: "*-*E"; ? is not known */
    const char *mtp_symbols; /* of a layer of multi-token prediction; "": there is none */
    bool paired;             /* two mixers are a layer; else each is one */
};

/* The stack that keys of torch_dist are of, in arena a; NULL: GPTModel's.
 * pattern: --hybrid-layer-pattern of args (NULL: not known), which also has
 * mixers without keys; where both differ a mixer is not known. */
const struct hybrid_stack *hybrid_of_keys(const struct stored *s, const char *pattern,
                                          struct arena *a);
/* The stack of a model, in arena a; NULL: HybridModel has no such layers. */
const struct hybrid_stack *hybrid_of_config(const struct model_config *c, struct arena *a);

/* GPTModel's key of HybridModel's, layer by layer, and back. In arena a. */
const char *hybrid_gpt_key(const struct hybrid_stack *h, struct arena *a, const char *key);
const char *hybrid_key(const struct hybrid_stack *h, struct arena *a, const char *gpt_key);

/* Changes a tree of HybridModel's args to GPTModel's. Mixers that are layers
 * stay a pattern, of their symbols alone. */
void hybrid_args_read(const struct hybrid_stack *h, cJSON *args);
/* Removes GPTModel's args that the pattern has instead. */
void hybrid_args_forget(const struct hybrid_stack *h, cJSON *args);
/* Changes a tree of GPTModel's args to HybridModel's, for this layout. */
void hybrid_args_write(const struct hybrid_stack *h, const struct layout *l, cJSON *args);
/* The args that the two models have different values of; NULL ends the list. */
extern const char *const hybrid_args[];

#endif
