/* Reads .metadata. A struct with the members in use replaces each object of
 * torch as soon as it is built: the pickle becomes dicts and lists of such
 * structs. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/count.h"
#include "common/memory.h"
#include "formats/dcp_internal.h"
#include "formats/pickle.h"

static const void *native_of(const struct value *v, enum meta_kind kind)
{
    if (!v || v->kind != VALUE_NATIVE) return NULL;
    return *(const enum meta_kind *)v->native == kind ? v->native : NULL;
}

uint64_t dcp_random(void)
{
    uint64_t bits;
    if (getrandom(&bits, sizeof bits, GRND_NONBLOCK) == sizeof bits) return bits;
    return (uint64_t)(uintptr_t)&bits * 0x9E3779B97F4A7C15u; /* early in a machine's boot */
}

/* ---- texts ---- */

static const char *without_nul(struct arena *a, const char *text, size_t length)
{
    struct strbuf s = {0};
    strbuf_add(&s, "", 0);
    for (size_t i = 0; i < length; i++)
        strbuf_add(&s, text[i] ? &text[i] : "\xC0\x80", text[i] ? 1 : 2);
    const char *copy = arena_text(a, s.data, s.length);
    strbuf_release(&s);
    return copy;
}

static uint32_t intern_text(struct text_table *t, struct arena *a, const struct value *v)
{
    size_t number;
    const char *text = v->text;
    bool has_nul = memchr(text, '\0', v->count) != NULL;
    if (has_nul) text = without_nul(a, text, v->count);
    if (map_get(&t->map, text, &number)) return (uint32_t)number;
    if (!has_nul) text = arena_text(a, text, v->count);
    map_add(&t->map, text, t->count, NULL);
    *ARENA_PUSH(a, t->texts, t->count, t->capacity) = text;
    return (uint32_t)(t->count - 1);
}

/* ---- objects ---- */

/* Limits for parts that a hostile file could repeat cheaply: sizes of a tuple,
 * keys of a state. */
enum { MAX_DIMS = 64, MAX_ATTRIBUTES = 64 };

static const struct value *state_attribute(const struct value *v, const char *name)
{
    const struct value *state = v->object->state;
    bool small = state && state->kind == VALUE_DICT && state->count <= MAX_ATTRIBUTES;
    return small ? value_get(state, name) : NULL;
}

static bool read_dims(const struct value *v, uint64_t *out)
{
    for (uint32_t d = 0; d < v->count; d++) {
        if (v->items[d]->kind != VALUE_INT || v->items[d]->integer < 0) return false;
        out[d] = (uint64_t)v->items[d]->integer;
    }
    return true;
}

static bool is_tuple(const struct value *v)
{
    return v && v->kind == VALUE_TUPLE;
}

static bool is_size(const struct value *v)
{
    return is_tuple(v) && v->count <= MAX_DIMS;
}

static void *make_chunk(struct dcp_metadata *m, const struct value *v)
{
    const struct value *offsets = state_attribute(v, "offsets"),
                       *sizes = state_attribute(v, "sizes");
    if (!is_size(offsets) || !is_size(sizes) || offsets->count != sizes->count) return NULL;
    uint32_t n = offsets->count;
    struct meta_chunk *c = arena_alloc(&m->arena, sizeof *c + 2 * (size_t)n * sizeof *c->bounds);
    c->kind = META_CHUNK;
    c->num_dims = n;
    return read_dims(offsets, c->bounds) && read_dims(sizes, c->bounds + n) ? c : NULL;
}

/* The state is a tuple that begins with the dtype, or a dict with that key. */
static void *make_properties(struct dcp_metadata *m, const struct value *v)
{
    const struct value *state = v->object->state, *dtype = state_attribute(v, "dtype");
    if (is_tuple(state) && state->count) dtype = state->items[0];
    if (!dtype || dtype->kind != VALUE_GLOBAL) return NULL;
    const char *name = dtype->global->name;
    struct meta_properties *p = arena_alloc(&m->arena, sizeof *p);
    p->kind = META_PROPERTIES;
    /* Shapes and sizes count a pair of 4-bit floats as one element. */
    if (!dtype_from_torch(name, &p->dtype) || p->dtype == DT_F4)
        p->unknown = arena_printf(&m->arena, "%.100s", name);
    return p;
}

static void *make_tensor(struct dcp_metadata *m, const struct value *v)
{
    const struct meta_properties *properties =
        native_of(state_attribute(v, "properties"), META_PROPERTIES);
    const struct value *size = state_attribute(v, "size"), *chunks = state_attribute(v, "chunks");
    if (!properties || !is_size(size) || !chunks || chunks->kind != VALUE_LIST) return NULL;
    if (chunks->count > m->chunks_left) return NULL; /* the same list again and again */
    m->chunks_left -= chunks->count;
    struct arena *a = &m->arena;
    struct meta_tensor *t = arena_alloc(a, sizeof *t);
    uint64_t *shape = arena_array(a, size->count, sizeof *shape);
    *t = (struct meta_tensor){
        .kind = META_TENSOR,
        .num_dims = size->count,
        .num_chunks = chunks->count,
        .properties = properties,
        .shape = shape,
        .chunks = arena_array(a, chunks->count, sizeof *t->chunks),
    };
    for (uint32_t i = 0; i < chunks->count; i++) {
        t->chunks[i] = native_of(chunks->items[i], META_CHUNK);
        if (!t->chunks[i] || t->chunks[i]->num_dims != size->count) return NULL;
    }
    return read_dims(size, shape) ? t : NULL;
}

static void *make_bytes(struct dcp_metadata *m, const struct value *v)
{
    static enum meta_kind bytes = META_BYTES;
    (void)m, (void)v;
    return &bytes;
}

/* `index` is not compared. */
static void *make_index(struct dcp_metadata *m, const struct value *v)
{
    const struct value *name = state_attribute(v, "fqn"), *offset = state_attribute(v, "offset");
    if (offset && offset->kind == VALUE_NONE) offset = NULL;
    if (!name || name->kind != VALUE_TEXT || (offset && !is_size(offset))) return NULL;
    uint32_t n = offset ? offset->count : 0;
    struct meta_index *i = arena_alloc(&m->arena, sizeof *i + (size_t)n * sizeof *i->offset);
    i->kind = META_INDEX;
    i->name = intern_text(&m->names, &m->arena, name);
    i->has_offset = offset != NULL;
    i->num_dims = n;
    return !offset || read_dims(offset, i->offset) ? i : NULL;
}

/* The text of the first transform in a list; NULL: none. */
static const char *first_transform(struct arena *a, const struct value *list)
{
    if (!list || list->kind == VALUE_NONE) return NULL;
    if ((list->kind == VALUE_LIST || list->kind == VALUE_TUPLE) && !list->count) return NULL;
    struct strbuf text = {0};
    value_print(&text, list->kind == VALUE_LIST ? list->items[0] : list, 100);
    const char *copy = arena_text(a, text.data, text.length);
    strbuf_release(&text);
    return copy;
}

static void *make_place(struct dcp_metadata *m, const struct value *v)
{
    int64_t offset, length;
    const struct value *path = state_attribute(v, "relative_path");
    if (!path || path->kind != VALUE_TEXT || !value_as_int(state_attribute(v, "offset"), &offset) ||
        !value_as_int(state_attribute(v, "length"), &length) || offset < 0 || length < 0)
        return NULL;
    struct meta_place *p = arena_alloc(&m->arena, sizeof *p);
    *p = (struct meta_place){
        .kind = META_PLACE,
        .path = intern_text(&m->paths, &m->arena, path),
        .transform = first_transform(&m->arena, state_attribute(v, "transform_descriptors")),
        .offset = (uint64_t)offset,
        .length = (uint64_t)length,
    };
    return p;
}

/* Classes by name: their modules moved between versions. A broken one stays an
 * object and is reported as missing. WriteItems occur only in all_local_plans
 * and are unused. */
static void *make_native(void *context, const char *class_name, const struct value *v)
{
    static const struct {
        const char *class_name;
        void *(*make)(struct dcp_metadata *m, const struct value *v);
    } classes[] = {
        {"ChunkStorageMetadata", make_chunk},
        {"_StorageInfo", make_place},
        {"MetadataIndex", make_index},
        {"TensorProperties", make_properties},
        {"TensorStorageMetadata", make_tensor},
        {"BytesStorageMetadata", make_bytes},
        {"WriteItem", make_bytes},
    };
    for (size_t i = 0; i < COUNT(classes); i++)
        if (strcmp(class_name, classes[i].class_name) == 0) return classes[i].make(context, v);
    return NULL;
}

/* ---- the whole ---- */

/* Adds the chunks of the same tensor in another rank's file. */
static enum status join_chunks(struct dcp_metadata *m, struct meta_entry *entry,
                               const struct meta_tensor *more, struct error *err)
{
    const struct meta_tensor *t = entry->tensor;
    const size_t dims = more ? more->num_dims * sizeof *more->shape : 0;
    if (!t && !more) return OK;
    if (!t || !more || t->num_dims != more->num_dims || memcmp(t->shape, more->shape, dims) ||
        t->num_chunks > UINT32_MAX - more->num_chunks)
        return fail(err, ERR_CORRUPT, "%s: its shape differs between files",
                    m->names.texts[entry->name]);
    struct meta_tensor *both = arena_copy(&m->arena, t, sizeof *t);
    both->num_chunks = t->num_chunks + more->num_chunks;
    both->chunks = arena_array(&m->arena, both->num_chunks, sizeof *both->chunks);
    if (t->num_chunks) memcpy(both->chunks, t->chunks, t->num_chunks * sizeof *t->chunks);
    if (more->num_chunks)
        memcpy(both->chunks + t->num_chunks, more->chunks, more->num_chunks * sizeof *t->chunks);
    entry->tensor = both;
    return OK;
}

static enum status take_entries(struct dcp_metadata *m, const struct value *dict, struct error *err)
{
    const size_t of_others = m->num_entries;
    if (!dict || dict->kind != VALUE_DICT)
        return fail(err, ERR_CORRUPT,
                    "not a Metadata of torch.distributed.checkpoint: no "
                    "state_dict_metadata");
    for (size_t i = 0; i < dict->count; i++) {
        const struct value *key = dict->items[2 * i], *v = dict->items[2 * i + 1];
        size_t old;
        const struct meta_tensor *tensor = native_of(v, META_TENSOR);
        if (key->kind != VALUE_TEXT)
            return fail(err, ERR_CORRUPT, "a key of state_dict_metadata is not a string");
        uint32_t name = intern_text(&m->names, &m->arena, key);
        if (!tensor && !native_of(v, META_BYTES))
            return fail(err, ERR_CORRUPT,
                        "%s: neither a TensorStorageMetadata with properties, size and chunks nor "
                        "a BytesStorageMetadata",
                        m->names.texts[name]);
        const struct meta_entry entry = {.name = name, .tensor = tensor};
        if (map_add(&m->entry_of, m->names.texts[name], m->num_entries, &old))
            *ARENA_PUSH(&m->arena, m->entries, m->num_entries, m->entries_capacity) = entry;
        else if (old < of_others)
            TRY(join_chunks(m, &m->entries[old], tensor, err));
        else
            m->entries[old] = entry; /* the last of equal keys counts */
    }
    return OK;
}

static size_t first_slot(const struct dcp_metadata *m, uint32_t name, const uint64_t *offset,
                         uint32_t num_dims)
{
    uint64_t h = (m->seed ^ name) * 0x9E3779B97F4A7C15u;
    for (uint32_t d = 0; d < num_dims; d++)
        h = ((h ^ offset[d]) * 0xBF58476D1CE4E5B9u) ^ (h << 31 | h >> 33);
    return (size_t)(h ^ h >> 32) & (m->num_slots - 1);
}

/* The slot with this index, or the free one for it. */
static uint32_t *index_slot_of(const struct dcp_metadata *m, uint32_t name, const uint64_t *offset,
                               uint32_t num_dims)
{
    for (size_t s = first_slot(m, name, offset, num_dims);; s = (s + 1) & (m->num_slots - 1)) {
        if (!m->slots[s]) return &m->slots[s];
        const struct meta_index *i = m->items[m->slots[s] - 1].index;
        if (i->name == name && i->has_offset == (offset != NULL) && i->num_dims == num_dims &&
            (!num_dims || memcmp(i->offset, offset, num_dims * sizeof *offset) == 0))
            return &m->slots[s];
    }
}

static void make_slots(struct dcp_metadata *m)
{
    m->num_slots = 16;
    while (m->num_slots < 2 * m->num_items)
        m->num_slots *= 2;
    free(m->slots);
    m->slots = must_calloc(m->num_slots, sizeof *m->slots);
    for (size_t i = 0; i < m->num_items; i++) { /* the last of equal keys counts */
        const struct meta_index *x = m->items[i].index;
        *index_slot_of(m, x->name, x->has_offset ? x->offset : NULL, x->num_dims) =
            (uint32_t)(i + 1);
    }
}

static enum status take_items(struct dcp_metadata *m, const struct value *dict, struct error *err)
{
    if (!dict || dict->kind != VALUE_DICT)
        return fail(err, ERR_CORRUPT,
                    "not a Metadata of torch.distributed.checkpoint: no "
                    "storage_data");
    struct meta_item *items = arena_array(&m->arena, m->num_items + dict->count, sizeof *items);
    if (m->num_items) memcpy(items, m->items, m->num_items * sizeof *items);
    m->items = items;
    for (size_t i = 0; i < dict->count; i++) {
        const struct meta_index *index = native_of(dict->items[2 * i], META_INDEX);
        const struct meta_place *place = native_of(dict->items[2 * i + 1], META_PLACE);
        if (!index || !place)
            return fail(
                err, ERR_CORRUPT,
                "entry %zu of storage_data is not a pair of a MetadataIndex with an fqn and a "
                "_StorageInfo with relative_path, offset and length",
                i);
        m->items[m->num_items++] = (struct meta_item){index, place};
    }
    make_slots(m);
    return OK;
}

/* NULL: longer than a name may be. */
static const char *join_path(struct arena *a, const struct value *path)
{
    struct strbuf s = {0};
    for (uint32_t i = 0; i < path->count && s.length <= VALUE_PATH_BYTES; i++) {
        const struct value *key = path->items[i];
        if (i) strbuf_add_char(&s, '\x1f');
        if (key->kind == VALUE_TEXT)
            strbuf_add(&s, key->text, strnlen(key->text, VALUE_PATH_BYTES + 1));
        else
            value_print(&s, key, 200);
    }
    const char *copy =
        s.length <= VALUE_PATH_BYTES ? arena_text(a, s.data ? s.data : "", s.length) : NULL;
    strbuf_release(&s);
    return copy;
}

/* Flat name -> tuple of keys. Many files have none. */
static void take_nested_paths(struct dcp_metadata *m, const struct value *dict)
{
    if (!dict || dict->kind != VALUE_DICT) return;
    for (size_t i = 0; i < dict->count; i++) {
        const struct value *key = dict->items[2 * i], *path = dict->items[2 * i + 1];
        size_t entry;
        if (key->kind != VALUE_TEXT || !is_tuple(path)) continue;
        const uint32_t name = intern_text(&m->names, &m->arena, key); /* may reallocate texts */
        if (map_get(&m->entry_of, m->names.texts[name], &entry))
            m->entries[entry].nested_path = join_path(&m->arena, path);
    }
}

static enum status take_root(struct dcp_metadata *m, const struct value *root, struct error *err)
{
    TRY(take_entries(m, value_get(root, "state_dict_metadata"), err));
    TRY(take_items(m, value_get(root, "storage_data"), err));
    take_nested_paths(m, value_get(root, "planner_data"));
    return OK;
}

void dcp_metadata_init(struct dcp_metadata *m)
{
    *m = (struct dcp_metadata){.seed = dcp_random()};
    arena_init(&m->arena);
}

enum status dcp_metadata_add(struct dcp_metadata *m, const char *path, struct error *err)
{
    static const char *const skipped[] = {"all_local_plans"};
    struct bytes file;
    struct value *root;
    struct arena values; /* of the pickle */
    TRY(bytes_open(&file, path, NULL, err));
    arena_init(&values);
    m->chunks_left = file.size_bytes;
    const struct pickle_hooks hooks = {
        .context = m, .built = make_native, .skip_attributes = skipped, .num_skip_attributes = 1};
    enum status st = pickle_read(&values, &file, 0, &hooks, &root, NULL, err);
    if (!st) st = take_root(m, root, err);
    bytes_release(&file);
    arena_release(&values);
    return st ? fail_in(err, "%s", path) : OK;
}

void dcp_metadata_release(struct dcp_metadata *m)
{
    map_release(&m->names.map);
    map_release(&m->paths.map);
    map_release(&m->entry_of);
    free(m->slots);
    arena_release(&m->arena);
    *m = (struct dcp_metadata){0};
}

const struct meta_place *dcp_metadata_find(const struct dcp_metadata *m, uint32_t name,
                                           const uint64_t *offset, uint32_t num_dims)
{
    uint32_t item = *index_slot_of(m, name, offset, num_dims);
    return item ? m->items[item - 1].place : NULL;
}
