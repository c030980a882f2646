/* value.h - Python values as data: the contents of a pickle.
 *
 * Nothing is ever imported or called. A class, a function or an enum member is
 * a name; an instance is its class, its arguments and its state. Values are
 * shared and may be cyclic, as in the pickle: a walk must remember visited
 * values (value_walk does). Each value stays in the arena where it was made. */
#ifndef FERRY_FORMATS_VALUE_H
#define FERRY_FORMATS_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/arena.h"
#include "common/dtype.h"
#include "common/strbuf.h"

enum value_kind {
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_BIG_INT, /* past 64 bits: bytes, little-endian two's complement */
    VALUE_FLOAT,
    VALUE_TEXT,  /* str (Python 2's too): UTF-8, lone surrogates as in the pickle */
    VALUE_BYTES, /* bytes and bytearray */
    VALUE_LIST,
    VALUE_TUPLE, /* torch.Size too */
    VALUE_SET,   /* frozenset too */
    VALUE_DICT,  /* OrderedDict, defaultdict, Counter too: pairs in order, later keys win */
    VALUE_GLOBAL,
    VALUE_OBJECT,
    VALUE_STORAGE, /* torch storage: a persistent id */
    VALUE_TENSOR,
    VALUE_NATIVE,  /* result of a hook; see pickle.h */
    VALUE_SKIPPED, /* not built; see pickle.h */
};

/* A class, function, dtype or other name: `torch bfloat16`, `argparse
 * Namespace`. Python 2's module names become Python 3's (__builtin__ ->
 * builtins, copy_reg -> copyreg). */
struct value_global {
    const char *module, *name;
};

/* An instance, or the result of an unknown call. */
struct value_object {
    struct value *callable; /* the function or class: a global, or any value */
    struct value *args;     /* a tuple; NULL: none, the state is the callable's */
    struct value *kwargs;   /* a dict; NULL: none */
    struct value *state;    /* BUILD's argument: mostly a dict of attributes; NULL: none */
    struct value *items;    /* a list of items by APPEND(S) and ADDITEMS; NULL: none */
    struct value *pairs;    /* a dict of pairs by SETITEM(S); NULL: none */
    /* The function of torch's _rebuild_from_type_v2(function, callable, args,
     * state), which makes DTensors and the like; NULL: none. */
    struct value *rebuild;
    bool by_new; /* NEWOBJ (cls.__new__), not REDUCE (a call) */
};

/* The persistent id ('storage', class, key, location, numel [, view metadata]). */
struct value_storage {
    const char *key;        /* entry data/KEY of the archive */
    const char *class_name; /* "FloatStorage", "QInt8Storage", "UntypedStorage" */
    bool typed;             /* false: UntypedStorage, whose numel counts bytes */
    enum dtype dtype;       /* if typed; I8, U8 or I32 if quantised */
    const char *location;   /* "cpu", "cuda:0": for information */
    uint64_t numel;
    uint64_t view_offset; /* legacy stream only: elements into the root storage */
};

struct value_tensor {
    struct value_storage *storage;
    enum dtype dtype;
    uint64_t offset; /* elements of dtype into the storage */
    unsigned num_dims;
    const uint64_t *shape, *stride; /* elements; checked against storage->numel */
    bool parameter;                 /* made by torch.nn.Parameter's rebuild */
};

/* The array of a LIST, SET or DICT has room for a power of two of items, at
 * least 4 (value_internal.h): append with the functions below. */
struct value {
    enum value_kind kind;
    uint32_t count; /* items of LIST, TUPLE, SET; pairs of DICT; bytes of TEXT, BYTES, BIG_INT */
    union {
        bool truth;
        int64_t integer;
        double number;
        const char *text;     /* TEXT, BYTES, BIG_INT; NUL behind the last byte */
        struct value **items; /* LIST, TUPLE, SET [count]; DICT: key, value, ... [2 * count] */
        struct value_global *global;
        struct value_object *object;
        struct value_storage *storage;
        struct value_tensor *tensor;
        void *native;
    };
};

/* Make values to write. They copy text. */
struct value *value_none(struct arena *a);
struct value *value_bool(struct arena *a, bool truth);
struct value *value_int(struct arena *a, int64_t integer);
struct value *value_float(struct arena *a, double number);
struct value *value_text(struct arena *a, const char *text);
struct value *value_bytes(struct arena *a, const void *data, size_t bytes);
/* kind: LIST, TUPLE or SET. Copies the array. */
struct value *value_list(struct arena *a, enum value_kind kind, size_t count, struct value **items);
void value_append(struct arena *a, struct value *list, struct value *item);
struct value *value_dict(struct arena *a);
struct value *value_global(struct arena *a, const char *module, const char *name);
/* An instance by NEWOBJ with an empty tuple of arguments; state (NULL: none) is
 * for BUILD. */
struct value *value_instance(struct arena *a, const char *module, const char *name,
                             struct value *state);
/* A tensor with a contiguous storage `key` of its own. */
struct value *value_tensor(struct arena *a, const char *key, enum dtype dtype, unsigned num_dims,
                           const uint64_t *shape);

/* Adds a pair with a new key of any kind to a DICT. */
void value_dict_put(struct arena *a, struct value *dict, struct value *key, struct value *v);
/* As value_dict_put(), with a text as key. */
void value_dict_add(struct arena *a, struct value *dict, const char *key, struct value *v);
/* Replaces the key's value, or adds the pair. Searches all keys. */
void value_dict_set(struct arena *a, struct value *dict, const char *key, struct value *v);

/* The value of a text key of a DICT, or of an attribute of an OBJECT whose
 * state is a dict (or a tuple (dict, slots dict)). NULL: none, or v is NULL or
 * of another kind. */
struct value *value_get(const struct value *v, const char *key);
/* Read a value (NULL allowed) as a type: false for another kind. As in Python,
 * a BOOL is also an int and an INT also a float. A numpy scalar counts as its
 * number, a 0-dim tensor does not. */
bool value_as_int(const struct value *v, int64_t *out);
bool value_as_float(const struct value *v, double *out);
bool value_as_bool(const struct value *v, bool *out);
const char *value_as_text(const struct value *v); /* NULL: not a text, or has a NUL */
/* Whether v is the global module.name; whether v is an object made by calling
 * it or by its type's rebuild function. module NULL: any module. */
bool value_is_global(const struct value *v, const char *module, const char *name);
bool value_is_instance(const struct value *v, const char *module, const char *name);

/* Appends a text like Python's repr, cut at max_bytes; cycles are "...". */
void value_print(struct strbuf *out, const struct value *v, size_t max_bytes);

/* Calls visit for every tensor below v, each path once: path, dict keys and
 * attribute names joined with "." (list positions as numbers; arguments of an
 * opaque object below "args"). The last of equal keys in a dict counts. NUL in
 * a key becomes C0 80. Enters a container once, even if shared or cyclic, so a
 * walk is linear in the file; visits a shared tensor under all its names.
 * ERR_CORRUPT if a tensor's name is not UTF-8 or has more than
 * VALUE_PATH_BYTES. Stops when visit fails. */
#define VALUE_PATH_BYTES 4096
MUST_CHECK enum status value_walk(const struct value *v, const char *path,
                                  enum status (*visit)(void *context, const char *path,
                                                       const struct value *tensor,
                                                       struct error *err),
                                  void *context, struct error *err);

#endif
