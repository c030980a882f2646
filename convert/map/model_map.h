/* model_map.h - architectures as data: what a family's config.json and tensors are called, and
 * which logical tensors they are.
 *
 * A map is a JSON file (convert/models/README.md says how one is written); those of the families
 * that Ferry knows are embedded in the program, a user adds one by --model-map. The same rows serve
 * both directions. Reading a map checks every row, with numbers put in, so that a wrong one is
 * refused by its name when it is loaded and not when it is used. */
#ifndef FERRY_CONVERT_MAP_MODEL_MAP_H
#define FERRY_CONVERT_MAP_MODEL_MAP_H

#include <cjson/cJSON.h>

#include "ckpt/model_config.h"
#include "ckpt/view.h"
#include "common/arena.h"
#include "common/status.h"
#include "common/strbuf.h"

struct model_map;

/* All maps: the embedded ones and, in front of them, the file `extra` (NULL: none). */
struct model_maps {
    struct arena arena;
    struct model_map **maps;
    size_t num_maps, capacity;
    struct param_rows *params; /* Megatron's */
    const cJSON *hows, *inert; /* of hows.json; of hf.json, fields of any config.json */
    cJSON **trees;             /* what the maps' texts belong to */
    size_t num_trees, trees_capacity;
};
MUST_CHECK enum status model_maps_load(struct model_maps *m, const char *extra, struct error *err);
void model_maps_release(struct model_maps *m);

const struct model_map *model_map_of_family(const struct model_maps *m, const char *family);
/* The map for a config.json, by its model_type (ERR_UNSUPPORTED lists what there is). */
MUST_CHECK enum status model_map_of_config(const struct model_maps *m, const cJSON *hf_config,
                                           const struct model_map **out, struct error *err);

const char *model_map_family(const struct model_map *map);
const char *model_map_about(const struct model_map *map);
const char *model_map_model_type(const struct model_map *map);
const char *model_map_architecture(const struct model_map *map);

/* What config.json calls a field of the config; NULL where the family has no such field. */
const char *model_map_hf_field(const struct model_map *map, const char *megatron);

/* ---- config ---- */

/* Fills c from config.json. Texts are in arena a. ERR_CORRUPT where a field is missing or has a
 * value that cannot be, ERR_UNSUPPORTED where Megatron has no counterpart. */
MUST_CHECK enum status model_config_from_hf(const struct model_map *map, const cJSON *hf_config,
                                            struct arena *a, struct model_config *c,
                                            struct error *err);
/* Sets in hf_config (an object, possibly empty) what the map's rows say of c. Fields that are there
 * with the same meaning keep their spelling; others are replaced or added. ERR_UNSUPPORTED where it
 * would then read as another model, naming the first field that does. */
MUST_CHECK enum status model_config_to_hf(const struct model_map *map, const struct model_config *c,
                                          cJSON *hf_config, struct error *err);
/* Calls visit for each field of config.json that is neither read nor inert (config_map.h). */
void model_config_unknown(const struct model_map *map, const cJSON *hf_config,
                          void (*visit)(void *context, const char *name, const char *value),
                          void *context);
/* Whether a member of any config.json is inert, whatever it says (hf.json). */
bool model_maps_field_is_inert(const struct model_maps *m, const char *name);
/* The fields of c, "layernorm_epsilon, rotary_base", that such a config.json has and that nobody
 * gave (0 or NULL). In arena a; NULL: none. */
const char *model_config_lacks(const struct model_map *map, const struct model_config *c,
                               struct arena *a);
/* What any model must fulfil, whoever described it: sizes above 0, groups that divide heads, finite
 * positive epsilon ... ERR_CORRUPT. */
MUST_CHECK enum status model_config_check(const struct model_config *c, struct error *err);

/* ---- tensors ---- */

/* One part of a logical tensor: elements of a Hugging Face tensor. */
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
};

/* What the Hugging Face side holds, for names of which several are in use: true where a tensor of
 * that name exists. NULL has: the first spelling is taken, which is the one that is written. */
struct hf_names {
    bool (*has)(const void *context, const char *name);
    const void *context;
};

/* Calls visit for every logical tensor of a model of this config, in the order in which Hugging
 * Face lists its tensors. What is passed is valid during the call. */
MUST_CHECK enum status model_map_expand(
    const struct model_map *map, const struct model_config *c, const struct hf_names *names,
    enum status (*visit)(void *context, const struct mapped_tensor *t, struct error *err),
    void *context, struct error *err);

/* Whether a Hugging Face tensor that no row names is one that old files carry and nobody needs. */
bool model_map_ignores(const struct model_map *map, const char *hf_name);

/* The rows as a table for people (ferry models --show). */
void model_map_print(struct strbuf *out, const struct model_map *map);
/* The same as an object, for the caller to delete. */
cJSON *model_map_json(const struct model_map *map);

#endif
