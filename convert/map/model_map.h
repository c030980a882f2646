/* model_map.h - architectures as data: the names of a family's config.json
 * fields and tensors in Hugging Face's files, and the config fields and logical
 * tensors that they correspond to.
 *
 * A map is a JSON file (convert/models/README.md has its language). Maps of
 * known families are embedded in the program; a user adds one by --model-map.
 * The same rows serve both directions.
 *
 * Loading a map checks every row with numbers, so a wrong row is refused by
 * name before use. */
#ifndef FERRY_CONVERT_MAP_MODEL_MAP_H
#define FERRY_CONVERT_MAP_MODEL_MAP_H

#include <cjson/cJSON.h>

#include "ckpt/model_config.h"
#include "ckpt/view.h"
#include "common/arena.h"
#include "common/status.h"
#include "common/strbuf.h"

struct model_map;

/* All maps: those of the file `extra` (NULL: none), those of the folder
 * $FERRY_MODELS, then the embedded ones. A file has one map, or a list of maps of
 * which each may extend those before it. An embedded map is read when it is first
 * needed. Not thread-safe. */
struct model_maps {
    struct arena arena;
    struct family_slot *slots; /* [num_maps] */
    size_t num_maps, capacity;
    struct param_rows *params; /* Megatron's */
    const cJSON *hows, *inert; /* from hows.json; inert fields of any config.json, from hf.json */
    bool loading_embedded;     /* whose bases are embedded, too */
    cJSON **trees;             /* own the texts of the maps */
    size_t num_trees, trees_capacity;
};
MUST_CHECK enum status model_maps_load(struct model_maps *m, const char *extra, struct error *err);
void model_maps_release(struct model_maps *m);
/* Map i of num_maps; its family alone, without reading the map. */
const struct model_map *model_maps_at(const struct model_maps *m, size_t i);
const char *model_maps_family(const struct model_maps *m, size_t i);

/* A map that is not embedded, and the maps that it extends, as a file has them:
 * for a checkpoint that needs it. The caller deletes it. NULL: an embedded map. */
cJSON *model_map_own_json(const struct model_maps *m, const struct model_map *map);
/* Adds the maps of a checkpoint's file behind the user's. Sets *differs to the
 * family if the user has another map of this name (NULL: not). */
MUST_CHECK enum status model_maps_add(const struct model_maps *m, const char *path,
                                      const char **differs, struct error *err);

const struct model_map *model_map_of_family(const struct model_maps *m, const char *family);
/* The map for a config.json, by its model_type. ERR_UNSUPPORTED lists the known
 * ones. */
MUST_CHECK enum status model_map_of_config(const struct model_maps *m, const cJSON *hf_config,
                                           const struct model_map **out, struct error *err);

const char *model_map_family(const struct model_map *map);
const char *model_map_about(const struct model_map *map);
const char *model_map_model_type(const struct model_map *map);
const char *model_map_architecture(const struct model_map *map);

/* The name of a config field in config.json; NULL if the family has none. */
const char *model_map_hf_field(const struct model_map *map, const char *megatron);

/* ---- config ---- */

/* Fills c from config.json. Texts are in arena a. ERR_CORRUPT if a required
 * field is missing or a value is impossible, ERR_UNSUPPORTED if Megatron has no
 * counterpart. */
MUST_CHECK enum status model_config_from_hf(const struct model_map *map, const cJSON *hf_config,
                                            struct arena *a, struct model_config *c,
                                            struct error *err);
/* Writes c into hf_config (an object, possibly empty) by the map's rows. Fields
 * with the same meaning keep their spelling; others are replaced or added.
 * ERR_UNSUPPORTED, naming the first field that differs, if the result would be
 * read as another model. */
MUST_CHECK enum status model_config_to_hf(const struct model_map *map, const struct model_config *c,
                                          cJSON *hf_config, struct error *err);
/* Calls visit for each field of config.json that is neither read nor inert
 * (config_map.h). */
void model_config_unknown(const struct model_map *map, const cJSON *hf_config,
                          void (*visit)(void *context, const char *name, const char *value),
                          void *context);
/* Two spellings of one field of config.json that contradict each other. */
struct spelling_clash {
    const char *names[2], *values[2]; /* the older one first; in the caller's arena */
};
/* Returns the index of the spelling to ignore. */
typedef unsigned settle_visit(void *context, const struct spelling_clash *clash);
/* Removes one of each two such spellings, so that model_config_from_hf(), which
 * refuses them, can read the rest. */
void model_config_settle(const struct model_map *map, cJSON *hf_config, struct arena *a,
                         settle_visit *visit, void *context);
/* Whether a field is inert in any config.json, with any value (hf.json). */
bool model_maps_field_is_inert(const struct model_maps *m, const char *name);
/* The fields that a config.json of this family needs and c lacks (0 or NULL),
 * as text: "layernorm_epsilon, rotary_base". In arena a; NULL: none. */
const char *model_config_lacks(const struct model_map *map, const struct model_config *c,
                               struct arena *a);
/* Checks conditions of every model, whatever file describes it: sizes above 0,
 * groups that divide heads, finite positive epsilon ... ERR_CORRUPT. */
MUST_CHECK enum status model_config_check(const struct model_config *c, struct error *err);

/* ---- tensors ---- */

/* A part of a logical tensor: elements of one Hugging Face tensor. */
struct mapped_part {
    const char *hf_name;
    unsigned num_dims;
    uint64_t shape[MAX_AXES]; /* of the Hugging Face tensor */
    struct pair pair;         /* a: flat in the logical tensor, nested; b: flat in the HF tensor */
};

struct mapped_tensor {
    const char *name; /* logical */
    unsigned num_dims;
    uint64_t shape[MAX_AXES];
    const struct mapped_part *parts;
    size_t num_parts;
    double add; /* its elements are Hugging Face's and this */
    bool copy;  /* the part is a copy of another row's tensor, in files that have it */
};

/* The existing Hugging Face tensors, to choose between several names of one
 * tensor. has(): whether a tensor of this name exists. NULL: the first name. */
struct hf_names {
    bool (*has)(const void *context, const char *name);
    const void *context;
    bool first_prefix; /* only spellings of rows are chosen */
    /* Whether a tensor that exists has this shape, to choose between spellings of
     * one name; NULL: all have. */
    bool (*fits)(const void *context, const char *name, unsigned num_dims, const uint64_t *shape);
};

/* How a published folder spells its names: what a map leaves open. In an arena. */
struct published_names {
    const char *prefix;     /* of {p} */
    const char **spellings; /* "NUMBER NAME" for each row that has several spellings: which, and
                               its first name; "absent NAME": there is no such copy; "DTYPE NAME":
                               of a tensor to which a number is added, if not most weights';
                               "LABEL NAME" of encoded ones (quantization.h) */
    size_t count;
};
/* The spelling of existing tensors, and `more` such texts; NULL: the map's first
 * of all, or nothing to choose. */
const struct published_names *model_map_published(const struct model_map *map,
                                                  const struct model_config *c,
                                                  const struct hf_names *names,
                                                  const char *const *more, size_t num_more,
                                                  struct arena *a);
/* Names by a published spelling. NULL: the first. */
struct hf_names published_hf_names(const struct published_names *published);

/* Calls visit for every logical tensor of a model with this config, in the
 * order of Hugging Face's files. The arguments are valid during the call only. */
MUST_CHECK enum status model_map_expand(
    const struct model_map *map, const struct model_config *c, const struct hf_names *names,
    enum status (*visit)(void *context, const struct mapped_tensor *t, struct error *err),
    void *context, struct error *err);

/* Sets the config's number of layers of multi-token prediction to those that
 * exist: files may lack them, but not some of a layer's tensors. */
void model_map_find_mtp(const struct model_map *map, struct model_config *c,
                        const struct hf_names *names);

/* Whether the map ignores a Hugging Face tensor without a row: old files have
 * some that no model needs. */
bool model_map_ignores(const struct model_map *map, const char *hf_name);

/* Whether a conversion carries such a tensor of a model with this config along
 * (convert/carried.h). */
bool model_map_carries(const struct model_map *map, const struct model_config *c,
                       const char *hf_name);

/* The rows as a table for people (ferry models --show). */
void model_map_print(struct strbuf *out, const struct model_map *map);
/* The rows as an object; the caller deletes it. */
cJSON *model_map_json(const struct model_map *map);

#endif
