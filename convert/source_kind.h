/* source_kind.h - the interface of a reader of checkpoints, and functions that all readers
 * share. */
#ifndef FERRY_CONVERT_SOURCE_KIND_H
#define FERRY_CONVERT_SOURCE_KIND_H

#include "ckpt/checkpoint.h"
#include "common/args.h"
#include "convert/map/model_map.h"

/* Size limit of config.json and run_config.yaml, in bytes. */
enum { CONFIG_FILE_CAP = 16 << 20 };

struct source_options {
    const struct format *format; /* --from; NULL: the one that recognises the path */
    /* Folder, or model in the hub's cache, whose config.json gives fields that the checkpoint
     * lacks. */
    const char *hf_config;
    const char *family; /* of the model map; NULL: determined from the config */
    bool has_ckpt_step;
    uint64_t ckpt_step;
    uint64_t true_vocab_size;             /* 0: taken from the checkpoint or config.json */
    const struct arg_list *allow_missing; /* globs; NULL: none */
    const struct arg_list *allow_config;  /* globs of unknown fields' names; NULL: none */
    bool casts; /* parts of a fused tensor may differ in dtype: all become `dtype` */
    enum dtype dtype;
    bool widest; /* or all become a dtype that holds the values of all, to look at only */
};

/* A reader of one format. */
struct source_kind {
    /* Whether this reader recognises the file or folder at path; o may be NULL. */
    bool (*matches)(const char *path, const struct source_options *o);
    /* Fills c, whose path and format are set. */
    enum status (*open)(struct checkpoint *c, const struct source_options *o,
                        const struct model_maps *maps, struct error *err);
};
extern const struct source_kind source_hf, source_torch_dist, source_torch, source_fsdp_dtensor,
    source_dcp, source_torchtitan, source_fsdp, source_deepspeed, source_deepspeed_universal;

/* The model map for a config.json: the map of --model if given, else by its model_type. */
MUST_CHECK enum status source_choose_map(const struct source_options *o,
                                         const struct model_maps *maps, const cJSON *hf_config,
                                         const struct model_map **map, struct error *err);
/* ERR_USAGE if --true-vocab-size contradicts the vocab_size of a file (0: the file has none). */
MUST_CHECK enum status source_check_vocab(const struct source_options *o, uint64_t vocab_size,
                                          const char *file, struct error *err);

/* Context of source_list_unknown(): one config file of a checkpoint. */
struct unknown_of {
    struct checkpoint *c;
    const struct source_options *o;
    const char *file; /* "config.json" */
    size_t count;     /* unknown fields that were found */
};
/* Adds an unknown field to the checkpoint, as allowed if --allow-config matches it. A visitor for
 * config_unknown() of convert/map/config_map.h; context is a struct unknown_of. A field that both
 * args and run_config.yaml have is added once. */
void source_list_unknown(void *context, const char *name, const char *value);
/* ERR_CORRUPT where there are more than 10,000: no config file has as many fields. */
MUST_CHECK enum status source_check_listed(const struct unknown_of *x, struct error *err);
/* Notes each glob of --allow-config that matches no unknown field of c. */
void source_note_unused(struct checkpoint *c, const struct source_options *o);
/* The text of that note for one glob; in arena a. */
const char *source_unused_text(struct arena *a, const char *glob);

/* ERR_UNSUPPORTED, naming the unknown fields that are not allowed: all of them for commands that
 * compute; only those of args and run_config.yaml for an export, since config.json is copied as it
 * is. What computes needs the whole config, too. */
MUST_CHECK enum status source_check_computes(const struct checkpoint *c, struct error *err);
MUST_CHECK enum status source_check_exports(const struct checkpoint *c, struct error *err);

/* Sets *same to whether two stored tensors have the same dtype, shape and bytes; *at is the first
 * element that differs (0 if dtype or shape differ). Reads both. */
MUST_CHECK enum status source_same_stored(const struct checkpoint *c, const struct stored_tensor *a,
                                          const struct stored_tensor *b, bool *same, uint64_t *at,
                                          struct error *err);
/* The same of two own tensors, of which the shapes may differ: files may have pieces of a flattened
 * one, whose shape nothing tells. */
MUST_CHECK enum status source_same_own(struct checkpoint *c, const struct own_tensor *a,
                                       const struct own_tensor *b, bool *same, uint64_t *at,
                                       struct error *err);

/* Whether one of the globs matches the name. */
bool globs_match(const struct arg_list *globs, const char *name);

#endif
