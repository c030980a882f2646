/* config_map_internal.h - a config map in memory. */
#ifndef FERRY_CONVERT_MAP_CONFIG_MAP_INTERNAL_H
#define FERRY_CONVERT_MAP_CONFIG_MAP_INTERNAL_H

#include "convert/map/config_map.h"

enum direction { IMPORT = 1, EXPORT = 2 };

struct model_map;

/* One field of the file, one member of ours, and how to convert between them. */
struct config_row {
    const char *megatron, *key; /* the member's name; the field's name; either may be NULL */
    const char *also;           /* another name of the field, only read; NULL: none */
    const struct field *field;  /* of megatron */
    enum field_zero zero;       /* of field */
    const struct config_how *how;
    const char *when;   /* the row applies only if this condition holds; NULL: always */
    const char *holds;  /* a condition: the field is written true if it holds */
    const cJSON *value; /* a constant: of the member if key is NULL, else of the file's field */
    const cJSON *absent, *null; /* "default" and "null"; NULL: none */
    const cJSON *otherwise;     /* "else": written if `when` does not hold; NULL: nothing */
    unsigned directions;
};

/* Fields that are inert. */
struct inert_field {
    const char *name;    /* a glob */
    const cJSON *values; /* the inert values; texts are globs; NULL: any value */
};

struct config_map {
    struct config_file file;
    const struct config_fields *fields;
    bool partial; /* the file need not describe the whole model: config_map_make() */
    const struct model_map *model; /* expressions can name its sizes and conditions; NULL: none */
    struct config_row *rows;
    size_t num_rows, capacity;
    struct inert_field *inert;
    size_t num_inert, inert_capacity;
};

/* Arguments of the functions of a how: the row and the file at hand. */
struct config_context {
    const struct config_map *map;
    const struct config_row *row;
    cJSON *tree; /* the whole file */
    struct arena *arena;
};

/* Members of a row. A row with a how must have those in `has` and may have those in `may`. */
enum row_member {
    ROW_FIELD = 1,
    ROW_KEY = 2,
    ROW_VALUE = 4,
    ROW_HOLDS = 8,
    ROW_DEFAULT = 16,
    ROW_NULL = 32,
};
struct config_how {
    const char *name;
    unsigned has, may;
    bool only_kind; /* the field must be of `kind` */
    enum field_kind kind;
    /* For a how without ROW_FIELD and ROW_KEY: the fields of the file and the members of ours
     * (globs) that it reads and writes. members: if a field is an object, the names in it that are
     * read; NULL: all. */
    const char *keys[5], *fields[4];
    const char *const *members;
    enum status (*from_file)(const struct config_context *x, void *to, struct error *err);
    enum status (*to_file)(const struct config_context *x, const void *from, struct error *err);
};
const struct config_how *config_how_find(const char *name);

/* ---- one field (config_map.c) ---- */

/* The name that the row's field has in this file: `key` or `also`. */
const char *config_key(const struct config_context *x);
/* Fails with "config.json: NAME WHAT". */
MUST_CHECK enum status config_bad_value(const struct config_context *x, const char *what,
                                        struct error *err);
MUST_CHECK enum status config_copy_from(const struct config_context *x, void *to,
                                        struct error *err);
MUST_CHECK enum status config_copy_to(const struct config_context *x, const void *from,
                                      struct error *err);
struct scalar config_scalar(const struct config_context *x, const void *from);
/* Whether 0 is a value of the member that the file writes as null. */
bool config_null_is_zero(const struct config_row *row);
/* Sets *out to whether the condition of the row holds for the file and the struct. */
MUST_CHECK enum status config_row_applies(const struct config_context *x, const void *record,
                                          bool *out, struct error *err);

/* ---- rotary positions (config_hows.c) ---- */

extern const char *const rope_members[];
MUST_CHECK enum status rope_from_file(const struct config_context *x, void *to, struct error *err);
MUST_CHECK enum status rope_to_file(const struct config_context *x, const void *from,
                                    struct error *err);

/* ---- what differs by layer (config_hows.c) ---- */

#define LAYER_HOW(name)                                                                            \
    MUST_CHECK enum status name##_from_file(const struct config_context *x, void *to,              \
                                            struct error *err);                                    \
    MUST_CHECK enum status name##_to_file(const struct config_context *x, const void *from,        \
                                          struct error *err)
LAYER_HOW(window);
LAYER_HOW(window_by_layer);
LAYER_HOW(moe_layers);
LAYER_HOW(window_size);
LAYER_HOW(moe_layer_freq);
#undef LAYER_HOW

/* ---- all rows ---- */

/* As config_map_read() and config_map_write(), with errors: in a map that is not partial, the first
 * field that is missing or has an impossible value is an error. */
MUST_CHECK enum status config_rows_read(const struct config_map *map, const cJSON *tree,
                                        struct arena *a, void *to, struct error *err);
MUST_CHECK enum status config_rows_write(const struct config_map *map, const void *from,
                                         cJSON *tree, struct error *err);

#endif
