/* megatron_args.h - the model and the layout as Megatron-LM's args say them (an argparse.Namespace
 * in the common state), and as Megatron-Bridge's run_config.yaml does. */
#ifndef FERRY_CONVERT_MEGATRON_MEGATRON_ARGS_H
#define FERRY_CONVERT_MEGATRON_MEGATRON_ARGS_H

#include <cjson/cJSON.h>

#include "ckpt/checkpoint.h"
#include "ckpt/layout.h"
#include "ckpt/model_config.h"
#include "common/dtype.h"
#include "formats/value.h"

/* Fills what args say; what they do not say stays as it is. Texts are in arena a. */
void model_config_from_args(const struct value *args, struct arena *a, struct model_config *c);
/* The layout that a checkpoint with these args was written in. */
void layout_options_from_args(const struct value *args, struct arena *a, struct layout_options *o);
/* The same from the `model` of a run_config.yaml. */
void model_config_from_run_config(const cJSON *model, struct arena *a, struct model_config *c);
void layout_options_from_run_config(const cJSON *model, struct arena *a, struct layout_options *o);

/* Lists in c the unknown fields of args, or of the `model` of a run_config.yaml. */
void args_add_unknown(struct checkpoint *c, const struct value *args);
void run_config_add_unknown(struct checkpoint *c, const cJSON *model);

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
/* Whether the Namespace says moe_grouped_gemm. */
bool args_have_grouped_gemm(const struct value *args);
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
