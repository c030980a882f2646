/* target.h - makes the plan for a target format and layout, and writes the small files beside the
 * weights. */
#ifndef FERRY_CONVERT_TARGET_H
#define FERRY_CONVERT_TARGET_H

#include "ckpt/checkpoint.h"
#include "ckpt/plan.h"
#include "ckpt/publish.h"
#include "common/args.h"
#include "convert/map/model_map.h"

/* How a format of Megatron keeps the states of the optimizer: its name is
 * the option's value. */
#define OPTIM_FORMATS(FIRST, NEXT)                                                                 \
    FIRST(fully_reshardable)                                                                       \
    NEXT(fully_sharded_model_space)                                                                \
    NEXT(distributed)                                                                              \
    NEXT(not_distributed)
#define OPTIM_ENUM(name) OPTIM_##name,
enum optim_format { OPTIM_DEFAULT, OPTIM_FORMATS(OPTIM_ENUM, OPTIM_ENUM) NUM_OPTIM_FORMATS };
extern const char *const optim_format_names[NUM_OPTIM_FORMATS]; /* the default's is NULL */
enum optim_format optim_format_find(const char *name);

struct target_options {
    const struct format *format;  /* convert/format.h */
    struct layout_options layout; /* used by Megatron's formats */
    bool casts;
    enum dtype dtype;      /* new dtype of floating-point weights, if casts */
    uint64_t divisible_by; /* --make-vocab-size-divisible-by; 0: the source's, else 128 */
    bool has_iteration;
    uint64_t iteration;
    bool transformer_engine;  /* names and extra states: TE's, else the local spec's */
    bool grouped_gemm;        /* written to args; names experts in legacy files */
    bool common_as_object;    /* torch_dist: the common state is an object, not common.pt */
    uint64_t max_shard_bytes; /* hf */
    bool durable;
    bool optimizer; /* the states of the optimizer are written, if the source has any */
    enum optim_format optim_format;
    uint64_t dp;      /* data parallel ranks whose files are written; 0: the source's, else 1 */
    int zero;         /* deepspeed: the stage of ZeRO; -1: the source's, else 1 */
    bool split_decay; /* parameters of one dimension have a group without weight decay */
    const char *optim_key; /* dcp: the key of the optimizer's state; NULL: "optim" */
    bool flatten_optim;    /* dcp: states under one key each, as
                              flatten_optimizer_state_dict=True saves them */
    bool split_qkv;        /* torchtitan: the optimizer has q, k and v apart (fuse_qkv=False) */
    const struct training_given *given; /* what the user says of the training; NULL: nothing */
    const cJSON *args; /* attributes of Megatron's args that are set, by name; NULL: none */
    /* Globs; NULL: none. Tensors that the source may lack are left out of the destination;
     * unexpected tensors of the source are left out too. */
    const struct arg_list *allow_missing, *allow_unexpected;
};

/* Facts for the plan's report. */
struct target_facts {
    uint64_t padded_vocab; /* rows that are written; 0: not padded */
    uint64_t new_rows, carried_rows,
        cut_rows;         /* rows of padding: zero, from the source, left out */
    bool per_layer_names; /* torch_dist: layers differ, so each has its own keys */
    size_t num_target_tensors, num_weight_files;
    uint64_t cast_tensors;   /* weights */
    uint64_t cast_masters;   /* weights that are cast from their masters */
    uint64_t made_masters;   /* of weights that have states but no master */
    uint64_t widened_states; /* written as F32 */
    uint64_t dp;             /* data parallel ranks that have files; 0: the format has none */
    bool has_zero;           /* the stage of ZeRO is known */
    unsigned zero;
    const char
        *flags; /* flags that Megatron-LM needs beside --use-checkpoint-args; NULL or "": none */
};

/* What becomes of a part of the training state. */
enum fate { FATE_NONE, FATE_CARRIED, FATE_TRANSLATED, FATE_MADE, FATE_DROPPED };
struct training_fate {
    enum fate fate;
    const char *why; /* of FATE_DROPPED and FATE_MADE; may be NULL */
};

struct target {
    struct target_options options;
    const struct format *format;
    const struct checkpoint *source;
    const struct model_map *map;   /* the family's; NULL: not known, and not needed */
    const struct model_maps *maps; /* borrowed */
    struct layout layout;
    struct plan plan;
    bool widens_states;  /* the format has states in F32: narrower ones are widened */
    const char **states; /* of the optimizer that are written, the master first (convert/states.h);
                            set by target_take_states() */
    size_t num_states;
    struct training training; /* the source's, completed for the target */
    struct training_fate fates[NUM_TRAINING_PARTS];
    struct target_facts facts;
    struct notes notes; /* notes for the user; in the plan's arena */
    struct gaps gaps; /* tensors that the source lacks; tensors of the source that have no place in
                         the target */
    const char *unit; /* the folder that is published within a root, "iter_0000010"; NULL: the
                         destination is no root */
    void *own;        /* state of the target_kind */
};

/* A writer of one format. */
struct target_kind {
    /* Adds files, segments and pieces to t->plan; lists gaps and notes. */
    enum status (*plan)(struct target *t, struct error *err);
    /* Writes the small files of the unit into folder, after the weights are written. */
    enum status (*write_small_files)(struct target *t, const char *folder, struct error *err);
    /* The files of the root that name the current unit (trackers), in the order in which they must
     * appear. In the plan's arena. NULL: the format has none. */
    enum status (*root_files)(struct target *t, struct root_file **files, size_t *num_files,
                              struct error *err);
    void (*release)(struct target *t); /* frees t->own if it was set; NULL: nothing to free */
};
extern const struct target_kind target_hf, target_torch_dist, target_torch, target_dcp,
    target_torchtitan, target_fsdp, target_deepspeed, target_deepspeed_universal;

/* An estimate of the small files' size in bytes, added to the disk space that is needed. */
enum { SMALL_FILES_BYTES = 1 << 20 };

/* Makes the plan. To be released after a failure too. ERR_UNSUPPORTED if tensors are missing or
 * unexpected and not allowed to be: t->gaps lists them. */
MUST_CHECK enum status target_plan(struct target *t, const struct target_options *o,
                                   const struct checkpoint *source, const struct model_maps *maps,
                                   struct error *err);
void target_release(struct target *t);

/* An own tensor that is written (convert/naming.h). */
struct out_tensor {
    const char *name;     /* in its file */
    const char *own_name; /* of the parameter, as the export has it */
    const char *state;    /* NULL: the parameter itself */
    const char *logical;  /* the logical tensor of its first part; NULL: none */
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
    uint64_t numel, filled;       /* filled: elements planned so far, counted by the target_kind */
    size_t first_part, last_part; /* convert/own_outputs.h; SIZE_MAX: none */
};
struct out_tensors {
    struct out_tensor *items;
    size_t count, capacity;
    struct map names;
};
struct own_output;
/* The index of an own tensor in `all`, under the name that its file gives it; adds it first if it
 * is not there. In arena a. */
size_t out_tensors_add(struct out_tensors *all, struct arena *a, const char *name,
                       const struct own_output *own);

/* Plans elements of a segment from source: pair maps (flat in the own tensor, nested) to elements
 * of the segment. */
MUST_CHECK enum status target_fill(struct target *t, const struct own_output *own,
                                   const struct pair *pair, uint32_t segment, struct error *err);

/* Sets t->states to the source's, unless options leave the optimizer out. masters: the format wants
 * one of each parameter that has states; those that the source lacks are made of the weights, in
 * t->plan.made. A target_kind that writes states calls it before its export. */
MUST_CHECK enum status target_take_states(struct target *t, bool masters, struct error *err);
/* The tensor of the source, or one that was made, that parameter x is written from: where weights
 * are cast and masters are carried, a weight is its master cast. */
const struct tensor *target_weight(const struct target *t, const struct tensor *x);
/* State i of t->states of parameter x: the source's tensor, or the one that was made; NULL: the
 * parameter has none. */
const struct tensor *target_state(struct target *t, const struct tensor *x, size_t i);

/* The iteration to write: by --iteration, else the source's, else the optimizer's step. */
uint64_t target_iteration(const struct target *t);

/* For formats of torch's own trainers, whose weights are what the optimizer trains:
 * target_take_states(), where wider masters become the weights, unless --torch-dtype says
 * otherwise, and are no states. Notes it. */
MUST_CHECK enum status target_take_trained(struct target *t, struct error *err);

/* Whether a logical tensor is a parameter, not a state of the optimizer or padding of the
 * vocabulary. */
bool is_parameter(const struct tensor *x);
/* The dtype of tensor x in the target: --torch-dtype casts weights, never states; these become F32
 * where the format wants them so. */
enum dtype target_dtype(const struct target *t, const struct tensor *x);

#endif
