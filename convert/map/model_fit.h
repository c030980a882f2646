/* model_fit.h - finds the family of a model by its config, or by its tensors.
 *
 * A map fits a config that it can express: the config has each constant of the
 * map, fields without a row are 0, and fields that share a name in config.json
 * are equal. Fields that change no result do not count. Of several fitting
 * maps,
 *
 *   1. one that extends another fitting map is left out: this config needs only
 *      the base;
 *   2. the map with the fewest rows for features that the model does not use
 *      wins.
 *
 * So a family need not list its neighbours' features. */
#ifndef FERRY_CONVERT_MAP_MODEL_FIT_H
#define FERRY_CONVERT_MAP_MODEL_FIT_H

#include "ckpt/param.h"
#include "convert/map/model_map.h"

/* The map that fits; NULL if none does, or two fit equally well. */
const struct model_map *model_fit(const struct model_maps *m, const struct model_config *c);

/* Families whose maps fit equally well, as text: "llama, ernie4_5". In arena a;
 * NULL: there are no two. */
const char *model_fit_alike(const struct model_maps *m, const struct model_config *c,
                            struct arena *a);
/* For a config that no map fits: the map that differs in the fewest fields, as
 * text: "qwen3, except for num_experts 8". In arena a; NULL if there are no
 * maps. */
const char *model_fit_nearest(const struct model_maps *m, const struct model_config *c,
                              struct arena *a);

/* The parameters of the built-in map that fits c, or of Megatron's GPT model
 * alone. In arena a. */
MUST_CHECK enum status model_fit_params(const struct model_config *c, struct arena *a,
                                        const struct param_table **out, struct error *err);

/* The tensors beside a config.json of an unknown model_type. */
struct hf_shapes {
    /* Whether a tensor of this name exists; sets *num_dims and *shape. */
    bool (*find)(const void *context, const char *name, unsigned *num_dims, const uint64_t **shape);
    const void *context;
    size_t count; /* number of tensors */
};
/* The map that matches most tensors by name and shape, as text: "llama, which
 * matches 145 of 146 tensors by name and shape"; *family is its name. In arena
 * a; NULL if no tensor fits any map. */
const char *model_fit_tensors(const struct model_maps *m, const cJSON *hf_config,
                              const struct hf_shapes *tensors, const char **family,
                              struct arena *a);

#endif
