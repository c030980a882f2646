/* config_map.h - one kind of config file as rows: which of its fields is which member of a struct
 * of ours, there and back. config.json of a family, Megatron's args and run_config.yaml are such
 * files, each a tree of JSON. convert/models/README.md has the language of the rows.
 *
 * Each field of a file is one of three: a row reads it; it is inert (whatever it says, or with the
 * values that the map lists, it does not change what is computed from the same weights); or it is
 * unknown. */
#ifndef FERRY_CONVERT_MAP_CONFIG_MAP_H
#define FERRY_CONVERT_MAP_CONFIG_MAP_H

#include <cjson/cJSON.h>

#include "ckpt/field.h"
#include "ckpt/model_config.h"
#include "common/arena.h"
#include "common/status.h"

struct config_map;

/* The struct whose members the rows of a map name. */
struct config_fields {
    /* The member of a name; *zero: what 0 in it means. NULL: there is none. */
    const struct field *(*find)(const char *name, enum field_zero *zero);
    const void *sample; /* one that has values, to try rows with */
    size_t size;        /* of the struct, in bytes */
    bool is_model;      /* it is a struct model_config, whose members expressions can name */
};
extern const struct config_fields model_config_fields;

/* A file that is not Hugging Face's: rows are filled in by how it is called. */
struct config_file {
    const char *name;   /* "args", for messages */
    const char *member; /* what rows call its fields, "args"; "args.NAME" in expressions */
    bool lists_unknown; /* unknown are only fields that the map's "watched" names; else all that it
                           does not name */
};

/* Makes a map of the rows `list` (and the fields `watched` or `inert`, an object; NULL: none) that
 * say something of the file. Such a file may say less than a model has: what it lacks, or says by a
 * value of another type, stays as it is when it is read; a whole number that is 0 is written as
 * null. The trees must live as long as the map, which lies in arena a. ERR_USAGE names the row that
 * is wrong. */
MUST_CHECK enum status config_map_make(const struct config_file *file,
                                       const struct config_fields *fields, const cJSON *list,
                                       const cJSON *inert, struct arena *a,
                                       const struct config_map **out, struct error *err);

/* Fills `to` from the tree of such a file. Texts are in arena a. */
void config_map_read(const struct config_map *map, const cJSON *tree, struct arena *a, void *to);
/* Sets in tree, an object, what the rows say of `from`. */
void config_map_write(const struct config_map *map, const void *from, cJSON *tree);

/* A map, and what config_map_read made of a file. */
struct config_read {
    const struct config_map *map;
    const void *record;
};
/* Calls visit for each unknown field of a tree that these maps read together: its name, with dots
 * between those of objects ("rope_scaling.mrope_section"), and its value as text. What says nothing
 * is never unknown. Of a file that may say less than a model has, a field that what is computed
 * depends on is unknown, too, if it is of another type than its row takes. */
void config_unknown(const struct config_read *reads, size_t num_reads, const cJSON *tree,
                    void (*visit)(void *context, const char *name, const char *value),
                    void *context);
/* Whether an item is null, false, 0, "" or an empty list or object. */
bool config_says_nothing(const cJSON *item);

#endif
