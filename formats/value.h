/* value.h - Python values as data: the contents of a pickle that was read or will be written.
 *
 * Nothing is ever imported or called. A class, a function or an enum member is a name; an instance
 * is its class, its arguments and its state. Values are shared and may be cyclic, as in the pickle:
 * a walk must remember the values it has visited (value_walk does). Each lives in the arena that it
 * was made in. */
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
    VALUE_NATIVE,  /* the result of a hook; see pickle.h */
    VALUE_SKIPPED, /* a value that was not built; see pickle.h */
};

/* A class, function, dtype or other name: `torch bfloat16`, `argparse Namespace`. Python 2's module
 * names are mapped to Python 3's (__builtin__ -> builtins, copy_reg -> copyreg). */
struct value_global {
    const char *module, *name;
};

/* An instance, or the result of an unknown call. */
struct value_object {
    struct value *callable; /* the function or class: a global, or any value */
    struct value *args;     /* a tuple; NULL: none, the state belongs to the callable itself */
    struct value *kwargs;   /* a dict; NULL: none */
    struct value *state;    /* BUILD's argument: mostly a dict of attributes; NULL: none */
    struct value *items;    /* a list of items by APPEND(S) and ADDITEMS; NULL: none */
    struct value *pairs;    /* a dict of pairs by SETITEM(S); NULL: none */
    /* The function of torch's _rebuild_from_type_v2(function, callable, args, state), which makes
     * DTensors and the like; NULL: none. */
    struct value *rebuild;
    bool by_new; /* NEWOBJ (cls.__new__), not REDUCE (a call) */
};

/* The persistent id ('storage', class, key, location, numel [, view metadata]). */
struct value_storage {
    const char *key;        /* entry data/KEY of the archive */
    const char *class_name; /* "FloatStorage", "QInt8Storage", "UntypedStorage" */
    bool typed;             /* false: UntypedStorage, whose numel counts bytes */
    enum dtype dtype;       /* where typed; I8, U8 or I32 where quantised */
    const char *location;   /* "cpu", "cuda:0": for information */
    uint64_t numel;
    uint64_t view_offset; /* legacy stream only: elements into the root storage */
};

struct value_tensor {
    struct value_storage *storage;
    enum dtype dtype;
    uint64_t offset; /* elements of dtype into the storage */
    unsigned num_dims;
    const uint64_t *shape, *stride; /* elements; bounds against storage->numel are checked */
    bool parameter;                 /* wrapped by torch.nn.Parameter's rebuild */
};

/* The array of a LIST, SET or DICT has room for a power of two of items, at least 4 (see
 * value_internal.h): append by the functions below. */
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

/* Make values to write. Text is copied. */
struct value *value_none(struct arena *a);
struct value *value_bool(struct arena *a, bool truth);
struct value *value_int(struct arena *a, int64_t integer);
struct value *value_float(struct arena *a, double number);
struct value *value_text(struct arena *a, const char *text);
struct value *value_bytes(struct arena *a, const void *data, size_t bytes);
/* kind: LIST, TUPLE or SET. The array is copied. */
struct value *value_list(struct arena *a, enum value_kind kind, size_t count, struct value **items);
void value_append(struct arena *a, struct value *list, struct value *item);
struct value *value_dict(struct arena *a);
struct value *value_global(struct arena *a, const char *module, const char *name);
/* An instance by NEWOBJ with empty arguments and `state` for BUILD (NULL: none). */
struct value *value_instance(struct arena *a, const char *module, const char *name,
                             struct value *state);
/* A tensor with a contiguous storage `key` of its own. */
struct value *value_tensor(struct arena *a, const char *key, enum dtype dtype, unsigned num_dims,
                           const uint64_t *shape);

/* Adds a pair to a DICT that does not have the key yet, a value of any kind. */
void value_dict_put(struct arena *a, struct value *dict, struct value *key, struct value *v);
/* The same with a text as key. */
void value_dict_add(struct arena *a, struct value *dict, const char *key, struct value *v);
/* Replaces the value of the key in place, or adds the pair. Searches all keys first. */
void value_dict_set(struct arena *a, struct value *dict, const char *key, struct value *v);

/* The value of a text key of a DICT, or of an attribute of an OBJECT whose state is a dict (or a
 * tuple (dict, slots dict)). NULL if there is none, or v is NULL or of another kind. */
struct value *value_get(const struct value *v, const char *key);
/* Read a value (NULL allowed) as a type: false if it is of another kind. As in Python, a BOOL is
 * also an int and an INT also a float. A numpy scalar counts as its number, a 0-dim tensor does
 * not. */
bool value_as_int(const struct value *v, int64_t *out);
bool value_as_float(const struct value *v, double *out);
bool value_as_bool(const struct value *v, bool *out);
const char *value_as_text(const struct value *v); /* NULL if it is not a text or has a NUL */
/* Whether v is the global module.name; whether v is an object made by calling it or by the rebuild
 * function of its type. module NULL: any module. */
bool value_is_global(const struct value *v, const char *module, const char *name);
bool value_is_instance(const struct value *v, const char *module, const char *name);

/* Appends a text like Python's repr, cut at max_bytes; cycles are "...". */
void value_print(struct strbuf *out, const struct value *v, size_t max_bytes);

/* Calls visit for every tensor below v, each path once: path, dict keys and attribute names joined
 * with "." (list positions as numbers; what lies in the arguments of an opaque object below
 * "args"). Of equal keys in a dict the last counts. NUL in a key is written as C0 80. A container
 * is entered once, even if it is shared or cyclic, so a walk takes time linear in the file; a
 * shared tensor is visited under all its names. ERR_CORRUPT if the name of a tensor is not UTF-8 or
 * has more than VALUE_PATH_BYTES. Stops when visit fails. */
#define VALUE_PATH_BYTES 4096
MUST_CHECK enum status value_walk(const struct value *v, const char *path,
                                  enum status (*visit)(void *context, const char *path,
                                                       const struct value *tensor,
                                                       struct error *err),
                                  void *context, struct error *err);

#endif
