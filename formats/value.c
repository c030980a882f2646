#include "formats/value.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "formats/value_internal.h"

/* ---- makers ---- */

static struct value *new_value(struct arena *a, enum value_kind kind)
{
    struct value *v = arena_alloc(a, sizeof *v);
    v->kind = kind;
    return v;
}

struct value *value_none(struct arena *a)
{
    return new_value(a, VALUE_NONE);
}

struct value *value_bool(struct arena *a, bool truth)
{
    struct value *v = new_value(a, VALUE_BOOL);
    v->truth = truth;
    return v;
}

struct value *value_int(struct arena *a, int64_t integer)
{
    struct value *v = new_value(a, VALUE_INT);
    v->integer = integer;
    return v;
}

struct value *value_float(struct arena *a, double number)
{
    struct value *v = new_value(a, VALUE_FLOAT);
    v->number = number;
    return v;
}

struct value *value_text(struct arena *a, const char *text)
{
    struct value *v = value_bytes(a, text, strlen(text));
    v->kind = VALUE_TEXT;
    return v;
}

struct value *value_bytes(struct arena *a, const void *data, size_t bytes)
{
    struct value *v = new_value(a, VALUE_BYTES);
    v->text = arena_text(a, data, bytes);
    v->count = (uint32_t)bytes;
    return v;
}

struct value *value_list(struct arena *a, enum value_kind kind, size_t count, struct value **items)
{
    struct value *v = new_value(a, kind);
    v->count = (uint32_t)count;
    v->items = arena_array(a, value_capacity(count), sizeof *items);
    if (count) memcpy(v->items, items, count * sizeof *items);
    return v;
}

struct value *value_dict(struct arena *a)
{
    return new_value(a, VALUE_DICT);
}

struct value *value_global(struct arena *a, const char *module, const char *name)
{
    struct value *v = new_value(a, VALUE_GLOBAL);
    v->global = arena_alloc(a, sizeof *v->global);
    v->global->module = arena_copy_text(a, module);
    v->global->name = arena_copy_text(a, name);
    return v;
}

struct value *value_instance(struct arena *a, const char *module, const char *name,
                             struct value *state)
{
    struct value *v = new_value(a, VALUE_OBJECT);
    v->object = arena_alloc(a, sizeof *v->object);
    *v->object = (struct value_object){
        .callable = value_global(a, module, name),
        .args = value_list(a, VALUE_TUPLE, 0, NULL),
        .state = state,
        .by_new = true,
    };
    return v;
}

void value_strides(const uint64_t *shape, unsigned num_dims, uint64_t *stride)
{
    uint64_t n = 1;
    for (unsigned d = num_dims; d-- > 0;) {
        stride[d] = n;
        n *= shape[d] ? shape[d] : 1;
    }
}

/* torch saves newer dtypes in storages that count bytes. */
static struct value_storage *new_storage(struct arena *a, const char *key, enum dtype dtype,
                                         uint64_t numel)
{
    const char *class_name = dtype_infos[dtype].storage;
    struct value_storage *s = arena_alloc(a, sizeof *s);
    *s = (struct value_storage){
        .key = arena_copy_text(a, key),
        .class_name = class_name ? class_name : "UntypedStorage",
        .typed = class_name != NULL,
        .dtype = dtype,
        .location = "cpu",
        .numel = class_name ? numel : numel * dtype_infos[dtype].bits / 8,
    };
    return s;
}

struct value *value_tensor(struct arena *a, const char *key, enum dtype dtype, unsigned num_dims,
                           const uint64_t *shape)
{
    uint64_t numel = 1, *stride = arena_array(a, num_dims, sizeof *stride);
    for (unsigned d = 0; d < num_dims; d++)
        numel *= shape[d];
    value_strides(shape, num_dims, stride);
    struct value *v = new_value(a, VALUE_TENSOR);
    v->tensor = arena_alloc(a, sizeof *v->tensor);
    *v->tensor = (struct value_tensor){
        .storage = new_storage(a, key, dtype, numel),
        .dtype = dtype,
        .num_dims = num_dims,
        .shape = arena_copy(a, shape, num_dims * sizeof *shape),
        .stride = stride,
    };
    return v;
}

/* ---- containers ---- */

static bool is_text(const struct value *v, const char *text, size_t length)
{
    return v->kind == VALUE_TEXT && v->count == length && memcmp(v->text, text, length) == 0;
}

/* The value of a text key in its last pair; NULL: none. */
static struct value **find_key(const struct value *dict, const char *key)
{
    size_t length = strlen(key);
    for (size_t i = dict->count; i-- > 0;)
        if (is_text(dict->items[2 * i], key, length)) return &dict->items[2 * i + 1];
    return NULL;
}

/* Makes room for one more item of `width` pointers. */
static void grow_items(struct arena *a, struct value *v, size_t width)
{
    if (v->count < value_capacity(v->count)) return;
    struct value **items =
        arena_array(a, value_capacity((size_t)v->count + 1), width * sizeof *items);
    if (v->count) memcpy(items, v->items, v->count * width * sizeof *items);
    v->items = items;
}

void value_append(struct arena *a, struct value *list, struct value *item)
{
    grow_items(a, list, 1);
    list->items[list->count++] = item;
}

void value_dict_put(struct arena *a, struct value *dict, struct value *key, struct value *v)
{
    grow_items(a, dict, 2);
    dict->items[2 * (size_t)dict->count] = key;
    dict->items[2 * (size_t)dict->count + 1] = v;
    dict->count++;
}

void value_dict_add(struct arena *a, struct value *dict, const char *key, struct value *v)
{
    value_dict_put(a, dict, value_text(a, key), v);
}

void value_dict_set(struct arena *a, struct value *dict, const char *key, struct value *v)
{
    struct value **at = find_key(dict, key);
    if (at)
        *at = v;
    else
        value_dict_add(a, dict, key, v);
}

/* The state of a class with slots is the pair (dict or None, dict of slots). */
static struct value *get_attribute(const struct value *state, const char *key)
{
    if (!state) return NULL;
    if (state->kind == VALUE_DICT) return value_get(state, key);
    if (state->kind != VALUE_TUPLE || state->count != 2) return NULL;
    for (size_t i = 0; i < 2; i++) {
        const struct value *part = state->items[i];
        struct value **at = part->kind == VALUE_DICT ? find_key(part, key) : NULL;
        if (at) return *at;
    }
    return NULL;
}

struct value *value_get(const struct value *v, const char *key)
{
    if (!v) return NULL;
    if (v->kind == VALUE_OBJECT) return get_attribute(v->object->state, key);
    if (v->kind != VALUE_DICT) return NULL;
    struct value **at = find_key(v, key);
    return at ? *at : NULL;
}

/* ---- looks ---- */

bool value_is_global(const struct value *v, const char *module, const char *name)
{
    return v && v->kind == VALUE_GLOBAL && strcmp(v->global->name, name) == 0 &&
           (!module || strcmp(v->global->module, module) == 0);
}

bool value_is_instance(const struct value *v, const char *module, const char *name)
{
    return v && v->kind == VALUE_OBJECT && value_is_global(v->object->callable, module, name);
}

/* numpy.core.multiarray.scalar(dtype, bytes); numpy.dtype('f8', False, True)
 * with the state (3, '<', ...). Gives type code ('f', 'i', 'u', 'b'), size and
 * little-endian bytes. */
static bool numpy_scalar(const struct value *v, char *code, size_t *size, unsigned char bytes[8])
{
    const struct value *args, *dtype, *name, *state;
    if (!value_is_instance(v, "numpy.core.multiarray", "scalar") &&
        !value_is_instance(v, "numpy._core.multiarray", "scalar"))
        return false;
    args = v->object->args;
    if (!args || args->count != 2 || args->items[1]->kind != VALUE_BYTES) return false;
    dtype = args->items[0];
    if (!value_is_instance(dtype, "numpy", "dtype") || !dtype->object->args ||
        !dtype->object->args->count)
        return false;
    name = dtype->object->args->items[0];
    *size = args->items[1]->count;
    if (name->kind != VALUE_TEXT || name->count != 2 || (size_t)(name->text[1] - '0') != *size ||
        *size > 8)
        return false;
    *code = name->text[0];
    memcpy(bytes, args->items[1]->text, *size);
    state = dtype->object->state;
    if (state && state->kind == VALUE_TUPLE && state->count > 1 && is_text(state->items[1], ">", 1))
        for (size_t i = 0; i < *size / 2; i++) {
            unsigned char swapped = bytes[i];
            bytes[i] = bytes[*size - 1 - i];
            bytes[*size - 1 - i] = swapped;
        }
    return true;
}

static bool numpy_int(const struct value *v, int64_t *out)
{
    char code;
    size_t size;
    unsigned char bytes[8];
    if (!numpy_scalar(v, &code, &size, bytes) || !size || !strchr("iub", code)) return false;
    uint64_t bits = 0;
    for (size_t i = size; i-- > 0;)
        bits = bits << 8 | bytes[i];
    if (code == 'i' && size < 8 && bits >> (8 * size - 1)) bits |= UINT64_MAX << 8 * size;
    if (code != 'i' && bits > INT64_MAX) return false;
    *out = (int64_t)bits;
    return true;
}

static bool numpy_float(const struct value *v, double *out)
{
    char code;
    size_t size;
    unsigned char bytes[8];
    if (!numpy_scalar(v, &code, &size, bytes) || code != 'f' || (size != 4 && size != 8))
        return false;
    *out = dtype_load(size == 4 ? DT_F32 : DT_F64, bytes, 0);
    return true;
}

bool value_as_int(const struct value *v, int64_t *out)
{
    if (!v) return false;
    if (v->kind == VALUE_INT)
        *out = v->integer;
    else if (v->kind == VALUE_BOOL)
        *out = v->truth;
    else
        return numpy_int(v, out);
    return true;
}

bool value_as_float(const struct value *v, double *out)
{
    int64_t integer;
    if (v && v->kind == VALUE_FLOAT) {
        *out = v->number;
        return true;
    }
    if (value_as_int(v, &integer)) {
        *out = (double)integer;
        return true;
    }
    return numpy_float(v, out);
}

bool value_as_bool(const struct value *v, bool *out)
{
    char code;
    size_t size;
    unsigned char bytes[8];
    if (v && v->kind == VALUE_BOOL) {
        *out = v->truth;
        return true;
    }
    if (!numpy_scalar(v, &code, &size, bytes) || code != 'b' || size != 1) return false;
    *out = bytes[0];
    return true;
}

const char *value_as_text(const struct value *v)
{
    if (!v || v->kind != VALUE_TEXT || strlen(v->text) != v->count) return NULL;
    return v->text;
}

/* ---- printing ---- */

/* The values around the printed one. MAX_DEPTH bounds the recursion. */
struct around {
    const struct around *outer;
    const struct value *v;
    unsigned depth;
};
enum { MAX_DEPTH = 50 };

struct printer {
    struct strbuf *out;
    size_t max_length;
};

static bool is_full(const struct printer *p)
{
    return p->out->length >= p->max_length;
}

static void print_any(const struct printer *p, const struct value *v, const struct around *outer);

static void print_quoted(const struct printer *p, const struct value *v)
{
    size_t left = is_full(p) ? 0 : p->max_length - p->out->length;
    strbuf_add_text(p->out, v->kind == VALUE_BYTES ? "b'" : "'");
    strbuf_add_escaped(p->out, v->text, v->count < left ? v->count : left);
    strbuf_add_char(p->out, '\'');
}

static void print_float(const struct printer *p, double number)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, number);
        if (strtod(text, NULL) == number) break;
    }
    strbuf_add_text(p->out, text);
    if (isfinite(number) && !strpbrk(text, ".e")) strbuf_add_text(p->out, ".0");
}

/* Past 64 bits the digits say little: prints as Python's hex(). */
static void print_big_int(const struct printer *p, const struct value *v)
{
    const unsigned char *bytes = (const unsigned char *)v->text;
    bool negative = v->count && bytes[v->count - 1] & 0x80;
    struct strbuf digits = {0};
    unsigned carry = 1;
    for (size_t i = 0; i < v->count; i++) {
        unsigned byte = negative ? (bytes[i] ^ 0xFFu) + carry : bytes[i];
        carry = byte >> 8;
        char c = (char)byte;
        strbuf_add(&digits, &c, 1);
    }
    size_t n = digits.length;
    while (n > 1 && !digits.data[n - 1])
        n--;
    strbuf_add_text(p->out, negative ? "-0x" : "0x");
    for (bool first = true; n-- > 0 && !is_full(p); first = false)
        strbuf_printf(p->out, first ? "%x" : "%02x", (unsigned char)digits.data[n]);
    strbuf_release(&digits);
}

static void print_items(const struct printer *p, const struct value *v, const char *brackets,
                        const struct around *here)
{
    bool pairs = v->kind == VALUE_DICT;
    size_t width = pairs ? 2 : 1;
    strbuf_add_char(p->out, brackets[0]);
    for (size_t i = 0; i < v->count && !is_full(p); i++) {
        if (i) strbuf_add_text(p->out, ", ");
        print_any(p, v->items[width * i], here);
        if (!pairs) continue;
        strbuf_add_text(p->out, ": ");
        print_any(p, v->items[2 * i + 1], here);
    }
    if (v->kind == VALUE_TUPLE && v->count == 1) strbuf_add_char(p->out, ',');
    strbuf_add_char(p->out, brackets[1]);
}

static void print_name(const struct printer *p, const char *text)
{
    size_t n = strlen(text);
    strbuf_add_escaped(p->out, text, n < p->max_length ? n : p->max_length);
}

static void print_global(const struct printer *p, const struct value_global *g)
{
    print_name(p, g->module);
    strbuf_add_char(p->out, '.');
    print_name(p, g->name);
}

/* Class(args, kwargs, state): attributes are printed as the state's dict. */
static void print_object(const struct printer *p, const struct value_object *o,
                         const struct around *here)
{
    const struct value *parts[] = {o->kwargs, o->items, o->pairs, o->state};
    bool comma = o->args && o->args->count;
    print_any(p, o->callable, here);
    strbuf_add_char(p->out, '(');
    for (size_t i = 0; o->args && i < o->args->count && !is_full(p); i++) {
        if (i) strbuf_add_text(p->out, ", ");
        print_any(p, o->args->items[i], here);
    }
    for (size_t i = 0; i < COUNT(parts); i++) {
        if (!parts[i]) continue;
        if (comma) strbuf_add_text(p->out, ", ");
        print_any(p, parts[i], here);
        comma = true;
    }
    strbuf_add_char(p->out, ')');
}

static void print_tensor(const struct printer *p, const struct value_tensor *t)
{
    strbuf_printf(p->out, "tensor(%s [", dtype_infos[t->dtype].name);
    for (unsigned d = 0; d < t->num_dims; d++)
        strbuf_printf(p->out, "%s%" PRIu64, d ? ", " : "", t->shape[d]);
    strbuf_add_text(p->out, "])");
}

static bool is_around(const struct around *outer, const struct value *v)
{
    for (; outer; outer = outer->outer)
        if (outer->v == v) return true;
    return false;
}

static void print_any(const struct printer *p, const struct value *v, const struct around *outer)
{
    struct around here = {outer, v, outer ? outer->depth + 1 : 0};
    if (is_full(p) || here.depth > MAX_DEPTH || is_around(outer, v)) {
        strbuf_add_text(p->out, "...");
        return;
    }
    switch (v->kind) {
    case VALUE_NONE:
        strbuf_add_text(p->out, "None");
        break;
    case VALUE_BOOL:
        strbuf_add_text(p->out, v->truth ? "True" : "False");
        break;
    case VALUE_INT:
        strbuf_printf(p->out, "%" PRId64, v->integer);
        break;
    case VALUE_BIG_INT:
        print_big_int(p, v);
        break;
    case VALUE_FLOAT:
        print_float(p, v->number);
        break;
    case VALUE_TEXT:
    case VALUE_BYTES:
        print_quoted(p, v);
        break;
    case VALUE_LIST:
        print_items(p, v, "[]", &here);
        break;
    case VALUE_TUPLE:
        print_items(p, v, "()", &here);
        break;
    case VALUE_SET:
    case VALUE_DICT:
        print_items(p, v, "{}", &here);
        break;
    case VALUE_GLOBAL:
        print_global(p, v->global);
        break;
    case VALUE_OBJECT:
        print_object(p, v->object, &here);
        break;
    case VALUE_STORAGE:
        strbuf_add_text(p->out, "storage(");
        print_name(p, v->storage->key);
        strbuf_add_char(p->out, ')');
        break;
    case VALUE_TENSOR:
        print_tensor(p, v->tensor);
        break;
    case VALUE_NATIVE:
    case VALUE_SKIPPED:
        strbuf_add_text(p->out, "<not kept>");
        break;
    }
}

void value_print(struct strbuf *out, const struct value *v, size_t max_bytes)
{
    struct printer p = {out, out->length + max_bytes};
    print_any(&p, v, NULL);
    if (out->length <= p.max_length) return;
    out->length = p.max_length;
    out->data[out->length] = '\0';
}
