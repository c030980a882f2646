/* model_map_internal.h - a model map in memory, for its loading, configs and
 * tensors. */
#ifndef FERRY_CONVERT_MAP_MODEL_MAP_INTERNAL_H
#define FERRY_CONVERT_MAP_MODEL_MAP_INTERNAL_H

#include "common/strbuf.h"
#include "convert/map/config_map_internal.h"
#include "convert/map/embedded.h"
#include "convert/map/expr.h"
#include "convert/map/model_map.h"
#include "convert/map/pattern.h"

/* A name for an expression: a size of the map, or a row's override of it. */
struct size {
    const char *name, *text;
};

struct row_part {
    const char *megatron, *hf; /* patterns */
    unsigned tensor;           /* index into the row's hf names */
};

struct tensor_row {
    const char *megatron;
    const char **hf;
    unsigned num_hf;
    const char *when; /* NULL: always */
    const char *how;  /* name of the how, for messages; NULL: copied or transposed */
    struct row_part *parts;
    unsigned num_parts;
    struct size *with;
    unsigned num_with;
    bool per_layer, per_expert;
    bool mtp;                      /* of a layer of multi-token prediction alone */
    bool copy;                     /* Hugging Face's tensor is a copy, which files may lack */
    double add;                    /* the logical elements are Hugging Face's and this */
    const struct model_map *owner; /* the map that has the row; others inherit it */
    struct tensor_row *others;     /* [num_others] other spellings: the same logical tensor */
    unsigned num_others;
};
/* Spelling k of a row; 0: the row itself. */
static inline const struct tensor_row *row_spelling(const struct tensor_row *row, unsigned k)
{
    return k ? &row->others[k - 1] : row;
}

struct unsupported {
    const char *when, *why;
    const char *value; /* an expression, shown behind why; NULL: none */
};

struct model_map {
    const char *family, *about, *extends;
    const cJSON *own; /* a user's or a checkpoint's map, as read; NULL: embedded */
    const char **model_types, **architectures; /* a new config.json gets the first of each */
    unsigned num_model_types, num_architectures;
    const char *config_in; /* config.json has the model's fields in this object; NULL: at its top */
    const char **prefixes;
    unsigned num_prefixes;
    const char *mtp; /* the beginning of names of layers of multi-token prediction; NULL: none */
    struct size *sizes;
    size_t num_sizes, sizes_capacity;
    struct config_map config; /* of config.json */
    struct unsupported *unsupported;
    size_t num_unsupported;
    struct param_rows *params; /* Megatron's rows and those of this map */
    struct tensor_row *tensors;
    size_t num_tensors, tensors_capacity;
    const char **ignored, **carried; /* globs */
    size_t num_ignored, ignored_capacity, num_carried, carried_capacity;
};

/* A map while it is read. */
struct map_loader {
    struct model_maps *maps;
    struct arena *a;
    struct model_map *map;
    const cJSON *hows; /* hows for all maps */
    const cJSON *own;  /* hows of this map; NULL: none */
    const char *where; /* "tensors[3] (NAME)", for messages */
    struct error *err;
};
/* Like model_maps_load(), but loads these files, not the embedded ones. */
MUST_CHECK enum status map_load_files(struct model_maps *m, const struct embedded_file *files,
                                      size_t num_files, const char *extra, struct error *err);
MUST_CHECK enum status map_bad(const struct map_loader *l, const char *what);
MUST_CHECK enum status
map_bad_in(const struct map_loader *l); /* adds the place to l->err's message */

/* ---- items of a map ---- */

/* Reads member `name`, a text; *out is NULL if it is absent. */
MUST_CHECK enum status map_take_text(const struct map_loader *l, const cJSON *from,
                                     const char *name, const char **out);
/* Reads a text or a list of texts. */
MUST_CHECK enum status map_take_texts(const struct map_loader *l, const cJSON *item,
                                      const char ***out, unsigned *count);
/* Sets *first to the first item of member `name`, a list (or an object, if
 * allowed); NULL if it is absent or empty. */
MUST_CHECK enum status map_take_items(const struct map_loader *l, const cJSON *from,
                                      const char *name, bool object, const cJSON **first);
/* ERR_USAGE if item has a key that is not in `known`, the allowed keys with a
 * blank after each. */
MUST_CHECK enum status map_check_keys(const struct map_loader *l, const cJSON *item,
                                      const char *known);
MUST_CHECK enum status map_read_sizes(const struct map_loader *l, const cJSON *from,
                                      const char *member, struct size **sizes, size_t *count,
                                      size_t *capacity);
/* ERR_USAGE if a name has a placeholder other than {l}, {e} and, if `prefix`
 * (Hugging Face's names), {p}. */
MUST_CHECK enum status map_check_name(const struct map_loader *l, const char *name, bool prefix);
const char *map_row_name(struct map_loader *l, const char *list, size_t n, const cJSON *item,
                         const char *key);

/* ---- checks ---- */

/* Configs to check rows with: no sizes are equal by chance, all divisions are
 * even. */
enum { NUM_MAP_SAMPLES = 2 };
extern const struct model_config map_samples[NUM_MAP_SAMPLES];

/* ---- the config (config_map_load.c) ---- */

/* Appends the rows of a list and the inert fields of an object (either may be
 * NULL) to a map. A row replaces inherited rows of its name. */
MUST_CHECK enum status config_rows_load(struct map_loader *l, const cJSON *list,
                                        struct config_map *map);
MUST_CHECK enum status config_inert_load(struct map_loader *l, const cJSON *inert,
                                         struct config_map *map);
/* config.json of a map with config_in: the fields of the model's object, then
 * those at the top that it lacks; NULL: the map or the file has no such object.
 * The caller deletes it. */
cJSON *model_config_joined(const struct model_map *map, const cJSON *hf_config);
MUST_CHECK enum status map_check_unsupported(const struct map_loader *l,
                                             const struct unsupported *u);
/* Checks the sizes, and that the rows, evaluated for the samples, tile the
 * logical and the Hugging Face tensors. */
MUST_CHECK enum status map_check(struct map_loader *l);

/* The scope of a map's expressions. */
struct map_names {
    const struct model_map *map;       /* has the sizes */
    const struct model_config *config; /* has the config fields; NULL: none */
    const cJSON *file;                 /* the config file for hf.NAME; NULL: none */
    const char *member;                /* kind of the file: "hf", "args" or "run_config" */
    const struct tensor_row *row;      /* has the overrides `with`; NULL: none */
    int64_t layer, expert;             /* l and e; -1: not defined here */
    int depth;                         /* nesting depth of sizes that name sizes */
    struct arena *arena;               /* for lists; NULL: no expression has one */
    bool *varies; /* set to true if the expression reads l or e; NULL: not needed */
};
struct expr_names map_names_for(const struct map_names *names);
/* Evaluates an expression. A text in *out lies in the expression, the file or
 * the config, a list in names->arena. */
MUST_CHECK enum status map_value(const struct map_names *names, const char *text, struct term *out,
                                 struct error *err);
/* Appends a name in which {EXPR} is the value of a whole number. */
MUST_CHECK enum status map_fill_name(const struct map_names *names, const char *pattern,
                                     struct strbuf *out, struct error *err);
/* Sets the beginning of the names of layer names->layer of multi-token
 * prediction; prefix: for {p}. */
MUST_CHECK enum status map_fill_mtp(const struct map_names *names, const char *prefix,
                                    struct strbuf *out, struct error *err);
/* Evaluates a condition; text NULL is true. */
MUST_CHECK enum status map_condition(const struct map_names *names, const char *text, bool *out,
                                     struct error *err);

#endif
