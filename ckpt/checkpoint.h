/* checkpoint.h - what is known of one checkpoint: its tensors, its model, and how it was written.
 *
 * Opening one (convert/source.h) reads headers and indexes, never the bytes of tensors, and fills
 * it; from then on it does not change, but for notes. What a conversion makes is in the plan
 * (plan.h). */
#ifndef FERRY_CKPT_CHECKPOINT_H
#define FERRY_CKPT_CHECKPOINT_H

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "ckpt/model_config.h"
#include "ckpt/param.h"
#include "formats/value.h"

/* What a file says of its optimizer; moments are tensors of the catalog where they can be. */
struct optimizer_info {
    bool present;
    const char *kind; /* "distributed, fully_reshardable", for people */
    uint64_t size_bytes;
    const char *unread; /* why not all of it became tensors of the catalog; NULL: it did */
};

/* How far it was trained, and with what. */
struct training_state {
    int64_t iteration;    /* -1: none */
    bool release;         /* chosen by the tracker word "release" */
    struct value *common; /* Megatron's common state (a dict with args), in arena; NULL: none */
    struct optimizer_info optimizer;
};

/* Who says what the config has. */
enum config_origin {
    CONFIG_OF_TENSORS, /* their names and shapes alone */
    CONFIG_OF_ARGS,    /* Megatron's args, or run_config.yaml */
    CONFIG_OF_JSON     /* config.json */
};

/* What the user should know, a line each. */
struct notes {
    const char **lines;
    size_t count, capacity;
};
void notes_add(struct notes *n, struct arena *a, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* On stderr, a line each. */
void notes_print(const struct notes *n);

/* A field of a config file that says something (it is not null, false, 0, "" or []) and that no row
 * of the file's map reads: it may change what the model computes. */
struct unknown_field {
    const char *file;         /* "config.json", "args", "run_config.yaml" */
    const char *name, *value; /* "rope_scaling.mrope_section", "[16,24,24]" */
    bool allowed; /* by --allow-config: it is named, and no reason to refuse the model */
};
struct unknown_fields {
    struct unknown_field *items;
    size_t count, capacity;
};
/* All texts are copied into arena a. */
void unknown_fields_add(struct unknown_fields *u, struct arena *a, const char *file,
                        const char *name, const char *value, bool allowed);
/* Whether there are any that are not allowed. */
bool unknown_fields_refused(const struct unknown_fields *u);
/* The first one of this name; NULL: none. */
const struct unknown_field *unknown_fields_find(const struct unknown_fields *u, const char *name);
/* Whether a glob matches the name of one. */
bool unknown_fields_match(const struct unknown_fields *u, const char *glob);
/* "args: qk_l2_norm True, softmax_type learnable; config.json: foo 3" of all, or of those that are
 * not allowed; NULL: there are none. The first 5, and "and N more". Long values are cut, control
 * characters escaped. In arena a. */
const char *unknown_fields_text(const struct unknown_fields *u, bool all, struct arena *a);

/* Tensors, by the names that their side has for them, that a model should have and that are not
 * there, and the other way round. */
struct gaps {
    const char **missing, **unexpected;
    size_t num_missing, missing_capacity, num_unexpected, unexpected_capacity;
};
/* Lists a name, which is copied. ERR_CORRUPT where 100,000 are missing already: a config of a few
 * hundred bytes may ask for millions that are not there. */
MUST_CHECK enum status gaps_add_missing(struct gaps *g, struct arena *a, const char *name,
                                        struct error *err);
void gaps_add_unexpected(struct gaps *g, struct arena *a, const char *name);
/* ERR_UNSUPPORTED where there are any: how many, and the first of them. path: of the checkpoint. */
MUST_CHECK enum status gaps_check(const struct gaps *g, const char *path, struct error *err);

struct format;

struct checkpoint {
    struct arena arena;
    struct catalog catalog;
    const char *path;            /* as the user gave it */
    const char *folder;          /* where the files lie: the iteration's folder, or path */
    const struct format *format; /* a row of the reader's (convert/format.h) */

    struct model_config config;
    const struct param_table
        *params; /* of config, in arena (convert/map/params.h); NULL: not known */
    enum config_origin config_origin;
    struct unknown_fields unknown; /* of config.json, args and run_config.yaml */
    bool contradicts;              /* the config tells of other tensors than there are */
    const char *family;            /* of the model map; NULL: not known */
    struct layout layout;          /* as found; all 1 for Hugging Face */
    bool transformer_engine_names; /* in-memory names (legacy) or extra states say so */
    const char *hf_folder; /* where config.json and what travels with it lie; NULL: nowhere */
    struct training_state training;
    struct notes notes;
    struct gaps gaps;   /* opening lists all; who needs the model whole refuses */
    size_t num_ignored; /* stored tensors and objects that nobody needs */
};

void checkpoint_init(struct checkpoint *c, const char *path);
void checkpoint_release(struct checkpoint *c);
void checkpoint_note(struct checkpoint *c, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* "1 tensor WHAT: first", "7 tensors WHAT: first, second, third, fourth, fifth and 2 more" */
const char *count_names_text(struct arena *a, const char *what, const char *const *names,
                             size_t count);
#endif
