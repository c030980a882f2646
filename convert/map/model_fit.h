/* model_fit.h - finds the family of a model by its config, or by its tensors.
 *
 * A map fits a config if it can express it: the config has each of the map's constants, fields
 * without a row in the map are 0, and fields that share a name in config.json are equal. Fields
 * that change no result do not count. Of several maps that fit,
 *
 *   1. one that extends another that fits is left out: the base needs no extension for this config;
 *   2. the map with the fewest rows for features that the model does not use is taken.
 *
 * So a family needs no list of the features of its neighbours. */
#ifndef FERRY_CONVERT_MAP_MODEL_FIT_H
#define FERRY_CONVERT_MAP_MODEL_FIT_H

#include "ckpt/param.h"
#include "convert/map/model_map.h"

/* The map that fits; NULL if none does, or two fit equally well. */
const struct model_map *model_fit(const struct model_maps *m, const struct model_config *c);

/* For a config that no map fits: the map that differs from it in the fewest fields, as text:
 * "qwen3, but for num_experts 8". In arena a; NULL if there are no maps. */
const char *model_fit_nearest(const struct model_maps *m, const struct model_config *c,
                              struct arena *a);

/* The parameters of the built-in map that fits c, or those of Megatron's GPT model alone. In arena
 * a. */
MUST_CHECK enum status model_fit_params(const struct model_config *c, struct arena *a,
                                        const struct param_table **out, struct error *err);

/* The tensors beside a config.json whose model_type no map has. */
struct hf_shapes {
    /* Whether there is a tensor of this name; sets *num_dims and *shape. */
    bool (*find)(const void *context, const char *name, unsigned *num_dims, const uint64_t **shape);
    const void *context;
    size_t count; /* number of tensors */
};
/* The map whose expected names and shapes most of the tensors have, as text: "llama: 145 of 146
 * tensors have its names and shapes"; *family is its name. In arena a; NULL if no tensor fits any
 * map. */
const char *model_fit_tensors(const struct model_maps *m, const cJSON *hf_config,
                              const struct hf_shapes *tensors, const char **family,
                              struct arena *a);

#endif
