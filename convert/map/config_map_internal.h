/* config_map_internal.h - a config map in memory. */
#ifndef FERRY_CONVERT_MAP_CONFIG_MAP_INTERNAL_H
#define FERRY_CONVERT_MAP_CONFIG_MAP_INTERNAL_H

#include "convert/map/config_map.h"

enum direction { IMPORT = 1, EXPORT = 2 };

struct model_map;

/* One field of the file, one of ours, and how one becomes the other. */
struct config_row {
    const char *megatron, *key; /* our name, the file's; either may be NULL */
    const char *also;           /* another spelling of key, which is read; NULL: none */
    const struct field *field;  /* of megatron */
    enum field_zero zero;       /* of field */
    const struct config_how *how;
    const char *when;   /* a condition without which the row does not apply; NULL: none */
    const char *holds;  /* a condition: the key is written true where it holds */
    const cJSON *value; /* a constant: of the field where there is no key, else of the key */
    const cJSON *absent, *null; /* "default" and "null"; NULL: none */
    const cJSON *otherwise;     /* "else": written where `when` does not hold; NULL: nothing */
    unsigned directions;
};

/* Fields that are inert. */
struct inert_field {
    const char *name;    /* a glob */
    const cJSON *values; /* a list, in which a text is a glob; NULL: any value */
};

struct config_map {
    struct config_file file;
    const struct config_fields *fields;
    bool partial;                  /* the file may say less than there is to say: config_map_make */
    const struct model_map *model; /* whose sizes expressions can name, and its conditions */
    struct config_row *rows;
    size_t num_rows, capacity;
    struct inert_field *inert;
    size_t num_inert, inert_capacity;
};

/* What a value becomes on its way, and back. */
struct config_context {
    const struct config_map *map;
    const struct config_row *row;
    cJSON *tree; /* the whole file */
    struct arena *arena;
};

/* What a row of this how has (must have all of `has`, and may have `may`). */
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
    /* Without ROW_FIELD and ROW_KEY: what it reads and writes of the file, and which fields of
     * ours, as globs. members: what is known of a key that is an object; NULL: all of it. */
    const char *keys[5], *fields[4];
    const char *const *members;
    enum status (*from_file)(const struct config_context *x, void *to, struct error *err);
    enum status (*to_file)(const struct config_context *x, const void *from, struct error *err);
};
extern const struct config_how config_hows[];
extern const size_t num_config_hows;
const struct config_how *config_how_find(const char *name);

/* ---- one field (config_map.c) ---- */

/* The name of the row's field in this file, of its spellings. */
const char *config_key(const struct config_context *x);
/* "config.json: NAME WHAT" */
MUST_CHECK enum status config_bad_value(const struct config_context *x, const char *what,
                                        struct error *err);
MUST_CHECK enum status config_copy_from(const struct config_context *x, void *to,
                                        struct error *err);
MUST_CHECK enum status config_copy_to(const struct config_context *x, const void *from,
                                      struct error *err);
struct scalar config_scalar(const struct config_context *x, const void *from);
/* Whether 0 is a value that the field has, which the file says by null. */
bool config_null_is_zero(const struct config_row *row);
/* Whether the row applies to what is in the file and in the struct. */
MUST_CHECK enum status config_row_applies(const struct config_context *x, const void *record,
                                          bool *out, struct error *err);

/* ---- rotary positions (config_rope.c) ---- */

extern const char *const rope_members[];
MUST_CHECK enum status rope_from_file(const struct config_context *x, void *to, struct error *err);
MUST_CHECK enum status rope_to_file(const struct config_context *x, const void *from,
                                    struct error *err);

/* ---- what differs by layer (config_layers.c) ---- */

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

/* As config_map_read and config_map_write. Of a file that is not partial, the first field that is
 * missing, or has a value that it cannot have, is an error. */
MUST_CHECK enum status config_rows_read(const struct config_map *map, const cJSON *tree,
                                        struct arena *a, void *to, struct error *err);
MUST_CHECK enum status config_rows_write(const struct config_map *map, const void *from,
                                         cJSON *tree, struct error *err);

#endif
