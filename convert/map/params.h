/* params.h - makes tables of parameters (ckpt/param.h) for one config, from
 * rows: Megatron-Core's in convert/models/params.json, and a model map's.
 * convert/models/README.md has their language.
 *
 * A table and its texts lie in its arena, and may outlive the map or table that
 * it was made from. Sizes that the config lacks are 0. */
#ifndef FERRY_CONVERT_MAP_PARAMS_H
#define FERRY_CONVERT_MAP_PARAMS_H

#include "ckpt/checkpoint.h"
#include "ckpt/param.h"
#include "convert/map/model_map.h"

/* Makes a table from the rows of a map (NULL: only Megatron's), for config c. */
MUST_CHECK enum status params_make(const struct model_map *map, const struct model_config *c,
                                   struct arena *a, const struct param_table **out,
                                   struct error *err);
/* Makes a table from another table's rows, for config c. */
MUST_CHECK enum status params_again(const struct param_table *t, const struct model_config *c,
                                    struct arena *a, const struct param_table **out,
                                    struct error *err);

/* Sets c->params from c->config and the rows of `map`, one of maps (NULL: only Megatron's). Call it
 * again after the config changes. */
void params_use(struct checkpoint *c, const struct model_maps *maps, const struct model_map *map);

/* ---- other spellings of names in Megatron's files ---- */

/* A replacement for the beginning of a name; in a layer, of the part behind the
 * layer's number. */
struct param_spelling {
    const char *theirs, *ours;
    bool fused_qkv;  /* from before Megatron-Core: checkpoint_version gives the order of rows */
    bool local_spec; /* only the local spec has this name */
    bool written;    /* the name in memory today */
};
struct param_spellings {
    const struct param_spelling *in_layers, *beside_router, *outside;
    size_t num_in_layers, num_beside_router, num_outside;
    const char **layers; /* prefixes of "layers.N."; the first is today's */
    unsigned num_layers;
};
const struct param_spellings *params_spellings(const struct param_table *t);

#endif
