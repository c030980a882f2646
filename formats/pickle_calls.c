/* Values of calls: a table of callables known by name. Nothing is called. */
#include <inttypes.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/utf8.h"
#include "formats/pickle_internal.h"

enum { MAX_TENSOR_DIMS = 64 }; /* torch's limit */

/* An expanded tensor may be larger than its storage, up to this: a copy writes
 * it out. */
static const uint64_t MAX_EXPANDED_BYTES = (uint64_t)1 << 40;

static struct value *argument(const struct value *args, size_t i)
{
    return i < args->count ? args->items[i] : NULL;
}

static bool is_text(const struct value *v, const char *text)
{
    return v->kind == VALUE_TEXT && v->count == strlen(text) &&
           memcmp(v->text, text, v->count) == 0;
}

/* v for a message; in r->scratch. */
static const char *printed_value(struct pickle_reader *r, const struct value *v)
{
    strbuf_clear(&r->scratch);
    value_print(&r->scratch, v, 100);
    return r->scratch.data;
}

/* ---- storages ---- */

/* Quantised storages get a dtype of the same size, and make no plain tensor. */
static bool storage_class(const char *name, bool *typed, enum dtype *dtype)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } quantised[] = {{"QInt8Storage", DT_I8},
                     {"QUInt8Storage", DT_U8},
                     {"QInt32Storage", DT_I32},
                     {"QUInt4x2Storage", DT_U8},
                     {"QUInt2x4Storage", DT_U8}};
    *typed = true;
    if (strcmp(name, "UntypedStorage") == 0) {
        *typed = false;
        *dtype = DT_U8;
        return true;
    }
    for (size_t i = 0; i < COUNT(quantised); i++)
        if (strcmp(quantised[i].name, name) == 0) {
            *dtype = quantised[i].dtype;
            return true;
        }
    return dtype_from_storage(name, dtype);
}

static enum status set_class(struct pickle_reader *r, struct value_storage *s,
                             const struct value *class, struct error *err)
{
    if (class->kind != VALUE_GLOBAL)
        return fail(err, ERR_CORRUPT, "the storage class is %s, not a global",
                    printed_value(r, class));
    const struct value_global *g = class->global;
    if (strncmp(g->module, "torch", 5) != 0 || !storage_class(g->name, &s->typed, &s->dtype))
        return fail(err, ERR_CORRUPT, "storage class %s.%s is not known", g->module, g->name);
    s->class_name = g->name;
    return OK;
}

/* The texts of the id may be collected, so parts in use are copied. */
static enum status set_key(struct pickle_reader *r, struct value_storage *s,
                           const struct value *key, struct error *err)
{
    if (!value_as_text(key))
        return fail(err, ERR_CORRUPT, "the storage key is %s, not a text", printed_value(r, key));
    if (!*key->text || strchr(key->text, '/') || strcmp(key->text, "..") == 0)
        return fail(err, ERR_CORRUPT, "storage key %s is not a plain name", key->text);
    s->key = arena_text(r->pool.arena, key->text, key->count);
    return OK;
}

static enum status set_numel(struct pickle_reader *r, struct value_storage *s,
                             const struct value *numel, struct error *err)
{
    uint64_t bytes;
    if (numel->kind != VALUE_INT || numel->integer < 0)
        return fail(err, ERR_CORRUPT,
                    "storage %s: its number of elements is %s, expected an int of at least 0",
                    s->key, printed_value(r, numel));
    s->numel = (uint64_t)numel->integer;
    if (!dtype_size_bytes(s->dtype, s->numel, &bytes) || bytes > INT64_MAX)
        return fail(err, ERR_CORRUPT, "storage %s: %" PRIu64 " elements are too many", s->key,
                    s->numel);
    return OK;
}

/* Sixth item in a legacy stream: (key, offset, numel) in the root storage. */
static enum status set_view(struct value_storage *s, const struct value *view, struct error *err)
{
    if (!view || view->kind == VALUE_NONE) return OK;
    int64_t offset, numel;
    if (view->kind != VALUE_TUPLE || view->count != 3 || !value_as_int(view->items[1], &offset) ||
        !value_as_int(view->items[2], &numel))
        return fail(err, ERR_CORRUPT, "storage %s: its view is not (key, offset, numel)", s->key);
    if (offset < 0 || numel < 0 || (uint64_t)offset > s->numel ||
        (uint64_t)numel > s->numel - (uint64_t)offset)
        return fail(err, ERR_CORRUPT,
                    "storage %s: a view of %" PRId64 " elements at %" PRId64 " of %" PRIu64, s->key,
                    numel, offset, s->numel);
    s->view_offset = (uint64_t)offset;
    s->numel = (uint64_t)numel;
    return OK;
}

enum status pickle_persistent(struct pickle_reader *r, const struct value *id, struct value **out,
                              struct error *err)
{
    bool tuple = id->kind == VALUE_TUPLE;
    /* ('module', class, ...) of whole models stands for the class. */
    if (tuple && id->count > 1 && is_text(id->items[0], "module")) {
        *out = id->items[1];
        return OK;
    }
    if (!tuple || id->count < 5 || !is_text(id->items[0], "storage"))
        return fail(err, ERR_CORRUPT,
                    "the persistent id is %s, expected ('storage', class, key, location, numel)",
                    printed_value(r, id));
    struct value *v = pool_value(&r->pool, VALUE_STORAGE);
    struct value_storage *s = v->storage = arena_alloc(r->pool.arena, sizeof *s);
    const char *location = value_as_text(id->items[3]);
    s->location = location ? arena_copy_text(r->pool.arena, location) : "";
    TRY(set_class(r, s, id->items[1], err));
    TRY(set_key(r, s, id->items[2], err));
    TRY(set_numel(r, s, id->items[4], err));
    if (r->hooks->storage) TRY(r->hooks->storage(r->hooks->context, s, err));
    *out = v;
    return set_view(s, argument(id, 5), err);
}

/* ---- tensors ---- */

/* A tuple or list of ints >= 0, at most MAX_TENSOR_DIMS. */
static enum status read_dims(struct pickle_reader *r, const struct value *v, const char *what,
                             const uint64_t **dims, unsigned *count, struct error *err)
{
    if (v->kind != VALUE_TUPLE && v->kind != VALUE_LIST)
        return fail(err, ERR_CORRUPT, "the %s of a tensor is %s, expected a tuple", what,
                    printed_value(r, v));
    if (v->count > MAX_TENSOR_DIMS)
        return fail(err, ERR_CORRUPT,
                    "a tensor of %" PRIu32 " dimensions, at most %d are supported", v->count,
                    MAX_TENSOR_DIMS);
    uint64_t *out = arena_array(r->pool.arena, v->count, sizeof *out);
    for (uint32_t d = 0; d < v->count; d++) {
        const struct value *n = v->items[d];
        if (n->kind != VALUE_INT || n->integer < 0)
            return fail(err, ERR_CORRUPT,
                        "the %s of a tensor is %s, expected ints from 0 to 2^63-1", what,
                        printed_value(r, v));
        out[d] = (uint64_t)n->integer;
    }
    *dims = out;
    *count = v->count;
    return OK;
}

/* Number of elements from the storage's start through the tensor's last. */
static bool count_reached(const struct value_tensor *t, uint64_t *elements)
{
    *elements = t->offset;
    for (unsigned d = 0; d < t->num_dims; d++) {
        uint64_t n;
        if (!mul_u64(t->shape[d] - 1, t->stride[d], &n) || !add_u64(*elements, n, elements))
            return false;
    }
    return add_u64(*elements, 1, elements);
}

static void print_dims(struct strbuf *out, const uint64_t *dims, unsigned count)
{
    strbuf_add_char(out, '[');
    for (unsigned d = 0; d < count; d++)
        strbuf_printf(out, "%s%" PRIu64, d ? ", " : "", dims[d]);
    strbuf_add_char(out, ']');
}

static enum status fail_view(struct pickle_reader *r, const struct value_tensor *t,
                             const char *what, struct error *err)
{
    struct strbuf *s = &r->scratch;
    strbuf_clear(s);
    print_dims(s, t->shape, t->num_dims);
    strbuf_add_text(s, " with strides ");
    print_dims(s, t->stride, t->num_dims);
    return fail(err, ERR_CORRUPT,
                "a tensor of shape %s at element %" PRIu64 " %s storage %s, which has %" PRIu64
                " %s",
                s->data, t->offset, what, t->storage->key, t->storage->numel,
                t->storage->typed ? "elements" : "bytes");
}

static enum status check_view(struct pickle_reader *r, const struct value_tensor *t,
                              struct error *err)
{
    uint64_t numel, bytes, elements, needed, held = 0;
    if (!shape_numel(t->shape, t->num_dims, &numel) || !dtype_size_bytes(t->dtype, numel, &bytes) ||
        bytes > INT64_MAX)
        return fail_view(r, t, "overflows", err);
    if (!numel) return OK; /* needs no bytes, for any strides */
    const struct value_storage *s = t->storage;
    if (!dtype_size_bytes(s->typed ? s->dtype : DT_U8, s->numel, &held) ||
        !count_reached(t, &elements) || !dtype_size_bytes(t->dtype, elements, &needed) ||
        needed > held)
        return fail_view(r, t, "reaches past the end of", err);
    if (bytes > held && bytes > MAX_EXPANDED_BYTES)
        return fail_view(r, t, "is expanded too far from", err);
    return OK;
}

/* torch counts pairs of 4-bit floats, Ferry elements. Only row-major pairs can
 * be counted so. */
static bool count_halves(struct pickle_reader *r, struct value_tensor *t)
{
    uint64_t numel;
    if (t->dtype != DT_F4) return true;
    if (!t->num_dims || !shape_numel(t->shape, t->num_dims, &numel) || numel > INT64_MAX / 2 ||
        t->offset > INT64_MAX / 2)
        return false;
    size_t bytes = t->num_dims * sizeof *t->shape;
    uint64_t *shape = arena_copy(r->pool.arena, t->shape, bytes);
    uint64_t *stride = arena_alloc(r->pool.arena, bytes);
    value_strides(t->shape, t->num_dims, stride);
    if (numel && memcmp(stride, t->stride, bytes) != 0) return false;
    shape[t->num_dims - 1] *= 2;
    value_strides(shape, t->num_dims, stride);
    t->shape = shape;
    t->stride = stride;
    t->offset *= 2;
    return true;
}

/* args: storage, offset, size, stride. *out stays NULL if not plain. */
static enum status make_tensor(struct pickle_reader *r, const struct value *args, enum dtype dtype,
                               struct value **out, struct error *err)
{
    unsigned num_strides;
    const struct value *offset = args->items[1];
    struct value *v = pool_value(&r->pool, VALUE_TENSOR);
    struct value_tensor *t = v->tensor = arena_alloc(r->pool.arena, sizeof *t);
    if (offset->kind != VALUE_INT || offset->integer < 0)
        return fail(err, ERR_CORRUPT, "the offset of a tensor is %s, expected a number of elements",
                    printed_value(r, offset));
    t->storage = args->items[0]->storage;
    t->dtype = dtype;
    t->offset = (uint64_t)offset->integer;
    TRY(read_dims(r, args->items[2], "size", &t->shape, &t->num_dims, err));
    TRY(read_dims(r, args->items[3], "stride", &t->stride, &num_strides, err));
    if (num_strides != t->num_dims)
        return fail(err, ERR_CORRUPT, "a tensor of %u sizes and %u strides", t->num_dims,
                    num_strides);
    if (!count_halves(r, t)) return OK;
    *out = v;
    return check_view(r, t, err);
}

/* Shared by the rebuild functions of plain tensors. A storage that is an opaque
 * object (_load_from_bytes in a plain pickle) or has quantised elements makes
 * an opaque object; so does a lazy conjugate or negative (the metadata's
 * 'conj', 'neg'). */
static enum status check_rebuild(struct pickle_reader *r, const struct value *args, size_t num_args,
                                 size_t metadata, bool *plain, struct error *err)
{
    *plain = false;
    if (args->count < num_args)
        return fail(err, ERR_CORRUPT,
                    "a tensor from %" PRIu32 " arguments, at least %zu are needed", args->count,
                    num_args);
    const struct value *storage = args->items[0], *more = argument(args, metadata);
    if (storage->kind == VALUE_OBJECT) return OK;
    if (storage->kind != VALUE_STORAGE)
        return fail(err, ERR_CORRUPT, "a tensor from %s, expected a storage",
                    printed_value(r, storage));
    *plain = storage->storage->class_name[0] != 'Q' &&
             (!more || more->kind == VALUE_NONE || (more->kind == VALUE_DICT && !more->count));
    return OK;
}

static enum status rebuild_tensor(struct pickle_reader *r, struct value *args, struct value **out,
                                  struct error *err)
{
    bool plain;
    TRY(check_rebuild(r, args, 4, SIZE_MAX, &plain, err));
    return plain ? make_tensor(r, args, args->items[0]->storage->dtype, out, err) : OK;
}

static enum status rebuild_tensor_v2(struct pickle_reader *r, struct value *args,
                                     struct value **out, struct error *err)
{
    bool plain;
    TRY(check_rebuild(r, args, 6, 6, &plain, err));
    return plain ? make_tensor(r, args, args->items[0]->storage->dtype, out, err) : OK;
}

static enum status rebuild_tensor_v3(struct pickle_reader *r, struct value *args,
                                     struct value **out, struct error *err)
{
    bool plain;
    enum dtype dtype;
    TRY(check_rebuild(r, args, 7, 7, &plain, err));
    const struct value *name = args->items[6];
    if (!plain || name->kind != VALUE_GLOBAL || strcmp(name->global->module, "torch") != 0 ||
        !dtype_from_torch(name->global->name, &dtype))
        return OK;
    return make_tensor(r, args, dtype, out, err);
}

/* A parameter is its tensor; a DTensor's parameter is that object. */
static enum status rebuild_parameter(struct pickle_reader *r, struct value *args,
                                     struct value **out, struct error *err)
{
    (void)err;
    struct value *data = argument(args, 0);
    if (data && data->kind == VALUE_OBJECT) *out = data;
    if (!data || data->kind != VALUE_TENSOR) return OK;
    *out = pool_value(&r->pool, VALUE_TENSOR);
    (*out)->tensor = arena_copy(r->pool.arena, data->tensor, sizeof *data->tensor);
    (*out)->tensor->parameter = true;
    return OK;
}

static enum status rebuild_on_device(struct pickle_reader *r, struct value *args,
                                     struct value **out, struct error *err)
{
    (void)r, (void)err;
    struct value *data = argument(args, 0);
    if (data && data->kind == VALUE_TENSOR) *out = data;
    return OK;
}

typedef enum status call_function(struct pickle_reader *r, struct value *args, struct value **out,
                                  struct error *err);

struct known_call {
    const char *module, *name;
    call_function *run;
};

static const struct known_call tensor_calls[] = {
    {"torch._utils", "_rebuild_tensor_v2", rebuild_tensor_v2},
    {"torch._utils", "_rebuild_tensor_v3", rebuild_tensor_v3},
    {"torch._utils", "_rebuild_tensor", rebuild_tensor},
    {"torch._utils", "_rebuild_parameter", rebuild_parameter},
    {"torch._utils", "_rebuild_parameter_with_state", rebuild_parameter},
    {"torch._utils", "_rebuild_device_tensor_from_cpu_tensor", rebuild_on_device},
};

static call_function *find_call(const struct known_call *calls, size_t count,
                                const struct value *callable)
{
    for (size_t i = 0; i < count; i++)
        if (value_is_global(callable, calls[i].module, calls[i].name)) return calls[i].run;
    return NULL;
}

/* (function, type, args, state): function(*args) made a `type` with the
 * attributes state. A tensor stays a tensor; anything else (DTensor ...)
 * becomes an object of that type. Only looks into the functions above, so it
 * does not nest. */
static enum status rebuild_from_type(struct pickle_reader *r, struct value *args,
                                     struct value **out, struct error *err)
{
    if (args->count != 4 || args->items[0]->kind != VALUE_GLOBAL ||
        args->items[2]->kind != VALUE_TUPLE)
        return OK;
    struct value *function = args->items[0], *state = args->items[3];
    call_function *run = find_call(tensor_calls, COUNT(tensor_calls), function);
    if (run) TRY(run(r, args->items[2], out, err));
    if (*out) return OK;
    *out = reader_object(r, &(struct value_object){
                                .callable = args->items[1],
                                .args = args->items[2],
                                .state = state->kind == VALUE_NONE ? NULL : state,
                                .rebuild = function,
                            });
    return OK;
}

/* ---- containers and bytes ---- */

static enum status make_size(struct pickle_reader *r, struct value *args, struct value **out,
                             struct error *err)
{
    (void)err;
    struct value *dims = argument(args, 0);
    if (dims && dims->kind == VALUE_TUPLE) *out = dims;
    if (dims && dims->kind == VALUE_LIST)
        *out = reader_items(r, VALUE_TUPLE, dims->items, dims->count);
    return OK;
}

/* Python 2 gives the pairs as an argument, [[key, value], ...]. */
static enum status make_ordered_dict(struct pickle_reader *r, struct value *args,
                                     struct value **out, struct error *err)
{
    (void)err;
    const struct value *pairs = argument(args, 0);
    if (args->count > 1 || (pairs && pairs->kind != VALUE_LIST)) return OK;
    struct value *dict = reader_items(r, VALUE_DICT, NULL, 0);
    for (uint32_t i = 0; pairs && i < pairs->count; i++) {
        const struct value *pair = pairs->items[i];
        bool good = (pair->kind == VALUE_LIST || pair->kind == VALUE_TUPLE) && pair->count == 2 &&
                    pair->items[0]->kind != VALUE_LIST && pair->items[0]->kind != VALUE_DICT;
        if (!good) return OK;
        reader_append(r, dict, pair->items, 1);
    }
    *out = dict;
    return OK;
}

/* The one argument is the factory. */
static enum status make_default_dict(struct pickle_reader *r, struct value *args,
                                     struct value **out, struct error *err)
{
    (void)err;
    if (args->count <= 1) *out = reader_items(r, VALUE_DICT, NULL, 0);
    return OK;
}

static enum status make_counter(struct pickle_reader *r, struct value *args, struct value **out,
                                struct error *err)
{
    (void)err;
    const struct value *dict = argument(args, 0);
    if (args->count == 0)
        *out = reader_items(r, VALUE_DICT, NULL, 0);
    else if (args->count == 1 && dict->kind == VALUE_DICT)
        *out = reader_items(r, VALUE_DICT, dict->items, dict->count);
    return OK;
}

static enum status make_set(struct pickle_reader *r, struct value *args, struct value **out,
                            struct error *err)
{
    (void)err;
    const struct value *list = argument(args, 0);
    if (args->count == 0)
        *out = reader_items(r, VALUE_SET, NULL, 0);
    else if (args->count == 1 && (list->kind == VALUE_LIST || list->kind == VALUE_TUPLE))
        *out = reader_items(r, VALUE_SET, list->items, list->count);
    return OK;
}

/* Text with all characters below 256, as bytes. */
static struct value *encode_latin1(struct pickle_reader *r, const struct value *text)
{
    strbuf_clear(&r->scratch);
    strbuf_add(&r->scratch, "", 0);
    for (size_t i = 0; i < text->count; i++) {
        unsigned char c = (unsigned char)text->text[i];
        if (c >= 0x80) {
            if (utf8_sequence(text->text + i, text->count - i) != 2 || c > 0xC3) return NULL;
            c = (unsigned char)(c << 6 | (text->text[++i] & 0x3F));
        }
        strbuf_add_char(&r->scratch, (char)c);
    }
    return reader_text(r, VALUE_BYTES, r->scratch.data, r->scratch.length);
}

static bool is_latin1(const struct value *encoding)
{
    return is_text(encoding, "latin1") || is_text(encoding, "latin-1");
}

static enum status make_encoded(struct pickle_reader *r, struct value *args, struct value **out,
                                struct error *err)
{
    (void)err;
    if (args->count == 2 && args->items[0]->kind == VALUE_TEXT && is_latin1(args->items[1]))
        *out = encode_latin1(r, args->items[0]);
    return OK;
}

/* bytes() and bytearray() of nothing, of bytes, of Latin-1 text. */
static enum status make_bytes(struct pickle_reader *r, struct value *args, struct value **out,
                              struct error *err)
{
    const struct value *from = argument(args, 0);
    if (!from)
        *out = reader_text(r, VALUE_BYTES, "", 0);
    else if (args->count == 1 && from->kind == VALUE_BYTES)
        *out = reader_text(r, VALUE_BYTES, from->text, from->count);
    return *out ? OK : make_encoded(r, args, out, err);
}

/* copyreg._reconstructor(class, object, None), in protocol 2 NEWOBJ. */
static enum status make_instance(struct pickle_reader *r, struct value *args, struct value **out,
                                 struct error *err)
{
    (void)err;
    if (args->count != 3 || !value_is_global(args->items[1], "builtins", "object") ||
        args->items[2]->kind != VALUE_NONE)
        return OK;
    *out = reader_object(r, &(struct value_object){
                                .callable = args->items[0],
                                .args = reader_items(r, VALUE_TUPLE, NULL, 0),
                                .by_new = true,
                            });
    return OK;
}

static const struct known_call other_calls[] = {
    {"torch._tensor", "_rebuild_from_type_v2", rebuild_from_type},
    {"torch.tensor", "_rebuild_from_type_v2", rebuild_from_type},
    {"torch._tensor", "_rebuild_from_type", rebuild_from_type},
    {"torch.tensor", "_rebuild_from_type", rebuild_from_type},
    {"torch", "Size", make_size},
    {"collections", "OrderedDict", make_ordered_dict},
    {"collections", "defaultdict", make_default_dict},
    {"collections", "Counter", make_counter},
    {"builtins", "set", make_set},
    {"builtins", "frozenset", make_set},
    {"builtins", "bytes", make_bytes},
    {"builtins", "bytearray", make_bytes},
    {"_codecs", "encode", make_encoded},
    {"copyreg", "_reconstructor", make_instance},
};

enum status pickle_call(struct pickle_reader *r, struct value *callable, struct value *args,
                        struct value **out, struct error *err)
{
    *out = NULL;
    if (callable->kind != VALUE_GLOBAL) return OK;
    call_function *run = find_call(tensor_calls, COUNT(tensor_calls), callable);
    if (!run) run = find_call(other_calls, COUNT(other_calls), callable);
    return run ? run(r, args, out, err) : OK;
}

/* ---- names ---- */

/* From CPython's Lib/_compat_pickle.py; a NULL name: the whole module. */
static void modern_name(const char **module, const char **name)
{
    static const struct {
        const char *module, *name, *new_module, *new_name;
    } rows[] = {
        {"__builtin__", "xrange", "builtins", "range"},
        {"__builtin__", "unicode", "builtins", "str"},
        {"__builtin__", "long", "builtins", "int"},
        {"__builtin__", "unichr", "builtins", "chr"},
        {"__builtin__", NULL, "builtins", NULL},
        {"exceptions", NULL, "builtins", NULL},
        {"copy_reg", NULL, "copyreg", NULL},
        {"UserDict", NULL, "collections", NULL},
        {"UserList", NULL, "collections", NULL},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (strcmp(*module, rows[i].module) != 0) continue;
        if (rows[i].name && strcmp(*name, rows[i].name) != 0) continue;
        *module = rows[i].new_module;
        if (rows[i].new_name) *name = rows[i].new_name;
        return;
    }
}

/* r->scratch is "module\nname". One shared value for each. */
static void push_global(struct pickle_reader *r)
{
    size_t index;
    const char *module = r->scratch.data;
    if (map_get(&r->globals, module, &index)) {
        reader_push(r, r->global_values[index]);
        return;
    }
    struct arena *a = r->pool.arena;
    char *key = arena_text(a, module, r->scratch.length);
    map_add(&r->globals, key, r->num_globals, NULL);
    struct value *v = pool_value(&r->pool, VALUE_GLOBAL);
    size_t length = strcspn(key, "\n");
    v->global = arena_alloc(a, sizeof *v->global);
    v->global->module = arena_text(a, key, length);
    v->global->name = key + length + 1;
    modern_name(&v->global->module, &v->global->name);
    *ARENA_PUSH(a, r->global_values, r->num_globals, r->globals_capacity) = v;
    reader_push(r, v);
}

enum status pickle_push_global(struct pickle_reader *r, const char *module, size_t module_length,
                               const char *name, size_t name_length, struct error *err)
{
    if (memchr(module, '\0', module_length) || memchr(module, '\n', module_length) ||
        memchr(name, '\0', name_length) || memchr(name, '\n', name_length))
        return fail(err, ERR_CORRUPT, "a name with a NUL or newline");
    strbuf_clear(&r->scratch);
    strbuf_add(&r->scratch, module, module_length);
    strbuf_add_char(&r->scratch, '\n');
    strbuf_add(&r->scratch, name, name_length);
    push_global(r);
    return OK;
}
