/* Writes torch.save archives. Entries in order: data.pkl, byteorder, the
 * storages, version; no .format_version, with which torch would compute offsets
 * of its own. */
#include <assert.h>
#include <inttypes.h>
#include <libdeflate.h>
#include <string.h>

#include "common/checked.h"
#include "common/map.h"
#include "formats/pickle_internal.h"
#include "formats/torch.h"

static const char BYTEORDER[] = "little", VERSION[] = "3\n";

/* Entries before and behind the storages. */
enum { ENTRIES_BEFORE = 2, ENTRIES_BEHIND = 1 };

/* The contents of entry i of n; NULL: a storage. */
static const void *entry_contents(const struct strbuf *pickle, size_t i, size_t n, size_t *bytes)
{
    if (i == 0) {
        *bytes = pickle->length;
        return pickle->data;
    }
    if (i != 1 && i != n - 1) return NULL;
    *bytes = i == 1 ? sizeof BYTEORDER - 1 : sizeof VERSION - 1;
    return i == 1 ? BYTEORDER : VERSION;
}

static void set_entry(struct zip_out *z, size_t i, const char *name, const struct strbuf *pickle,
                      uint64_t storage_bytes)
{
    size_t bytes;
    struct zip_out_entry *e = &z->entries[i];
    const void *text = entry_contents(pickle, i, z->num_entries, &bytes);
    *e = (struct zip_out_entry){.name = name, .size_bytes = text ? bytes : storage_bytes};
    if (text) e->crc = libdeflate_crc32(0, text, bytes);
}

typedef enum status put_function(void *context, uint64_t offset, const void *bytes, size_t count,
                                 struct error *err);

/* zip_emit() puts the header of each entry in turn, then the directory; the
 * contents of small entries go behind their headers. */
struct emitter {
    const struct zip_out *zip;
    const struct strbuf *pickle;
    size_t next;
    put_function *put;
    void *context;
};

static enum status put_with_contents(void *context, uint64_t offset, const void *bytes,
                                     size_t count, struct error *err)
{
    struct emitter *e = context;
    size_t i = e->next++, length;
    TRY(e->put(e->context, offset, bytes, count, err));
    if (i >= e->zip->num_entries) return OK;
    const void *text = entry_contents(e->pickle, i, e->zip->num_entries, &length);
    if (!text || !length) return OK;
    return e->put(e->context, e->zip->entries[i].data_offset, text, length, err);
}

/* ---- files ---- */

struct collector {
    struct torch_out *t;
    struct map keys; /* -> storages */
    size_t capacity;
};

static enum status collect_storage(void *context, const struct value_storage *s, struct error *err)
{
    struct collector *c = context;
    size_t index;
    uint64_t bytes;
    if (!dtype_size_bytes(s->typed ? s->dtype : DT_U8, s->numel, &bytes))
        return fail(err, ERR_OURS, "storage %s: %" PRIu64 " elements", s->key, s->numel);
    if (map_add(&c->keys, s->key, c->t->num_storages, &index)) {
        *ARENA_PUSH(&c->t->arena, c->t->storages, c->t->num_storages, c->capacity) =
            (struct torch_out_storage){
                .key = arena_copy_text(&c->t->arena, s->key),
                .size_bytes = bytes,
            };
    } else if (c->t->storages[index].size_bytes != bytes) {
        return fail(err, ERR_OURS, "storage %s: %" PRIu64 " bytes, then %" PRIu64, s->key,
                    c->t->storages[index].size_bytes, bytes);
    }
    return OK;
}

static void lay_out_entries(struct torch_out *t, const char *folder)
{
    struct arena *a = &t->arena;
    struct zip_out *z = &t->zip;
    size_t n = t->num_storages + ENTRIES_BEFORE + ENTRIES_BEHIND;
    z->num_entries = n;
    z->entries = arena_array(a, n, sizeof *z->entries);
    set_entry(z, 0, arena_printf(a, "%s/data.pkl", folder), &t->pickle, 0);
    set_entry(z, 1, arena_printf(a, "%s/byteorder", folder), &t->pickle, 0);
    for (size_t i = 0; i < t->num_storages; i++)
        set_entry(z, ENTRIES_BEFORE + i, arena_printf(a, "%s/data/%s", folder, t->storages[i].key),
                  &t->pickle, t->storages[i].size_bytes);
    set_entry(z, n - 1, arena_printf(a, "%s/version", folder), &t->pickle, 0);
    zip_layout(z);
    for (size_t i = 0; i < t->num_storages; i++)
        t->storages[i].data_offset = z->entries[ENTRIES_BEFORE + i].data_offset;
    t->total_bytes = z->total_bytes;
}

enum status torch_layout(struct torch_out *t, const char *folder, const struct value *root,
                         struct error *err)
{
    *t = (struct torch_out){0};
    arena_init(&t->arena);
    struct collector c = {.t = t};
    enum status st = pickle_write_storages(&t->pickle, root, collect_storage, &c, err);
    map_release(&c.keys);
    if (st)
        torch_out_release(t);
    else
        lay_out_entries(t, folder);
    return st;
}

enum status torch_emit(struct torch_out *t, put_function *put, void *context, struct error *err)
{
    struct emitter e = {.zip = &t->zip, .pickle = &t->pickle, .put = put, .context = context};
    for (size_t i = 0; i < t->num_storages; i++)
        t->zip.entries[ENTRIES_BEFORE + i].crc = t->storages[i].crc;
    return zip_emit(&t->zip, put_with_contents, &e, err);
}

void torch_out_release(struct torch_out *t)
{
    arena_release(&t->arena);
    strbuf_release(&t->pickle);
    *t = (struct torch_out){0};
}

static enum status put_in_memory(void *context, uint64_t offset, const void *bytes, size_t count,
                                 struct error *err)
{
    (void)err;
    memcpy((char *)context + offset, bytes, count);
    return OK;
}

enum status torch_to_bytes(struct strbuf *out, const char *folder, const struct value *root,
                           const void *const *data, struct error *err)
{
    struct torch_out t;
    TRY(torch_layout(&t, folder, root, err));
    size_t begin = out->length;
    strbuf_add_repeated(out, '\0', (size_t)t.total_bytes);
    for (size_t i = 0; i < t.num_storages; i++) {
        struct torch_out_storage *s = &t.storages[i];
        if (!s->size_bytes) continue;
        memcpy(out->data + begin + s->data_offset, data[i], (size_t)s->size_bytes);
        s->crc = libdeflate_crc32(0, data[i], (size_t)s->size_bytes);
    }
    enum status st = torch_emit(&t, put_in_memory, out->data + begin, err);
    torch_out_release(&t);
    return st;
}

/* ---- items ---- */

enum { ITEM_DATA = ENTRIES_BEFORE, ITEM_ENTRIES = ENTRIES_BEFORE + 1 + ENTRIES_BEHIND };

static void item_zip(struct zip_out *z, struct zip_out_entry entries[ITEM_ENTRIES],
                     struct strbuf *pickle, enum dtype dtype, unsigned num_dims,
                     const uint64_t *shape)
{
    static const char *const names[ITEM_ENTRIES] = {"archive/data.pkl", "archive/byteorder",
                                                    "archive/data/0", "archive/version"};
    uint64_t numel, bytes = 0;
    enum status st = pickle_put_tensor(pickle, dtype, num_dims, shape, NULL);
    bool fits = shape_numel(shape, num_dims, &numel) && dtype_size_bytes(dtype, numel, &bytes);
    assert(!st && fits);
    (void)st, (void)fits;
    *z = (struct zip_out){.entries = entries, .num_entries = ITEM_ENTRIES};
    for (size_t i = 0; i < ITEM_ENTRIES; i++)
        set_entry(z, i, names[i], pickle, bytes);
    zip_layout(z);
}

void torch_item_layout(struct torch_item *item, enum dtype dtype, unsigned num_dims,
                       const uint64_t *shape)
{
    struct zip_out z;
    struct zip_out_entry entries[ITEM_ENTRIES];
    struct strbuf pickle = {0};
    item_zip(&z, entries, &pickle, dtype, num_dims, shape);
    *item = (struct torch_item){entries[ITEM_DATA].data_offset, z.total_bytes};
    strbuf_release(&pickle);
}

struct item_parts {
    uint64_t data_offset;
    struct strbuf *before, *after;
};

static enum status put_in_parts(void *context, uint64_t offset, const void *bytes, size_t count,
                                struct error *err)
{
    (void)err;
    struct item_parts *p = context;
    strbuf_add(offset < p->data_offset ? p->before : p->after, bytes, count);
    return OK;
}

void torch_item_emit(enum dtype dtype, unsigned num_dims, const uint64_t *shape, uint32_t crc,
                     struct strbuf *before, struct strbuf *after)
{
    struct zip_out z;
    struct zip_out_entry entries[ITEM_ENTRIES];
    struct strbuf pickle = {0};
    item_zip(&z, entries, &pickle, dtype, num_dims, shape);
    entries[ITEM_DATA].crc = crc;
    struct item_parts parts = {entries[ITEM_DATA].data_offset, before, after};
    struct emitter e = {.zip = &z, .pickle = &pickle, .put = put_in_parts, .context = &parts};
    enum status st = zip_emit(&z, put_with_contents, &e, NULL);
    assert(!st); /* put_in_parts() never fails */
    (void)st;
    strbuf_release(&pickle);
}

uint32_t torch_crc(const void *bytes, size_t count)
{
    return libdeflate_crc32(0, bytes, count);
}
