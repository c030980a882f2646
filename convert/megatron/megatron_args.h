/* megatron_args.h - the model and the layout as Megatron-LM's args say them (an argparse.Namespace
 * in the common state), and as Megatron-Bridge's run_config.yaml does, by the rows of
 * convert/models/megatron.json. */
#ifndef FERRY_CONVERT_MEGATRON_MEGATRON_ARGS_H
#define FERRY_CONVERT_MEGATRON_MEGATRON_ARGS_H

#include <cjson/cJSON.h>

#include "ckpt/layout.h"
#include "ckpt/model_config.h"
#include "common/dtype.h"
#include "formats/value.h"

/* ---- reading ---- */

/* What a tree is: that of args (args_tree.h), or the `model` of a run_config.yaml. */
enum megatron_file { MEGATRON_ARGS, MEGATRON_RUN_CONFIG };

/* What it says beside the model. */
struct megatron_facts {
    struct layout_options layout;
    /* These follow from the layout: */
    uint64_t transformer_pp, layers_per_chunk, chunks_per_rank, world_size;
    uint64_t padded_vocab_size, make_vocab_size_divisible_by;
    uint64_t vocab_size;   /* of run_config.yaml: the true one where should_pad_vocab */
    bool should_pad_vocab; /* else that of the embedding */
    const char *ckpt_format, *transformer_impl;
    bool moe_grouped_gemm;
    const char *params_dtype; /* "torch.bfloat16" */
    bool bf16, fp16;
};

/* Fill what the file says; what it does not say stays as it is. Texts are in arena a. */
void model_config_from_megatron(enum megatron_file file, const cJSON *tree, struct arena *a,
                                struct model_config *c);
void facts_from_megatron(enum megatron_file file, const cJSON *tree, struct arena *a,
                         struct megatron_facts *f);
/* Calls visit for each unknown field (convert/map/config_map.h) of a tree from which c and f were
 * filled. Of args, which are mostly of the training, only fields that convert/models/megatron.json
 * lists count. */
void megatron_unknown(enum megatron_file file, const cJSON *tree, const struct model_config *c,
                      const struct megatron_facts *f,
                      void (*visit)(void *context, const char *name, const char *value),
                      void *context);
/* Whether the Namespace says moe_grouped_gemm. */
bool args_have_grouped_gemm(const struct value *args);

/* ---- writing ---- */

/* What a written checkpoint says of itself. */
struct args_facts {
    const struct model_config *config;
    const struct layout *layout;
    enum dtype dtype; /* of most weights */
    bool casts;       /* weights get another dtype than the source's args say */
    bool transformer_engine, grouped_gemm;
    uint64_t padded_vocab, divisible_by, iteration;
    const char *ckpt_format;
};
/* What is left of a config that goes through args and back; what tensors show stays as it is. */
struct model_config model_config_through_args(const struct model_config *c, struct arena *a);
/* The flags that Megatron-LM wants beside --use-checkpoint-args for this model, which does not take
 * them from a checkpoint (megatron/training/checkpointing.py:load_args_from_checkpoint):
 * "--norm-epsilon 1e-06 --qk-layernorm". In arena a; "" where there are none. */
const char *args_flags_beside(const struct model_config *c, struct arena *a);
/* A fresh Namespace. */
struct value *args_make(struct arena *a, const struct args_facts *f);
/* Whether a tensor is somewhere in v, which then cannot be written without its bytes. */
bool value_holds_tensor(const struct value *v);
/* A copy of a Namespace in which the layout and what depends on it is that of f; all else is kept
 * that holds no tensor. */
struct value *args_update(struct arena *a, const struct value *args, const struct args_facts *f);
/* The tree of a run_config.yaml; the caller frees it. */
cJSON *run_config_make(const struct args_facts *f);
/* Puts the layout of f, and what depends on it, into a tree that was read. */
void run_config_update(cJSON *tree, const struct args_facts *f);

#endif
