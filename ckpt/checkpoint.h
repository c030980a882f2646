/* checkpoint.h - one checkpoint: its tensors, its model, and how it was
 * written.
 *
 * Opening one (convert/source.h) reads headers and indexes, never bytes of
 * tensors, and fills the struct; afterwards only notes change. Tensors that a
 * conversion makes are in the plan (plan.h). */
#ifndef FERRY_CKPT_CHECKPOINT_H
#define FERRY_CKPT_CHECKPOINT_H

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "ckpt/model_config.h"
#include "ckpt/param.h"
#include "ckpt/training.h"
#include "formats/value.h"

/* The optimizer state of a checkpoint; moments are tensors of the catalog if
 * possible. */
struct optimizer_info {
    bool present;
    const char *kind; /* "distributed, fully_reshardable", for people */
    uint64_t size_bytes;
    bool inferred;       /* no file assigns elements to parameters: weights that equal their rounded
                            masters prove it (ckpt/masters.h) */
    bool placed;         /* chunks, or places in a storage, prove it, too */
    size_t remainders;   /* masters that are stored as remainders, and joined with their weights */
    const char *shifted; /* "states of 2 of 9 parameters, ...": those of other elements, as saved
                            (convert/megatron/optim/shifted.h); NULL: none */
    const char *unread;  /* why some of it is not in the catalog; NULL: all is */
};

/* States of random number generators of one pipeline and tensor parallel rank,
 * as the list of a file (convert/megatron/optim/rng_states.h), with bytes in
 * place of U8 tensors. */
struct rng_kept {
    uint64_t pp_rank, tp_rank;
    const struct value *states;
};

/* A group of torch.optim's, whose parameters are listed. */
struct torch_group {
    const struct value *native; /* the program's dict; NULL: none */
    const char **names;         /* native tensors, in the file's order */
    double *steps;              /* of each; NaN: not known */
    size_t num_names;
};

/* For a run without such generators: it writes the states that its ranks had,
 * and makes the others from its seed, if a format keeps them. */
struct rng_made {
    bool wanted;
    const struct rng_kept *kept; /* [num_kept] */
    size_t num_kept;
    uint64_t seed;
    bool device_is_host; /* the device uses the generators of the CPU */
};

/* The state of the training. */
struct training_state {
    int64_t iteration;    /* -1: none */
    bool release;         /* chosen by the tracker word "release" */
    struct value *common; /* Megatron's common state (a dict with args), in arena; NULL: none */
    struct optimizer_info optimizer;
    struct training run; /* step, groups, schedule, from the files */
    struct rng_made rng; /* of a run that is saved */
    bool on_host;        /* saved for Megatron-LM on hosts without GPUs, whose Adam is PyTorch's */
    /* Megatron's dicts of these (convert/megatron/optim/param_groups.h), in
     * arena; NULL: none */
    const struct value **native_groups; /* [run.num_groups] */
    const struct value *native_schedule;
    /* Those of torch.optim (convert/torch_groups.h); NULL if the files list no
     * parameters. */
    struct torch_group *torch_groups; /* [run.num_groups] */
    size_t torch_groups_capacity;
    const struct value *torch_schedule; /* state of an LRScheduler */
};

/* The source of the config. */
enum config_origin {
    CONFIG_OF_TENSORS, /* names and shapes alone */
    CONFIG_OF_ARGS,    /* Megatron's args, or run_config.yaml */
    CONFIG_OF_JSON     /* config.json */
};

/* Notes for the user, a line each. */
struct notes {
    const char **lines;
    size_t count, capacity;
};
void notes_add(struct notes *n, struct arena *a, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Prints the notes on stderr. */
void notes_print(const struct notes *n);

/* A field of a config file that is set (not null, false, 0, "" or []) and that
 * no row of the file's map reads; or one that another spelling of it
 * contradicts. It may change what the model computes. */
struct unknown_field {
    const char *file;         /* "config.json", "args", "run_config.yaml" */
    const char *name, *value; /* "rope_scaling.mrope_section", "[16,24,24]" */
    bool allowed;             /* by --allow-config: named in messages, not refused */
    /* The spelling that was read instead; NULL: the field is unknown. */
    const char *other, *other_value;
};
struct unknown_fields {
    struct unknown_field *items;
    size_t count, capacity;
};
/* All texts are copied into arena a. */
void unknown_fields_add(struct unknown_fields *u, struct arena *a, const char *file,
                        const char *name, const char *value, bool allowed);
/* Adds a field that another spelling contradicts. */
void unknown_fields_add_clash(struct unknown_fields *u, struct arena *a,
                              const struct unknown_field *field);
/* Whether any field is not allowed. */
bool unknown_fields_refused(const struct unknown_fields *u);
/* The first field of this name; NULL: none. */
const struct unknown_field *unknown_fields_find(const struct unknown_fields *u, const char *name);
/* Whether a glob matches the name of any field, or of its other spelling. */
bool unknown_fields_match(const struct unknown_fields *u, const char *glob);
/* "args: qk_l2_norm True, softmax_type learnable; config.json: foo 3": all
 * fields, or those not allowed; NULL: none. Lists the first 5, then "and N
 * more". Cuts long values, escapes control characters. In arena a. */
const char *unknown_fields_text(const struct unknown_fields *u, bool all, struct arena *a);

/* Names of missing tensors, which the model needs, and of unexpected ones,
 * which have no place in it; each by its side's name. */
struct gaps {
    const char **missing, **unexpected;
    size_t num_missing, missing_capacity, num_unexpected, unexpected_capacity;
};
/* A config of a few hundred bytes may ask for millions of tensors. */
enum { MAX_MISSING = 100000 };
/* Adds a name (copied). ERR_CORRUPT after MAX_MISSING. */
MUST_CHECK enum status gaps_add_missing(struct gaps *g, struct arena *a, const char *name,
                                        struct error *err);
void gaps_add_unexpected(struct gaps *g, struct arena *a, const char *name);
/* ERR_UNSUPPORTED with the number of gaps and the first names, if there are
 * any. path: the checkpoint's. */
MUST_CHECK enum status gaps_check(const struct gaps *g, const char *path, struct error *err);

/* Another name of a parameter that is no native tensor: a head tied to the
 * embedding. */
struct tied_name {
    const char *name, *of; /* of: the native tensor with the data */
};

struct format;
struct published_names;

struct checkpoint {
    struct arena arena;
    struct catalog catalog;
    const char *path;            /* as the user gave it */
    const char *folder;          /* the folder of the files: the iteration's, or path */
    const struct format *format; /* the reader's row (convert/format.h) */

    struct model_config config;
    const struct param_table
        *params; /* the parameters of config, in arena (convert/map/params.h); NULL: not known */
    enum config_origin config_origin;
    struct unknown_fields unknown; /* of config.json, args and run_config.yaml */
    bool contradicts;              /* the config does not fit the tensors */
    bool names_alone;              /* no config is known; logical tensors have native names */
    struct tied_name *tied;        /* in the files; a config may differ */
    size_t num_tied, tied_capacity;
    const char *family;   /* of the model map; NULL: not known */
    struct layout layout; /* as found; all 1 for Hugging Face */
    /* Number of data parallel ranks if the format has files of them (0: not
     * known); the stage of ZeRO if it is DeepSpeed's. */
    uint64_t dp;
    bool has_zero;
    unsigned zero;
    bool hybrid_model;             /* keys and args are those of Megatron's HybridModel */
    bool transformer_engine_names; /* known from in-memory names (legacy) or extra states */
    const char *hf_folder;         /* the folder of config.json and its companions; NULL: none */
    /* How the Hugging Face folder that it came from spelt names
     * (convert/published.h), in arena; NULL: as the map does first. */
    const struct published_names *published;
    const char *tokenizer_folder; /* of a Megatron iteration; NULL: none */
    struct training_state training;
    struct notes notes;
    struct gaps gaps;   /* found when opened; commands that need the whole model refuse them */
    size_t num_ignored; /* stored tensors and objects that no model needs */
};

void checkpoint_init(struct checkpoint *c, const char *path);
void checkpoint_release(struct checkpoint *c);
void checkpoint_note(struct checkpoint *c, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* "1 tensor WHAT: first", "7 tensors WHAT: first, second, third, fourth, fifth
 * and 2 more" */
const char *count_names_text(struct arena *a, const char *what, const char *const *names,
                             size_t count);
#endif
