/* config_map_internal.h - a config map in memory. */
#ifndef FERRY_CONVERT_MAP_CONFIG_MAP_INTERNAL_H
#define FERRY_CONVERT_MAP_CONFIG_MAP_INTERNAL_H

#include "convert/map/config_map.h"

enum direction { IMPORT = 1, EXPORT = 2 };

struct model_map;
struct map_loader;
struct map_names;

/* A value by an expression: of a member of the struct, or of a field of the
 * file. */
struct config_expr {
    const char *name;          /* the member's or the field's */
    const struct field *field; /* the member; NULL: a feature by layer, or a field of the file */
    const struct model_field *by_layer; /* the member, if layers may have values; else NULL */
    unsigned layer_field;               /* the feature by layer, an index into layer_fields[] */
    const char *text;
};

/* A field of the file, a member of the struct, and how to convert between them. */
struct config_row {
    const char *megatron, *key; /* the member's name; the field's; either may be NULL */
    const char *also;           /* another name: read, written only if present; NULL: none */
    const struct field *field;  /* of megatron */
    enum field_zero zero;       /* of field */
    const struct config_how *how;
    const char *when;                         /* condition for the row to apply; NULL: always */
    const struct config_expr *reads, *writes; /* members set, and fields written, in order */
    size_t num_reads, num_writes;
    const cJSON *value; /* a constant: of the member if key is NULL, else of the file's field */
    const cJSON *absent, *null; /* "default" and "null"; NULL: none */
    const cJSON *otherwise;     /* "else": written if `when` does not hold; NULL: nothing */
    unsigned directions;
    const struct model_map *owner; /* the map that has the row; others inherit it */
};

/* Inert fields. */
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

/* Arguments of a how's functions: the row and the file. */
struct config_context {
    const struct config_map *map;
    const struct config_row *row;
    cJSON *tree; /* the whole file */
    struct arena *arena;
};

/* Members of a row. A how's rows must have those of `has` and may have those of
 * `may`. */
enum row_member {
    ROW_FIELD = 1,
    ROW_KEY = 2,
    ROW_VALUE = 4,
    ROW_DEFAULT = 8,
    ROW_NULL = 16,
    ROW_EXPRS = 32,
};
/* Two names of one field; "OBJECT.MEMBER" for a member. agree: whether their
 * values mean the same (NULL: equal ones do, and an absent or null one agrees
 * with any). */
struct config_spellings {
    const char *older, *newer;
    bool (*agree)(const struct config_context *x, const cJSON *older, const cJSON *newer);
};

struct config_how {
    const char *name;
    unsigned has, may;
    bool only_kind; /* the field must have `kind` */
    enum field_kind kind;
    /* For a how without ROW_FIELD and ROW_KEY: the file's fields and our
     * members (globs) that it reads and writes. members: the names that are
     * read in an object field; NULL: all. */
    const char *keys[5], *fields[4];
    const char *const *members;
    const struct config_spellings *spellings; /* up to one without names; NULL: none */
    enum status (*from_file)(const struct config_context *x, void *to, struct error *err);
    enum status (*to_file)(const struct config_context *x, const void *from, struct error *err);
};
const struct config_how *config_how_find(const char *name);

/* ---- one field (config_map.c) ---- */

/* The name of the row's field in this file: `key` or `also`. */
const char *config_key(const struct config_context *x);
/* Fails with "config.json: NAME WHAT". */
MUST_CHECK enum status config_bad_value(const struct config_context *x, const char *what,
                                        struct error *err);
MUST_CHECK enum status config_copy_from(const struct config_context *x, void *to,
                                        struct error *err);
MUST_CHECK enum status config_copy_to(const struct config_context *x, const void *from,
                                      struct error *err);
struct scalar config_scalar(const struct config_context *x, const void *from);
/* Whether the file writes the member's 0 as null. */
bool config_null_is_zero(const struct config_row *row);
/* The scope of a row's expressions. */
struct map_names config_names(const struct config_map *map, const cJSON *tree, const void *record);
/* Sets *out to whether the row's condition holds for the file and the struct. */
MUST_CHECK enum status config_row_applies(const struct config_context *x, const void *record,
                                          bool *out, struct error *err);

/* ---- rotary positions (config_rope.c) ---- */

extern const char *const rope_members[];
MUST_CHECK enum status rope_from_file(const struct config_context *x, void *to, struct error *err);
MUST_CHECK enum status rope_to_file(const struct config_context *x, const void *from,
                                    struct error *err);

/* Pairs of spellings, up to one without names. */
extern const struct config_spellings rope_spellings[];

/* ---- spellings of one field (config_spellings.c) ---- */

/* The value of a field or a member; NULL: absent. */
const cJSON *config_spelling_value(const cJSON *tree, const char *name);
/* Finds the first two spellings of a file whose values contradict each other. */
bool config_find_clash(const struct config_map *map, const cJSON *tree, struct arena *a,
                       struct config_spellings *out);
/* ERR_CORRUPT names both, if there are any. */
MUST_CHECK enum status config_refuse_clash(const struct config_map *map, const cJSON *tree,
                                           struct arena *a, struct error *err);

/* ---- expressions (config_exprs.c) ---- */

/* Reads "read" and "write" of a row: a text, of the row's member or field, or
 * an object of several. */
MUST_CHECK enum status config_exprs_load(const struct map_loader *l, const struct config_map *map,
                                         const cJSON *item, struct config_row *row);
/* Sets the members of the row's `reads`; without any, the row's member as it is. */
MUST_CHECK enum status config_exprs_from(const struct config_context *x, void *to,
                                         struct error *err);
/* Writes the row's `writes`; without any, the row's field as it is. */
MUST_CHECK enum status config_exprs_to(const struct config_context *x, const void *from,
                                       struct error *err);
/* Whether an expression names a field of the file, or only members of it. */
enum naming { NOT_NAMED_AT_ALL, NAMED_BELOW, NAMED_ITSELF };
/* How the expressions of a row read or write a field; name: a path with dots. */
enum naming config_exprs_read(const struct config_context *x, const char *name);
enum naming config_exprs_write(const struct config_row *row, const char *name);
/* Whether the row would write this value to the field `name`. */
bool config_exprs_say(const struct config_context *x, const void *record, const char *name,
                      const cJSON *item);
/* Whether an expression names any field of the file. */
bool config_expr_reads(const struct config_map *map, const char *text);
/* How it names this one. */
enum naming config_expr_names(const struct config_map *map, const char *text, const char *name);

/* ---- all rows ---- */

/* Whether a row sets this member. */
bool config_rows_set(const struct config_map *map, const char *member);

/* Like config_map_read() and config_map_write(), with errors: unless the map is
 * partial, the first field that is missing or has an impossible value is an
 * error. */
MUST_CHECK enum status config_rows_read(const struct config_map *map, const cJSON *tree,
                                        struct arena *a, void *to, struct error *err);
MUST_CHECK enum status config_rows_write(const struct config_map *map, const void *from,
                                         cJSON *tree, struct error *err);

#endif
