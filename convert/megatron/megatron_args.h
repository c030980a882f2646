/* megatron_args.h - reads and writes model and layout in Megatron-LM's args (an
 * argparse.Namespace in the common state) and in Megatron-Bridge's
 * run_config.yaml, by the rows of convert/models/megatron.json. */
#ifndef FERRY_CONVERT_MEGATRON_MEGATRON_ARGS_H
#define FERRY_CONVERT_MEGATRON_MEGATRON_ARGS_H

#include <cjson/cJSON.h>

#include "ckpt/layout.h"
#include "ckpt/model_config.h"
#include "ckpt/training.h"
#include "common/dtype.h"
#include "convert/megatron/hybrid.h"
#include "formats/value.h"

/* ---- reading ---- */

/* The file of a tree: args (args_tree.h), or a run_config.yaml's `model`. */
enum megatron_file { MEGATRON_ARGS, MEGATRON_RUN_CONFIG };

/* Facts of such a file that are no model fields. */
struct megatron_facts {
    struct layout_options layout;
    /* Only written; they follow from the layout: */
    uint64_t transformer_pp, layers_per_chunk, chunks_per_rank, world_size;
    uint64_t padded_vocab_size, make_vocab_size_divisible_by;
    uint64_t vocab_size;   /* run_config.yaml's: the true size if should_pad_vocab, */
    bool should_pad_vocab; /* else the rows of the embedding */
    const char *ckpt_format, *transformer_impl;
    bool moe_grouped_gemm;
    const char *params_dtype; /* "torch.bfloat16" */
    bool bf16, fp16;
};

/* Set members that the file gives; others keep their values. Texts are in arena
 * a. */
void model_config_from_megatron(enum megatron_file file, const cJSON *tree, struct arena *a,
                                struct model_config *c);
void facts_from_megatron(enum megatron_file file, const cJSON *tree, struct arena *a,
                         struct megatron_facts *f);
/* Calls visit for each unknown field (convert/map/config_map.h) of a tree from
 * which c and f were filled. Most args concern training: only watched_args of
 * convert/models/megatron.json can be unknown. */
void megatron_unknown(enum megatron_file file, const cJSON *tree, const struct model_config *c,
                      const struct megatron_facts *f,
                      void (*visit)(void *context, const char *name, const char *value),
                      void *context);
/* Whether the Namespace has moe_grouped_gemm True. */
bool args_have_grouped_gemm(const struct value *args);

/* ---- writing ---- */

/* Facts of a checkpoint to write. */
struct args_facts {
    const struct model_config *config;
    const struct layout *layout;
    const struct hybrid_stack *hybrid; /* NULL: GPTModel's args */
    bool was_hybrid;                   /* the args to update are HybridModel's */
    enum dtype dtype;                  /* of most weights */
    bool casts;                        /* the weights were cast: replaces dtype fields */
    bool transformer_engine, grouped_gemm;
    uint64_t padded_vocab, divisible_by, iteration;
    const char *ckpt_format;
    const struct training *training; /* consumed samples; NULL: unknown */
    bool has_optimizer, has_rng;     /* optimizer, generator states are there */
    bool is_distributed;             /* the optimizer is */
    bool is_split;                   /* hidden matrices have their own (training_is_split) */
    bool is_model_space;             /* its format is fully_sharded_model_space */
};
/* The args of a model alone; the caller frees them. */
cJSON *args_of_model(const struct model_config *c);
/* The config after writing it as args and reading it back; keeps fields that
 * tensors show. */
struct model_config model_config_through_args(const struct model_config *c, struct arena *a);
/* Flags that Megatron-LM needs beside --use-checkpoint-args, since it does not
 * take these fields from a checkpoint
 * (megatron/training/checkpointing.py:load_args_from_checkpoint):
 * "--norm-epsilon 1e-06 --qk-layernorm". hybrid: NULL, or HybridModel's. In arena
 * a; "": none. */
const char *args_flags_beside(const struct model_config *c, const struct hybrid_stack *hybrid,
                              struct arena *a);
/* A new Namespace. */
struct value *args_make(struct arena *a, const struct args_facts *f);
/* Whether v contains a tensor, so cannot be written without its bytes. */
bool value_holds_tensor(const struct value *v);
/* Copies a Namespace with the layout of f and the fields that depend on it.
 * Leaves out attributes with a tensor, or with a class that some release of
 * Megatron-Core cannot load; *left_out names them ("a, b"; NULL: none). */
struct value *args_update(struct arena *a, const struct value *args, const struct args_facts *f,
                          const char **left_out);
/* The tree of a run_config.yaml; the caller frees it. */
cJSON *run_config_make(const struct args_facts *f);
/* Sets f's layout, and fields that depend on it, in a run_config.yaml's
 * tree. */
void run_config_update(cJSON *tree, const struct args_facts *f);

#endif
