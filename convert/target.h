/* target.h - plans a target format and layout, and writes the small files
 * beside the weights. */
#ifndef FERRY_CONVERT_TARGET_H
#define FERRY_CONVERT_TARGET_H

#include "ckpt/checkpoint.h"
#include "ckpt/plan.h"
#include "ckpt/publish.h"
#include "common/args.h"
#include "convert/map/model_map.h"

/* How a Megatron format keeps optimizer states; the name is the option's
 * value. */
#define OPTIM_FORMATS(FIRST, NEXT)                                                                 \
    FIRST(fully_reshardable)                                                                       \
    NEXT(fully_sharded_model_space)                                                                \
    NEXT(distributed)                                                                              \
    NEXT(not_distributed)
#define OPTIM_ENUM(name) OPTIM_##name,
enum optim_format { OPTIM_DEFAULT, OPTIM_FORMATS(OPTIM_ENUM, OPTIM_ENUM) NUM_OPTIM_FORMATS };
extern const char *const optim_format_names[NUM_OPTIM_FORMATS]; /* the default's is NULL */
enum optim_format optim_format_find(const char *name);

/* Megatron's class whose keys and args are written. */
enum megatron_model {
    MEGATRON_MODEL_SOURCE, /* the source's; a model that only HybridModel can be: that */
    MEGATRON_MODEL_GPT,
    MEGATRON_MODEL_HYBRID
};

struct target_options {
    const struct format *format;  /* convert/format.h */
    struct layout_options layout; /* used by Megatron's formats */
    bool casts;
    enum dtype dtype;      /* new dtype of floating-point weights, if casts */
    uint64_t divisible_by; /* --make-vocab-size-divisible-by; 0: the source's, else 128 */
    bool has_iteration;
    uint64_t iteration;
    bool ferry_only; /* Megatron's formats: write parameters that its models lack, too */
    enum megatron_model megatron_model;
    bool transformer_engine;  /* names and extra states: TE's, else the local spec's */
    bool grouped_gemm;        /* written to args; names experts in legacy files */
    bool common_as_object;    /* torch_dist: the common state is an object, not common.pt */
    uint64_t max_shard_bytes; /* hf */
    /* hf: the encoding of written weights, of "exports" in quantization.json;
     * "as-source": as they came; NULL: decoded. */
    const char *encoding;
    bool durable;
    bool optimizer;     /* write the optimizer's states, if the source has any */
    bool allow_shifted; /* write weights from shifted masters (optimizer_info.shifted) */
    enum optim_format optim_format;
    uint64_t dp;           /* data parallel ranks to write; 0: the source's, else 1 */
    int zero;              /* deepspeed: ZeRO stage; -1: the source's, else 1 */
    bool split_decay;      /* a group without weight decay for parameters of one dimension */
    const char *optim_key; /* dcp: key of the optimizer's state; NULL: "optim" */
    bool flatten_optim;    /* dcp: one key per state (flatten_optimizer_state_dict=True) */
    bool split_qkv;        /* torchtitan: optimizer states of q, k, v apart (fuse_qkv=False) */
    const struct training_given *given; /* training values that the user gave; NULL: none */
    const cJSON *args; /* attributes of Megatron's args to set, by name; NULL: none */
    /* Globs of tensors that the source may lack, and of unexpected tensors:
     * both are left out of the destination. NULL: none. */
    const struct arg_list *allow_missing, *allow_unexpected;
};

/* Facts for the plan's report. */
struct target_facts {
    uint64_t padded_vocab;                     /* rows that are written; 0: not padded */
    uint64_t new_rows, carried_rows, cut_rows; /* padding rows: zeros, copied, left out */
    bool per_layer_names; /* torch_dist: layers differ: each has its own keys */
    size_t num_target_tensors, num_weight_files;
    uint64_t renewed_groups, renewed_weights; /* with new scales; set by write_small_files */
    uint64_t cast_tensors;                    /* weights */
    uint64_t encoded_tensors;                 /* anew */
    uint64_t cast_masters;                    /* weights cast from their masters */
    bool masters_alone;                       /* the format has masters for weights */
    uint64_t made_masters;                    /* for weights with states but no master */
    uint64_t widened_states;                  /* written as F32 */
    uint64_t dp;   /* data parallel ranks with files; 0: the format has none */
    bool has_zero; /* the stage of ZeRO is known */
    unsigned zero;
    const char *passed_over;   /* states that the target's program does not read; NULL: none */
    const char *changed_decay; /* "weight decay of ... becomes 0"; NULL: none changes */
    const char *flags; /* flags for Megatron-LM beside --use-checkpoint-args; NULL or "": none */
};

/* How a part of the training state is written. */
enum state_outcome {
    OUTCOME_NONE,
    OUTCOME_COPIED,
    OUTCOME_TRANSLATED,
    OUTCOME_MADE,
    OUTCOME_DROPPED
};
struct training_outcome {
    enum state_outcome outcome;
    const char *why; /* for OUTCOME_DROPPED and OUTCOME_MADE; may be NULL */
};

struct target {
    struct target_options options;
    const struct format *format;
    const struct checkpoint *source;
    const struct model_map *map;   /* the family's; NULL: unknown and not needed */
    const struct model_maps *maps; /* borrowed */
    struct layout layout;
    /* HybridModel's, to write its keys and args (convert/megatron/hybrid.h); NULL:
     * GPTModel's, or another format. */
    const struct hybrid_stack *hybrid;
    struct plan plan;
    bool widens_states;  /* the format keeps states in F32: narrower ones are widened */
    const char **states; /* optimizer states to write, the master first (convert/states.h); set by
                            target_take_states() */
    size_t num_states;
    struct training training; /* the source's, completed for the target */
    struct training_outcome outcomes[NUM_TRAINING_PARTS];
    struct target_facts facts;
    struct notes notes; /* notes for the user; in the plan's arena */
    struct gaps gaps; /* tensors that the source lacks; tensors that the target has no place for */
    const char *unit; /* folder published in a root, "iter_0000010"; NULL: no root */
    void *state;      /* the target_kind's state */
};

/* A writer of one format. */
struct target_kind {
    /* Adds files, segments and pieces to t->plan; lists gaps and notes. */
    enum status (*plan)(struct target *t, struct error *err);
    /* Writes the unit's small files into folder, after the weights; called by
     * target_small_files(). */
    enum status (*write_small_files)(struct target *t, const char *folder, struct error *err);
    /* The root's files that name the current unit (trackers), in the order in
     * which they must appear. In the plan's arena. NULL: the format has
     * none. */
    enum status (*root_files)(struct target *t, struct root_file **files, size_t *num_files,
                              struct error *err);
    void (*release)(struct target *t); /* frees t->state if it was set; NULL: nothing to free */
};
extern const struct target_kind target_hf, target_torch_dist, target_torch, target_dcp,
    target_torchtitan, target_fsdp, target_deepspeed, target_deepspeed_universal;

/* Estimated size of the small files in bytes, added to the disk space
 * needed. */
enum { SMALL_FILES_BYTES = 1 << 20 };

/* Makes the plan; release it even after a failure. ERR_UNSUPPORTED if tensors
 * are missing or unexpected and not allowed to be: t->gaps lists them. */
MUST_CHECK enum status target_plan(struct target *t, const struct target_options *o,
                                   const struct checkpoint *source, const struct model_maps *maps,
                                   struct error *err);
void target_release(struct target *t);

/* Writes the unit's small files into folder: those of the format, then the
 * tokenizer's. */
MUST_CHECK enum status target_small_files(struct target *t, const char *folder, struct error *err);
/* The source's folder of a tokenizer, if its files are copied; NULL: none. */
const char *target_tokenizer(const struct target *t);

/* A native tensor that is written (convert/naming.h). */
struct out_tensor {
    const char *name;        /* in its file */
    const char *native_name; /* of the parameter, as exported */
    const char *state;       /* NULL: the parameter itself */
    const char *logical;     /* logical tensor of its first part; NULL: none */
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
    uint64_t numel, filled;       /* filled: elements planned so far, by the target_kind */
    size_t first_part, last_part; /* convert/native_outputs.h; SIZE_MAX: none */
};
struct out_tensors {
    struct out_tensor *items;
    size_t count, capacity;
    struct map names;
};
struct native_output;
/* Index of a native tensor in `all` under its file's name; adds it if needed.
 * In arena a. */
size_t out_tensors_add(struct out_tensors *all, struct arena *a, const char *name,
                       const struct native_output *native);

/* Plans elements of a segment; pair: from flat in the native tensor, nested, to
 * the segment. */
MUST_CHECK enum status target_fill(struct target *t, const struct native_output *native,
                                   const struct pair *pair, uint32_t segment, struct error *err);

/* Sets t->states to the source's, unless options leave the optimizer out. Where
 * weights are cast and the source has masters, makes them of these either way.
 * masters: the format wants a master for each parameter with states; missing
 * ones are made of the weights, in t->plan.made. A target_kind that writes
 * states calls it before its export. */
MUST_CHECK enum status target_take_states(struct target *t, bool masters, struct error *err);
/* The source's or made tensor that parameter x is written from: where weights
 * are cast and the source has masters, the master cast. */
const struct tensor *target_weight(const struct target *t, const struct tensor *x);
/* State t->states[i] of parameter x: the source's tensor or a made one; NULL:
 * none. */
const struct tensor *target_state(struct target *t, const struct tensor *x, size_t i);

/* The encoding that an option names; NULL: none, as "bf16". */
const char *target_encoding_of(const char *option);
/* Whether weights are written in the encoding that they came in. */
bool target_encodes_as_source(const struct target *t);

/* The iteration to write: --iteration, else the source's, else the optimizer's
 * step. */
uint64_t target_iteration(const struct target *t);

/* target_take_states() for formats of torch's own trainers, which train the
 * weights themselves: wider masters become the weights, unless --torch-dtype
 * says otherwise, and are no states. Notes it. */
MUST_CHECK enum status target_take_trained(struct target *t, struct error *err);

/* Whether a logical tensor is a parameter, neither optimizer state nor
 * vocabulary padding nor carried along. */
bool is_parameter(const struct tensor *x);
/* The dtype of tensor x in the target: --torch-dtype casts weights, never
 * states; states become F32 where the format wants that. */
enum dtype target_dtype(const struct target *t, const struct tensor *x);

#endif
