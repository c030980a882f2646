/* model_fit.h - which family a model belongs to, by how well the maps fit it.
 *
 * A map fits a config where it can say it: each of the map's constants is the config's value,
 * fields of which the map has no row are 0, and fields that config.json says by one name are equal.
 * Fields that change nothing that is computed do not count. Of several maps that fit,
 *
 *   1. one that extends another that fits is left out: what the base can say needs no extension;
 *   2. the map with the fewest rows for features that the model has not is taken.
 *
 * So a family needs no list of what its neighbours have. */
#ifndef FERRY_CONVERT_MAP_MODEL_FIT_H
#define FERRY_CONVERT_MAP_MODEL_FIT_H

#include "ckpt/param.h"
#include "convert/map/model_map.h"

/* The map that fits; NULL where none does, or two fit equally well. */
const struct model_map *model_fit(const struct model_maps *m, const struct model_config *c);

/* The map that differs in the fewest fields from a config that none fits, as text for people:
 * "qwen3, but for num_experts 8". In arena a; NULL where there are no maps. */
const char *model_fit_nearest(const struct model_maps *m, const struct model_config *c,
                              struct arena *a);

/* The parameters of the built-in map that fits c, or those of Megatron's GPT model alone. In arena
 * a. */
MUST_CHECK enum status model_fit_params(const struct model_config *c, struct arena *a,
                                        const struct param_table **out, struct error *err);

/* Of a config.json whose model_type no map has, and the tensors beside it. */
struct hf_shapes {
    /* Whether there is a tensor of this name; *num_dims and *shape: its own. */
    bool (*find)(const void *context, const char *name, unsigned *num_dims, const uint64_t **shape);
    const void *context;
    size_t count; /* of tensors */
};
/* The map by which most of the tensors have the names and shapes that it expects: "llama: 145 of
 * 146 tensors have its names and shapes". *family: its name. In arena a; NULL where none has any.
 */
const char *model_fit_tensors(const struct model_maps *m, const cJSON *hf_config,
                              const struct hf_shapes *tensors, const char **family,
                              struct arena *a);

#endif
