/* config_map.h - one kind of config file as rows: each row connects a field of
 * the file with a member of a struct, in both directions. Kinds are config.json
 * of a family, Megatron's args and run_config.yaml; a file is a tree of JSON.
 * convert/models/README.md has the language of the rows. A field of a file is
 *
 * - *read*: by a row;
 * - *inert*: with any value, or the values that the map lists, it does not
 *   change what the same weights compute;
 * - or *unknown*. */
#ifndef FERRY_CONVERT_MAP_CONFIG_MAP_H
#define FERRY_CONVERT_MAP_CONFIG_MAP_H

#include <cjson/cJSON.h>

#include "ckpt/field.h"
#include "ckpt/model_config.h"
#include "common/arena.h"
#include "common/status.h"

struct config_map;

/* The struct whose members a map's rows name. */
struct config_fields {
    /* Finds the member with this name, and in *zero the meaning of 0; NULL:
     * none. */
    const struct field *(*find)(const char *name, enum field_zero *zero);
    const void *sample; /* a struct with values, to try rows with */
    size_t size;        /* of the struct, in bytes */
    bool is_model;      /* a struct model_config: expressions can name its members */
};
extern const struct config_fields model_config_fields;

/* A kind of file other than config.json. */
struct config_file {
    const char *name;   /* "args", for messages */
    const char *member; /* "args": the member of a row that names a field of the file; expressions
                           write "args.NAME" */
    bool lists_unknown; /* only fields listed in `watched` can be unknown; false: all fields can */
};

/* Makes a map for a kind of file, in arena a, from the rows of `list` that
 * belong to it. inert: an object of field names and values, of watched fields
 * if file->lists_unknown; NULL: none. The trees must outlive the map. ERR_USAGE
 * names a wrong row.
 *
 * Such a file need not describe the whole model: members keep their value if
 * the file lacks their field or has another type there. A whole number of 0 is
 * written as null. */
MUST_CHECK enum status config_map_make(const struct config_file *file,
                                       const struct config_fields *fields, const cJSON *list,
                                       const cJSON *inert, struct arena *a,
                                       const struct config_map **out, struct error *err);

/* Sets the members of struct `to` from a file's tree. Texts are in arena a. */
void config_map_read(const struct config_map *map, const cJSON *tree, struct arena *a, void *to);
/* Sets the fields of tree, an object, from struct `from`. */
void config_map_write(const struct config_map *map, const void *from, cJSON *tree);

/* A map, and the struct that config_map_read() filled from a file. */
struct config_read {
    const struct config_map *map;
    const void *record;
};
/* Calls visit for each unknown field of a tree that these maps read together.
 * name: with dots for fields of objects ("rope_scaling.mrope_section"); value:
 * as text. An unset value (config_is_unset) is never unknown. In a file that
 * need not describe the whole model, a field that changes what is computed is
 * also unknown if its value has another type than its row takes. */
void config_unknown(const struct config_read *reads, size_t num_reads, const cJSON *tree,
                    void (*visit)(void *context, const char *name, const char *value),
                    void *context);
/* Whether an item is null, false, 0, "" or an empty list or object. */
bool config_is_unset(const cJSON *item);

#endif
