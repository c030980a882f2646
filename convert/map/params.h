/* params.h - tables of parameters (ckpt/param.h) for one config, out of rows that are data:
 * Megatron-Core's own in convert/models/params.json, and those that a model map adds. How a row is
 * written: convert/models/README.md.
 *
 * A table lies in the arena that it is made in, with all its texts: neither the map nor the table
 * that it was made of need to outlive it. What the config does not tell is 0 in its sizes. */
#ifndef FERRY_CONVERT_MAP_PARAMS_H
#define FERRY_CONVERT_MAP_PARAMS_H

#include "ckpt/checkpoint.h"
#include "ckpt/param.h"
#include "convert/map/model_map.h"

/* The rows of a map (NULL: Megatron's alone), for config c. */
MUST_CHECK enum status params_make(const struct model_map *map, const struct model_config *c,
                                   struct arena *a, const struct param_table **out,
                                   struct error *err);
/* The rows of another table, for config c. */
MUST_CHECK enum status params_again(const struct param_table *t, const struct model_config *c,
                                    struct arena *a, const struct param_table **out,
                                    struct error *err);

/* Sets c->params by c->config, with the rows of `map` (NULL: Megatron's alone), one of maps. To be
 * called again where the config is set or changed. */
void params_use(struct checkpoint *c, const struct model_maps *maps, const struct model_map *map);

/* ---- other spellings of names in Megatron's files ---- */

/* The beginning of a name, behind the layer's number where it has one. */
struct param_spelling {
    const char *theirs, *ours;
    bool fused_qkv;  /* of before Core: rows ordered after checkpoint_version */
    bool local_spec; /* only the local spec has it */
};
struct param_spellings {
    const struct param_spelling *in_layers, *beside_router, *outside;
    size_t num_in_layers, num_beside_router, num_outside;
    const char **layers; /* what stands before "layers.N."; the first one is today's */
    unsigned num_layers;
};
const struct param_spellings *params_spellings(const struct param_table *t);

#endif
