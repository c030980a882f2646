/* params_internal.h - rows of parameters as they are written, shared by their reading and use. */
#ifndef FERRY_CONVERT_MAP_PARAMS_INTERNAL_H
#define FERRY_CONVERT_MAP_PARAMS_INTERNAL_H

#include "convert/map/model_map_internal.h"
#include "convert/map/params.h"

/* What names of sizes mean: Megatron's rows have those of params.json, a map's rows its own in
 * front of these. */
enum param_scope { SCOPE_MEGATRON, SCOPE_MAP, NUM_SCOPES };

struct section_row {
    const char *name, *size;
    bool shared;
};

struct param_row {
    const char *name, *local, *shape, *repeat, *sections_when; /* all but name may be NULL */
    enum param_place place;
    enum param_group group;
    enum param_scope scope;
    unsigned stacks;
    int split;
    bool padded, linear;
    struct section_row sections[MAX_SECTIONS];
    unsigned num_sections;
};

struct param_rows {
    struct param_row *items;
    size_t count, capacity;
    struct {
        struct size *items;
        size_t count, capacity;
    } sizes[NUM_SCOPES];
    struct param_spellings spellings;
};

/* Reads params.json of the program; its texts belong to *tree, which the caller deletes. */
MUST_CHECK enum status param_rows_load(struct arena *a, cJSON **tree, struct param_rows **out,
                                       struct error *err);
/* The rows of l->map: those of `base`, where its member "parameters" puts others in their place or
 * adds some. Each of these is checked with numbers put in. */
MUST_CHECK enum status param_rows_of_map(struct map_loader *l, const cJSON *tree,
                                         struct param_rows *base, struct param_rows **out);
/* The row of a logical name, with {l} and {e} or with numbers; NULL: none. */
const struct param_row *param_row_find(const struct param_rows *rows, const char *name);

/* A table of the rows, which it points to. */
const struct param_table *param_table_of(const struct param_rows *rows,
                                         const struct model_config *c, struct arena *a);
/* What names mean in the expressions of a row; map is filled and lies as long as *names is used. */
void param_row_names(const struct param_rows *rows, const struct param_row *row,
                     const struct model_config *c, struct model_map *map, struct map_names *names);

#endif
