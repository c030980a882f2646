#include "formats/torch.h"

#include <inttypes.h>
#include <libdeflate.h>
#include <stdio.h>
#include <string.h>

#include "common/checked.h"
#include "formats/pickle_internal.h"
#include "formats/sniff.h"
#include "formats/torch_internal.h"
#include "formats/zip_internal.h"

enum {
    LARGEST_PICKLE = 1 << 30, /* of data.pkl */
    /* A deflated data.pkl may have this many bytes plus a multiple of its
     * packed size: real ones have 3 to 6 times that, deflate could reach a
     * thousand. */
    LEAST_INFLATED = 4 << 20,
    MAX_INFLATED = 32,
    LARGEST_NOTE = 64, /* of entries byteorder and version */
    HIGHEST_VERSION = 10,
    LEGACY_PROTOCOL = 1001,
};

/* LONG1 of 0x1950A86A20F9469CFC6C, behind PROTO and FRAME. */
static const uint8_t LEGACY_MAGIC[12] = {0x8A, 0x0A, 0x6C, 0xFC, 0x9C, 0x46,
                                         0xF9, 0x20, 0x6A, 0xA8, 0x50, 0x19};

/* ---- kinds of files ---- */

static bool is_zip(const uint8_t *head, size_t bytes)
{
    return bytes >= 4 && memcmp(head, "PK\3\4", 4) == 0;
}

static bool is_legacy(const uint8_t *head, size_t bytes)
{
    return bytes && head[0] == 0x80 &&
           memmem(head, bytes < 32 ? bytes : 32, LEGACY_MAGIC, sizeof LEGACY_MAGIC);
}

bool torch_matches(const uint8_t *head, size_t bytes)
{
    return is_zip(head, bytes) || is_legacy(head, bytes);
}

static enum status fail_kind(const uint8_t *head, size_t bytes, struct error *err)
{
    const char *what = sniff_not_torch(head, bytes);
    return fail(err, ERR_UNSUPPORTED, "%s",
                what ? what : "neither a zip archive nor torch's legacy stream");
}

/* ---- storages ---- */

static void add_warning(struct torch_file *t, const char *text)
{
    *ARENA_PUSH(&t->arena, t->warnings, t->num_warnings, t->warnings_capacity) = text;
}

static uint64_t storage_bytes(const struct value_storage *s)
{
    uint64_t bytes = 0;
    bool fits = dtype_size_bytes(s->typed ? s->dtype : DT_U8, s->numel, &bytes);
    return fits ? bytes : 0; /* always fits: pickle_calls.c:set_numel */
}

/* The record of a persistent id's storage: a new one, or an earlier id's, which
 * must have the same class and number of elements. */
static enum status meet_storage(struct torch_file *t, const struct value_storage *s, bool *is_new,
                                struct torch_storage **out, struct error *err)
{
    size_t index;
    *is_new = map_add(&t->keys, s->key, t->num_storages, &index);
    if (*is_new) {
        *out = ARENA_PUSH(&t->arena, t->storages, t->num_storages, t->storages_capacity);
        **out = (struct torch_storage){
            .key = s->key,
            .class_name = s->class_name,
            .numel = s->numel,
            .size_bytes = storage_bytes(s),
        };
        return OK;
    }
    const struct torch_storage *old = *out = &t->storages[index];
    if (strcmp(old->class_name, s->class_name) == 0 && old->numel == s->numel) return OK;
    return fail(err, ERR_CORRUPT, "storage %s: %s of %" PRIu64 " elements, earlier %s of %" PRIu64,
                s->key, s->class_name, s->numel, old->class_name, old->numel);
}

/* ---- zip ---- */

struct zip_context {
    struct torch_file *t;
    const struct zip_directory *z;
};

static enum status place_in_zip(void *context, const struct value_storage *s, struct error *err)
{
    struct zip_context *c = context;
    struct torch_storage *storage;
    bool is_new;
    TRY(meet_storage(c->t, s, &is_new, &storage, err));
    if (!is_new) return OK;
    char name[256];
    int n = snprintf(name, sizeof name, "data/%s", s->key);
    const struct zip_entry *e = n < (int)sizeof name ? zip_find(c->z, name) : NULL;
    if (!e)
        return fail(err, ERR_CORRUPT, "storage %s has no entry %s/data/%s", s->key, c->z->folder,
                    s->key);
    if (e->size_bytes != storage->size_bytes)
        return fail(err, ERR_CORRUPT,
                    "storage %s: entry %s/%s has %" PRIu64 " bytes, %" PRIu64
                    " elements of %s take %" PRIu64,
                    s->key, c->z->folder, name, e->size_bytes, s->numel, s->class_name,
                    storage->size_bytes);
    storage->offset_bytes = e->data_offset;
    storage->packed_bytes = e->packed_bytes;
    storage->coding = e->coding;
    return OK;
}

static enum status read_byteorder(struct torch_file *t, const struct zip_directory *z,
                                  const struct bytes *archive, struct error *err)
{
    struct strbuf text = {0};
    const struct zip_entry *e = zip_find(z, "byteorder");
    if (!e) return OK; /* torch before 2.1, in practice little-endian */
    enum status st = zip_read_entry(e, archive, LARGEST_NOTE, &text, err);
    if (!st && strcmp(text.data, "big") == 0)
        t->byte_swapped = true;
    else if (!st && strcmp(text.data, "little") != 0)
        st = fail(err, ERR_CORRUPT, "byteorder is neither little nor big");
    strbuf_release(&text);
    return st;
}

static enum status check_version(struct torch_file *t, const struct zip_directory *z,
                                 const struct bytes *archive, struct error *err)
{
    struct strbuf text = {0};
    const struct zip_entry *e = zip_find(z, "version");
    if (!e) e = zip_find(z, ".data/version");
    if (!e) {
        add_warning(t, "it has no version; torch would refuse it");
        return OK;
    }
    enum status st = zip_read_entry(e, archive, LARGEST_NOTE, &text, err);
    int version = 0, n = 0;
    if (!st && (sscanf(text.data, "%2d%n", &version, &n) != 1 || version < 1 ||
                version > HIGHEST_VERSION || strcmp(text.data + n, text.data[n] ? "\n" : "") != 0))
        st = fail(err, ERR_CORRUPT, "its version is not a number from 1 to %d", HIGHEST_VERSION);
    strbuf_release(&text);
    return st;
}

/* torch checks no CRC and can be told to write 0. */
static void check_crc(struct torch_file *t, const struct zip_entry *e, const struct strbuf *bytes)
{
    uint32_t crc = libdeflate_crc32(0, bytes->data, bytes->length);
    if (!e->crc || e->crc == crc) return;
    add_warning(t, arena_printf(&t->arena,
                                "entry %s: CRC-32 %08" PRIx32 ", the archive says %08" PRIx32,
                                e->name, crc, e->crc));
}

static enum status read_data_pkl(struct torch_file *t, struct arena *values,
                                 const struct zip_directory *z, const struct bytes *archive,
                                 struct strbuf *bytes, struct error *err)
{
    const struct zip_entry *e = zip_find(z, "data.pkl");
    if (!e) return fail(err, ERR_UNSUPPORTED, "a zip archive without %s/data.pkl", z->folder);
    uint64_t most = LARGEST_PICKLE;
    if (e->coding) most = min_u64(most, LEAST_INFLATED + MAX_INFLATED * e->packed_bytes);
    TRY(zip_read_entry(e, archive, most, bytes, err));
    check_crc(t, e, bytes);
    struct zip_context context = {t, z};
    struct pickle_hooks hooks = {.context = &context, .storage = place_in_zip};
    struct bytes in = bytes_of_memory(bytes->data, bytes->length);
    uint64_t end;
    enum status st = pickle_read(values, &in, 0, &hooks, &t->root, &end, err);
    if (st) return fail_in(err, "data.pkl");
    if (end < bytes->length) add_warning(t, "bytes behind the end of data.pkl's pickle");
    return OK;
}

static enum status parse_zip(struct torch_file *t, struct arena *values,
                             const struct bytes *archive, struct error *err)
{
    struct zip_directory z;
    struct strbuf bytes = {0};
    TRY(zip_read_directory(&z, &t->arena, archive, err));
    t->saved_as = z.folder ? arena_copy_text(&t->arena, z.folder) : NULL;
    enum status st = OK;
    if (zip_find(&z, "constants.pkl"))
        st = fail(err, ERR_UNSUPPORTED,
                  "a TorchScript archive (constants.pkl): code, not a state dict");
    if (!st) st = read_byteorder(t, &z, archive, err);
    if (!st) st = check_version(t, &z, archive, err);
    if (!st) st = read_data_pkl(t, values, &z, archive, &bytes, err);
    strbuf_release(&bytes);
    zip_directory_release(&z);
    return st;
}

/* ---- legacy stream ---- */

struct legacy {
    struct torch_file *t;
    struct arena *values;
    const struct bytes *in;
    uint64_t at; /* offset of the next byte */
};

static enum status note_storage(void *context, const struct value_storage *s, struct error *err)
{
    const struct legacy *l = context;
    struct torch_storage *storage;
    bool is_new;
    return meet_storage(l->t, s, &is_new, &storage, err);
}

static enum status next_pickle(struct legacy *l, const char *what, struct value **out,
                               struct error *err)
{
    const struct pickle_hooks hooks = {.context = l, .storage = note_storage};
    enum status st = pickle_read(l->values, l->in, l->at, &hooks, out, &l->at, err);
    return st ? fail_in(err, "%s", what) : OK;
}

/* One storage's i64 count and data, at l->at. */
static enum status place_storage(struct legacy *l, const char *key, struct error *err)
{
    size_t index;
    unsigned char count[8];
    if (!map_get(&l->t->keys, key, &index))
        return fail(err, ERR_CORRUPT, "the list of storages names %s, which no tensor uses", key);
    struct torch_storage *s = &l->t->storages[index];
    if (s->placed) return fail(err, ERR_CORRUPT, "the list of storages names %s twice", key);
    uint64_t left = l->in->size_bytes - l->at;
    if (left < sizeof count)
        return fail(err, ERR_CORRUPT, "storage %s: the file ends before its data", key);
    TRY(bytes_read(l->in, l->at, count, sizeof count, err));
    if (get_le(count, 8) != s->numel)
        return fail(err, ERR_CORRUPT,
                    "storage %s: %" PRId64 " elements before its data, %" PRIu64 " in the pickle",
                    key, (int64_t)get_le(count, 8), s->numel);
    left -= sizeof count;
    if (left < s->size_bytes)
        return fail(err, ERR_CORRUPT,
                    "storage %s: the file ends after %" PRIu64 " of its %" PRIu64 " bytes", key,
                    left, s->size_bytes);
    s->placed = true;
    s->offset_bytes = l->at + sizeof count;
    l->at += sizeof count + s->size_bytes;
    return OK;
}

static enum status place_storages(struct legacy *l, const struct value *keys, struct error *err)
{
    if (keys->kind != VALUE_LIST)
        return fail(err, ERR_CORRUPT, "the list of storages is not a list");
    for (uint32_t i = 0; i < keys->count; i++) {
        const char *key = value_as_text(keys->items[i]);
        if (!key) return fail(err, ERR_CORRUPT, "an entry of the list of storages is not a string");
        TRY(place_storage(l, key, err));
    }
    for (size_t i = 0; i < l->t->num_storages; i++)
        if (!l->t->storages[i].placed)
            return fail(err, ERR_CORRUPT, "storage %s is not in the list of storages",
                        l->t->storages[i].key);
    if (l->at < l->in->size_bytes) add_warning(l->t, "bytes behind the last storage");
    return OK;
}

static enum status parse_legacy(struct torch_file *t, struct arena *values,
                                const struct bytes *stream, struct error *err)
{
    struct value *magic, *protocol, *system, *keys;
    int64_t number;
    struct legacy l = {.t = t, .values = values, .in = stream};
    TRY(next_pickle(&l, "magic number", &magic, err));
    TRY(next_pickle(&l, "protocol version", &protocol, err));
    if (!value_as_int(protocol, &number)) number = -1;
    if (number != LEGACY_PROTOCOL)
        return fail(err, ERR_CORRUPT, "a legacy stream of protocol version %" PRId64 ", not %d",
                    number, LEGACY_PROTOCOL);
    TRY(next_pickle(&l, "system info", &system, err)); /* data is always little-endian */
    TRY(next_pickle(&l, "object", &t->root, err));
    TRY(next_pickle(&l, "list of storages", &keys, err));
    return place_storages(&l, keys, err);
}

/* ---- opening ---- */

enum status torch_parse(struct torch_file *t, struct arena *values, const struct bytes *archive,
                        struct error *err)
{
    struct bytes b;
    struct bytes_ends ends; /* the first kilobyte tells the kind */
    *t = (struct torch_file){.path = archive->path};
    arena_init(&t->arena);
    if (!values) values = &t->arena;
    enum status st = bytes_keep_ends(&b, &ends, archive, err);
    if (!st && is_zip(ends.head, ends.num_head))
        st = parse_zip(t, values, &b, err);
    else if (!st && is_legacy(ends.head, ends.num_head))
        st = parse_legacy(t, values, &b, err);
    else if (!st)
        st = fail_kind(ends.head, ends.num_head, err);
    if (st) torch_close(t);
    return st;
}

/* offset: of the archive in the file. */
static void add_files(struct torch_file *t, struct stored *s, uint64_t offset,
                      const struct file_stamp *stamp)
{
    t->path = arena_copy_text(&t->arena, t->path);
    t->file = stored_add_file(s, t->path, stamp);
    for (size_t i = 0; i < t->num_storages; i++) {
        struct torch_storage *storage = &t->storages[i];
        storage->file = t->file;
        storage->offset_bytes += offset;
        if (!storage->coding) continue;
        storage->file = stored_add_packed(s, t->file, storage->coding, storage->offset_bytes,
                                          storage->packed_bytes, storage->size_bytes);
        storage->offset_bytes = 0;
    }
    for (size_t i = 0; i < t->num_warnings; i++)
        stored_warn(s, "%s: %s", t->path, t->warnings[i]);
}

enum status torch_open(struct torch_file *t, struct stored *s, const char *path, uint64_t offset,
                       uint64_t size_bytes, struct error *err)
{
    struct bytes file, archive;
    struct file_stamp stamp;
    TRY(bytes_open(&file, path, &stamp, err));
    enum status st = OK;
    if (size_bytes == UINT64_MAX && offset <= stamp.size_bytes)
        size_bytes = stamp.size_bytes - offset;
    if (offset > stamp.size_bytes || size_bytes > stamp.size_bytes - offset)
        st = fail(err, ERR_CORRUPT, "%" PRIu64 " bytes at %" PRIu64 " of %" PRIu64, size_bytes,
                  offset, stamp.size_bytes);
    if (!st) {
        archive = bytes_range(&file, offset, size_bytes);
        st = torch_parse(t, NULL, &archive, err);
    }
    bytes_release(&file);
    if (st) return fail_in(err, "%s", path);
    add_files(t, s, offset, &stamp);
    return OK;
}

void torch_close(struct torch_file *t)
{
    map_release(&t->keys);
    arena_release(&t->arena);
    *t = (struct torch_file){0};
}

/* ---- tensors ---- */

/* Dimensions of one element may have any stride. */
static bool is_row_major(const struct value_tensor *v)
{
    uint64_t n = 1;
    for (unsigned d = v->num_dims; d-- > 0;) {
        if (v->shape[d] == 0) return true;
        if (v->shape[d] != 1 && v->stride[d] != n) return false;
        n *= v->shape[d];
    }
    return true;
}

struct torch_place torch_place_of(const struct torch_file *t, const struct value_tensor *tensor)
{
    size_t index = 0;
    const struct value_storage *s = tensor->storage;
    bool known = map_get(&t->keys, s->key, &index);
    const struct torch_storage *storage = known ? &t->storages[index] : NULL;
    uint64_t bits = dtype_infos[tensor->dtype].bits;
    uint64_t view_bytes = s->view_offset * (s->typed ? dtype_infos[s->dtype].bits / 8 : 1);
    return (struct torch_place){
        .file = storage ? storage->file : t->file,
        .offset_bytes =
            (storage ? storage->offset_bytes : 0) + view_bytes + tensor->offset * bits / 8,
        .stride = is_row_major(tensor) ? NULL : tensor->stride,
    };
}

static enum status fail_rebuilt(const char *name, const struct value *v, struct error *err)
{
    const struct value_global *by = value_rebuilt_by(v);
    if (!by) return fail(err, ERR_UNSUPPORTED, "%s: not a tensor", name);
    return fail(err, ERR_UNSUPPORTED, "tensor %s: made by %s.%s, not a plain tensor", name,
                by->module, by->name);
}

static enum status add_rebuilt_tensor(const struct torch_file *t, struct stored *s,
                                      const char *name, const struct value *tensor,
                                      struct error *err)
{
    struct stored_tensor *out;
    if (tensor->kind != VALUE_TENSOR) return fail_rebuilt(name, tensor, err);
    const struct value_tensor *v = tensor->tensor;
    TRY(stored_add_tensor(s, name, strlen(name), v->dtype, v->num_dims, v->shape, &out, err));
    struct torch_place place = torch_place_of(t, v);
    out->pieces = arena_alloc(&s->arena, sizeof *out->pieces);
    out->num_pieces = 1;
    *out->pieces = (struct stored_piece){
        .file = place.file,
        .byte_swapped = t->byte_swapped,
        .offset_bytes = place.offset_bytes,
    };
    if (place.stride)
        out->pieces->stride =
            arena_copy(&s->arena, place.stride, v->num_dims * sizeof *place.stride);
    return OK;
}

enum status torch_add_tensor(struct torch_file *t, struct stored *s, const char *name,
                             const struct value *tensor, struct error *err)
{
    enum status st = add_rebuilt_tensor(t, s, name, tensor, err);
    return st ? fail_in(err, "%s", t->path) : OK;
}

struct add_context {
    struct torch_file *t;
    struct stored *s;
    const char *prefix;
    struct strbuf name;
    size_t count;
};

static enum status add_walked_tensor(void *context, const char *path, const struct value *v,
                                     struct error *err)
{
    struct add_context *c = context;
    strbuf_clear(&c->name);
    strbuf_add_text(&c->name, c->prefix);
    strbuf_add_text(&c->name, path);
    c->count++;
    return add_rebuilt_tensor(c->t, c->s, c->name.data, v, err);
}

enum status torch_add_tensors(struct torch_file *t, struct stored *s, const struct value *v,
                              const char *prefix, struct error *err)
{
    struct add_context c = {.t = t, .s = s, .prefix = prefix};
    enum status st = value_walk_all(v, "", true, add_walked_tensor, &c, err);
    strbuf_release(&c.name);
    if (!st && !c.count) st = fail(err, ERR_UNSUPPORTED, "it has no tensor");
    return st ? fail_in(err, "%s", t->path) : OK;
}

static enum status read_number_tensor(struct torch_file *t, struct stored *s,
                                      struct stored_reader *r, double *out, struct error *err)
{
    char bytes[8];
    const struct stored_tensor *x = &s->tensors[s->num_tensors - 1];
    if (stored_numel(x) != 1 || !dtype_bytes(x->dtype) || dtype_bytes(x->dtype) > sizeof bytes)
        return fail(err, ERR_CORRUPT,
                    "%s: expected a tensor of one number, found %" PRIu64 " elements of %s",
                    t->path, stored_numel(x), dtype_infos[x->dtype].name);
    TRY(stored_read(r, x->pieces->file, x->pieces->offset_bytes, bytes, dtype_bytes(x->dtype),
                    err));
    *out = dtype_load(x->dtype, bytes, 0);
    return OK;
}

enum status torch_numbers(const char *path, uint64_t offset, uint64_t size_bytes,
                          const struct value *const *tensors, size_t count, double *out,
                          struct error *err)
{
    struct torch_file t;
    struct stored s;
    stored_init(&s);
    enum status st = torch_open(&t, &s, path, offset, size_bytes, err);
    if (!st) {
        struct stored_reader *r = stored_reader_create(&s, 1);
        for (size_t i = 0; i < count && !st; i++) {
            st = torch_add_tensor(&t, &s, arena_printf(&t.arena, "%zu", i), tensors[i], err);
            if (!st) st = read_number_tensor(&t, &s, r, &out[i], err);
        }
        stored_reader_free(r);
        torch_close(&t);
    }
    stored_release(&s);
    return st;
}

/* ---- names ---- */

/* Moves behind a number; false: there is none. */
static bool skip_number(const char **at)
{
    const size_t n = strspn(*at, "0123456789");
    *at += n;
    return n > 0;
}

/* Whether two names differ, but only in their numbers. */
static bool differ_in_numbers(const char *a, const char *b)
{
    const char *x = a, *y = b;
    while (*x && *y) {
        const bool number = skip_number(&x);
        if (number != skip_number(&y)) return false;
        if (number) continue;
        if (*x++ != *y++) return false;
    }
    return !*x && !*y && strcmp(a, b) != 0;
}

enum status torch_check_name(const struct torch_file *t, struct error *err)
{
    struct arena a;
    arena_init(&a);
    char *name = path_base(&a, t->path), *end = strrchr(name, '.');
    if (end) *end = '\0';
    enum status st = OK;
    if (t->saved_as && differ_in_numbers(name, t->saved_as))
        st =
            fail(err, ERR_CORRUPT,
                 "%s: torch saved it as %s%s: it is another rank's or layer's file, or was renamed",
                 t->path, t->saved_as, strrchr(t->path, '.') ? strrchr(t->path, '.') : "");
    arena_release(&a);
    return st;
}
