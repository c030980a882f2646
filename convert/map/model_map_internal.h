/* model_map_internal.h - a model map in memory, shared by its loading, its configs and its tensors.
 */
#ifndef FERRY_CONVERT_MAP_MODEL_MAP_INTERNAL_H
#define FERRY_CONVERT_MAP_MODEL_MAP_INTERNAL_H

#include "common/strbuf.h"
#include "convert/map/config_map_internal.h"
#include "convert/map/embedded.h"
#include "convert/map/expr.h"
#include "convert/map/model_map.h"
#include "convert/map/pattern.h"

/* A name that stands for an expression: a size of the map, or an override of a row. */
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
    const char *how;  /* name, for people; NULL: copied or transposed */
    struct row_part *parts;
    unsigned num_parts;
    struct size *with;
    unsigned num_with;
    bool per_layer, per_expert;
};

struct unsupported {
    const char *when, *why;
};

struct model_map {
    const char *family, *about, *model_type, *architecture, *extends;
    const char **prefixes;
    unsigned num_prefixes;
    struct size *sizes;
    size_t num_sizes, sizes_capacity;
    struct config_map config; /* of config.json */
    struct unsupported *unsupported;
    size_t num_unsupported;
    struct param_rows *params; /* Megatron's, and its own among them */
    struct tensor_row *tensors;
    size_t num_tensors, tensors_capacity;
    const char **ignored;
    size_t num_ignored, ignored_capacity;
};

/* A map that is being read. */
struct map_loader {
    struct model_maps *maps;
    struct arena *a;
    struct model_map *map;
    const cJSON *hows; /* of all maps */
    const cJSON *own;  /* of this one; NULL: none */
    const char *where; /* "tensors[3] (NAME)", for messages */
    struct error *err;
};
/* As model_maps_load, of these files in place of the program's own. */
MUST_CHECK enum status map_load_files(struct model_maps *m, const struct embedded_file *files,
                                      size_t num_files, const char *extra, struct error *err);
MUST_CHECK enum status map_bad(const struct map_loader *l, const char *what);
MUST_CHECK enum status map_bad_in(const struct map_loader *l); /* what l->err says already */

/* ---- items of a map ---- */

/* Member `name`, a text; NULL: it is not there. */
MUST_CHECK enum status map_take_text(const struct map_loader *l, const cJSON *from,
                                     const char *name, const char **out);
/* A text, or a list of texts. */
MUST_CHECK enum status map_take_texts(const struct map_loader *l, const cJSON *item,
                                      const char ***out, unsigned *count);
/* The first item of member `name`, a list (or an object); NULL: there are none. */
MUST_CHECK enum status map_take_items(const struct map_loader *l, const cJSON *from,
                                      const char *name, bool object, const cJSON **first);
/* known: the keys, a blank behind each. */
MUST_CHECK enum status map_check_keys(const struct map_loader *l, const cJSON *item,
                                      const char *known);
MUST_CHECK enum status map_read_sizes(const struct map_loader *l, const cJSON *from,
                                      const char *member, struct size **sizes, size_t *count,
                                      size_t *capacity);
/* Only {l}, {e} and, in Hugging Face's names, {p} stand for something. */
MUST_CHECK enum status map_check_name(const struct map_loader *l, const char *name, bool prefix);
const char *map_row_name(struct map_loader *l, const char *list, size_t n, const cJSON *item,
                         const char *key);

/* ---- checks ---- */

/* Models in which no two sizes are equal by chance, and those that one divides are divisible. */
enum { NUM_MAP_SAMPLES = 2 };
extern const struct model_config map_samples[NUM_MAP_SAMPLES];

/* ---- the config (config_map_load.c) ---- */

/* Reads the rows and inert fields of a list and an object (NULL: none) into map, behind those that
 * it has: rows of a base are replaced. */
MUST_CHECK enum status config_rows_load(struct map_loader *l, const cJSON *list,
                                        struct config_map *map);
MUST_CHECK enum status config_inert_load(struct map_loader *l, const cJSON *inert,
                                         struct config_map *map);
MUST_CHECK enum status map_check_unsupported(const struct map_loader *l,
                                             const struct unsupported *u);
/* Checks sizes, and that the rows, with numbers put in, tile the logical tensors and the
 * Hugging Face ones. */
MUST_CHECK enum status map_check(struct map_loader *l);

/* What names in a map's expressions stand for. */
struct map_names {
    const struct model_map *map;       /* for its sizes */
    const struct model_config *config; /* for its fields; NULL: none */
    const cJSON *file;                 /* a config file, for hf.NAME; NULL: none */
    const char *member;                /* "hf", "args" or "run_config": what the file is */
    const struct tensor_row *row;      /* for `with`; NULL: none */
    int64_t layer, expert;             /* l and e; -1: not known here */
    int depth;                         /* of sizes that stand for sizes */
    bool *varies; /* set where the value of l or e is asked for; NULL: nobody wants to know */
};
struct expr_names map_names_for(const struct map_names *names);
/* A condition; NULL text is true. */
MUST_CHECK enum status map_condition(const struct map_names *names, const char *text, bool *out,
                                     struct error *err);

#endif
