/* source_kind.h - interface of a checkpoint reader, and functions that readers
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
    /* Folder, or model in the hub's cache, whose config.json gives fields that
     * the checkpoint lacks. */
    const char *hf_config;
    const char *family; /* of the model map; NULL: by the config */
    bool has_ckpt_step;
    uint64_t ckpt_step;
    uint64_t true_vocab_size;             /* 0: taken from the checkpoint or config.json */
    const struct arg_list *allow_missing; /* globs; NULL: none */
    const struct arg_list *allow_config;  /* globs of unknown fields' names; NULL: none */
    bool casts; /* parts of a fused tensor may differ in dtype: cast to `dtype` */
    enum dtype dtype;
    bool widest; /* or to a dtype that holds all values, for looking only */
};

/* A reader of one format. */
struct source_kind {
    /* Whether it recognises the file or folder at path; o may be NULL. */
    bool (*matches)(const char *path, const struct source_options *o);
    /* Fills c, whose path and format are set. */
    enum status (*open)(struct checkpoint *c, const struct source_options *o,
                        const struct model_maps *maps, struct error *err);
};
extern const struct source_kind source_hf, source_torch_dist, source_torch, source_fsdp_dtensor,
    source_dcp, source_torchtitan, source_fsdp, source_deepspeed, source_deepspeed_universal;

/* The model map for a config.json: by --model, else by its model_type. */
MUST_CHECK enum status source_choose_map(const struct source_options *o,
                                         const struct model_maps *maps, const cJSON *hf_config,
                                         const struct model_map **map, struct error *err);
/* ERR_USAGE if --true-vocab-size contradicts a file's vocab_size (0: none). */
MUST_CHECK enum status source_check_vocab(const struct source_options *o, uint64_t vocab_size,
                                          const char *file, struct error *err);

/* Context of source_list_unknown(): one config file of a checkpoint. */
struct unknown_of {
    struct checkpoint *c;
    const struct source_options *o;
    const char *file; /* "config.json" */
    size_t count;     /* unknown fields that were found */
};
/* Adds an unknown field to the checkpoint, allowed if --allow-config matches
 * it. Visitor for config_unknown() (convert/map/config_map.h); context: a
 * struct unknown_of. A field in both args and run_config.yaml is added once. */
void source_list_unknown(void *context, const char *name, const char *value);
/* Reads spellings of one field that contradict each other as the newer one
 * says, unless --allow-config matches the newer one alone: removes the other
 * from config.json's tree, and adds it to the checkpoint's unknown fields. */
void source_settle_config(struct unknown_of *x, const struct model_map *map, cJSON *hf_config);
/* ERR_CORRUPT above 10,000 unknown fields: no config file has as many. */
MUST_CHECK enum status source_check_listed(const struct unknown_of *x, struct error *err);
/* Notes each glob of --allow-config that matches no unknown field of c. */
void source_note_unused(struct checkpoint *c, const struct source_options *o);
/* Text of that note for one glob, in arena a. */
const char *source_unused_text(struct arena *a, const char *glob);

/* ERR_UNSUPPORTED, naming the unknown fields that are not allowed: all for
 * commands that compute, which also need the whole config; those of args and
 * run_config.yaml for an export, which copies config.json unchanged. */
MUST_CHECK enum status source_check_computes(const struct checkpoint *c, struct error *err);
MUST_CHECK enum status source_check_exports(const struct checkpoint *c, struct error *err);
/* ERR_UNSUPPORTED, naming two spellings of a field that contradict each other,
 * if --allow-config chose neither: for all that use the value. */
MUST_CHECK enum status source_check_spellings(const struct checkpoint *c, const char *does,
                                              struct error *err);

/* Sets *same to whether two stored tensors have equal dtype, shape and bytes;
 * *at: first element that differs (0 if dtype or shape do). Reads both. */
MUST_CHECK enum status source_same_stored(const struct checkpoint *c, const struct stored_tensor *a,
                                          const struct stored_tensor *b, bool *same, uint64_t *at,
                                          struct error *err);
/* The same for native tensors, whose shapes may differ: files may hold pieces
 * of a flattened tensor without its shape. */
MUST_CHECK enum status source_same_native(struct checkpoint *c, const struct native_tensor *a,
                                          const struct native_tensor *b, bool *same, uint64_t *at,
                                          struct error *err);

/* Whether one of the globs matches the name. */
bool globs_match(const struct arg_list *globs, const char *name);

#endif
