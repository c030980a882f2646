/* source_kind.h - the interface of a reader of checkpoints, and what all readers share. */
#ifndef FERRY_CONVERT_SOURCE_KIND_H
#define FERRY_CONVERT_SOURCE_KIND_H

#include "ckpt/checkpoint.h"
#include "common/args.h"
#include "convert/map/model_map.h"

/* Bytes of the largest config.json or run_config.yaml that is read. */
enum { CONFIG_FILE_CAP = 16 << 20 };

struct source_options {
    /* Folder, or model in the hub's cache, with a config.json that says what the checkpoint does
     * not. */
    const char *hf_config;
    const char *family; /* of the model map; NULL: found out */
    bool has_ckpt_step;
    uint64_t ckpt_step;
    uint64_t true_vocab_size;             /* 0: what the checkpoint or config.json says */
    const struct arg_list *allow_missing; /* globs; NULL: none */
    const struct arg_list *allow_config;  /* globs of unknown fields' names; NULL: none */
    bool casts; /* parts of a fused tensor may differ in dtype: they become `dtype` */
    enum dtype dtype;
    bool widest; /* or one that holds them all, where the checkpoint is only looked at */
};

/* One way to read checkpoints. */
struct source_kind {
    /* Whether it reads what lies at path with these options; o may be NULL. */
    bool (*matches)(const char *path, const struct source_options *o);
    /* c->format is set. */
    enum status (*open)(struct checkpoint *c, const struct source_options *o,
                        const struct model_maps *maps, struct error *err);
};
extern const struct source_kind source_hf, source_torch_dist, source_torch;

/* The model map for a config.json: of --model where that is given, else by its model_type. */
MUST_CHECK enum status source_choose_map(const struct source_options *o,
                                         const struct model_maps *maps, const cJSON *hf_config,
                                         const struct model_map **map, struct error *err);
/* --true-vocab-size must not contradict the file that says vocab_size (0: it does not). */
MUST_CHECK enum status source_check_vocab(const struct source_options *o, uint64_t vocab_size,
                                          const char *file, struct error *err);

/* Where the unknown fields of a config file are listed. */
struct unknown_of {
    struct checkpoint *c;
    const struct source_options *o;
    const char *file; /* "config.json" */
    size_t count;     /* that were found */
};
/* Lists one of struct unknown_of (for config_unknown of convert/map/config_map.h), as allowed where
 * --allow-config says so. run_config.yaml may say again what args say: that is listed once. */
void source_list_unknown(void *context, const char *name, const char *value);
/* ERR_CORRUPT where there are more than 10,000: no config file has as many fields. */
MUST_CHECK enum status source_check_listed(const struct unknown_of *x, struct error *err);
/* Notes each glob of --allow-config that matches no unknown field of c. */
void source_note_unused(struct checkpoint *c, const struct source_options *o);
/* The same text for a glob; in arena a. */
const char *source_unused_text(struct arena *a, const char *glob);

/* ERR_UNSUPPORTED, naming them, where unknown fields are not allowed: any of them, for a model that
 * is computed; those of args and run_config.yaml, for one that is exported, since config.json goes
 * with it as it is. */
MUST_CHECK enum status source_check_computes(const struct checkpoint *c, struct error *err);
MUST_CHECK enum status source_check_exports(const struct checkpoint *c, struct error *err);

/* Whether two stored tensors are of one dtype and shape and hold the same bytes; *at: the first
 * element that differs (0 where dtype or shape do). Reads both. */
MUST_CHECK enum status source_same_stored(const struct checkpoint *c, const struct stored_tensor *a,
                                          const struct stored_tensor *b, bool *same, uint64_t *at,
                                          struct error *err);

/* Whether one of the globs matches the name. */
bool globs_match(const struct arg_list *globs, const char *name);

#endif
