/* value.h - Python values as data: what a pickle holds, and what one is written from.
 *
 * Nothing is ever imported or called. A class, a function or an enum member is a name; an instance
 * is its class, its arguments and its state. Values are shared and may be cyclic, as in the pickle:
 * who walks them must remember where it was (value_walk does). All live in the arena that they were
 * made in. */
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
    VALUE_TEXT,  /* str (Python 2's too): UTF-8, lone surrogates as they came */
    VALUE_BYTES, /* bytes and bytearray */
    VALUE_LIST,
    VALUE_TUPLE, /* torch.Size too */
    VALUE_SET,   /* frozenset too */
    VALUE_DICT,  /* OrderedDict, defaultdict, Counter too: pairs in order, later keys win */
    VALUE_GLOBAL,
    VALUE_OBJECT,
    VALUE_STORAGE, /* torch storage: a persistent id */
    VALUE_TENSOR,
    VALUE_NATIVE,  /* what a hook put in its place; see pickle.h */
    VALUE_SKIPPED, /* was not built on request; see pickle.h */
};

/* A class, function, dtype or other name: `torch bfloat16`, `argparse Namespace`. Python 2's module
 * names are mapped to Python 3's (__builtin__ -> builtins, copy_reg -> copyreg). */
struct value_global {
    const char *module, *name;
};

/* An instance, or the result of a call that is none of the known kinds. */
struct value_object {
    struct value *callable; /* what was called or instantiated: a global, or any value */
    struct value *args;     /* a tuple; NULL: none, the callable itself got a state */
    struct value *kwargs;   /* a dict; NULL: none */
    struct value *state;    /* BUILD's argument: mostly a dict of attributes; NULL: none */
    struct value *items;    /* a list of what APPEND(S)/ADDITEMS put in; NULL: none */
    struct value *pairs;    /* a dict of what SETITEM(S) put in; NULL: none */
    /* The function of torch's _rebuild_from_type_v2(function, callable, args, state), which makes
     * DTensors and the like; NULL: none. */
    struct value *rebuild;
    bool by_new; /* NEWOBJ (cls.__new__), not REDUCE (a call) */
};

/* torch-pickle.md's ('storage', class, key, location, numel [, view metadata]). */
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

/* The array of a LIST, SET or DICT has room for a power of two of them, at least 4 (see
 * value_internal.h): append through the functions below. */
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

/* Makers, for what is written. Text is copied. */
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
/* A tensor of its own contiguous storage `key`. */
struct value *value_tensor(struct arena *a, const char *key, enum dtype dtype, unsigned num_dims,
                           const uint64_t *shape);

/* Adds a pair to a DICT that does not have this key, a text. */
void value_dict_add(struct arena *a, struct value *dict, const char *key, struct value *v);
/* The same where it may have it: replaces in place. Looks at all keys first. */
void value_dict_set(struct arena *a, struct value *dict, const char *key, struct value *v);

/* The value of a text key of a DICT, or of an attribute of an OBJECT whose state is a dict (or a
 * tuple (dict, slots dict)). NULL where there is none, or v is NULL or of another kind. */
struct value *value_get(const struct value *v, const char *key);
/* Typed looks at a value (NULL allowed): false where it is of another kind. A BOOL is an int too,
 * and an INT is a float, as in Python; a numpy scalar is what it holds; a 0-dim tensor is none of
 * them. */
bool value_as_int(const struct value *v, int64_t *out);
bool value_as_float(const struct value *v, double *out);
bool value_as_bool(const struct value *v, bool *out);
const char *value_as_text(const struct value *v); /* NULL where it is none or holds a NUL */
/* Whether v is the global module.name, or an object made by calling it or by the rebuild function
 * of its type; the module is ignored where it is NULL. */
bool value_is_global(const struct value *v, const char *module, const char *name);
bool value_is_instance(const struct value *v, const char *module, const char *name);

/* Python-like text of a value for people, cut at max_bytes, cycles as "...". */
void value_print(struct strbuf *out, const struct value *v, size_t max_bytes);

/* Calls visit for every tensor below v, each path once: path, dict keys and attribute names joined
 * with "." (list positions as numbers; what lies in the arguments of an opaque object below
 * "args"). Of equal keys in a dict the last counts. NUL in a key stands as C0 80. Cycles and shared
 * containers are entered once, a shared tensor is visited under all its names, so a walk takes time
 * linear in the file. ERR_CORRUPT where the name of a tensor is no UTF-8 or has more than
 * VALUE_PATH_BYTES. Stops where visit returns a status. */
#define VALUE_PATH_BYTES 4096
MUST_CHECK enum status value_walk(const struct value *v, const char *path,
                                  enum status (*visit)(void *context, const char *path,
                                                       const struct value *tensor,
                                                       struct error *err),
                                  void *context, struct error *err);

#endif
