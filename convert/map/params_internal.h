/* params_internal.h - rows of parameters as JSON has them: params_read.c reads
 * them, params.c evaluates them. */
#ifndef FERRY_CONVERT_MAP_PARAMS_INTERNAL_H
#define FERRY_CONVERT_MAP_PARAMS_INTERNAL_H

#include "convert/map/model_map_internal.h"
#include "convert/map/params.h"

/* The sizes that a row's expressions can name. SCOPE_MEGATRON: those of
 * params.json; SCOPE_MAP: the map's, then those of params.json. */
enum param_scope { SCOPE_MEGATRON, SCOPE_MAP, NUM_SCOPES };

struct section_row {
    const char *name, *size;
    bool shared;
};

struct param_row {
    const char *name, *local, *shape, *repeat, *sections_when; /* all but name may be NULL */
    enum param_place place;
    enum split_group group;
    enum param_scope scope;
    unsigned stacks;
    int split;
    bool padded, linear, buffer, apart, own;
    struct section_row sections[MAX_SECTIONS];
    unsigned num_sections;
};

/* The order in which a model registers parameters: modules in order, and the
 * parameters of any module in order. A module with {l} or {e} stands for all. */
struct param_registration {
    const char **modules, **parameters;
    unsigned num_modules, num_parameters;
};

struct param_rows {
    struct param_row *items;
    size_t count, capacity;
    struct {
        struct size *items;
        size_t count, capacity;
    } sizes[NUM_SCOPES];
    struct param_spellings spellings;
    struct param_registration registration;
    const char **core; /* globs: rows of maps that models of Megatron-Core have, too */
    unsigned num_core;
};

/* Reads the embedded params.json. *tree owns its texts; the caller deletes it. */
MUST_CHECK enum status param_rows_load(struct arena *a, cJSON **tree, struct param_rows **out,
                                       struct error *err);
/* Makes the rows of l->map: those of `base`, of which the map's member
 * "parameters" replaces some and adds others. Checks the map's rows for sample
 * models. */
MUST_CHECK enum status param_rows_of_map(struct map_loader *l, const cJSON *tree,
                                         struct param_rows *base, struct param_rows **out);
/* The row of a logical name with {l} and {e}, or numbers; NULL: none. */
const struct param_row *param_row_find(const struct param_rows *rows, const char *name);

/* Makes the table of these rows. */
const struct param_table *param_table_of(const struct param_rows *rows,
                                         const struct model_config *c, struct arena *a);
/* Makes the scope of a row's expressions. Fills *map, which must live as long
 * as *names. */
void param_row_names(const struct param_rows *rows, const struct param_row *row,
                     const struct model_config *c, struct model_map *map, struct map_names *names);

#endif
