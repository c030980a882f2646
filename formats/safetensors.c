#include "formats/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/json.h"
#include "common/numbers.h"
#include "formats/sniff.h"

/* A header entry during the checks. */
struct entry {
    const char *name;
    enum dtype dtype;
    unsigned num_dims;
    uint64_t *shape;
    uint64_t begin, end;
};

struct header {
    const char *path;
    struct arena arena;
    cJSON *tree;
    struct entry *entries;
    size_t num_entries;
    uint64_t header_bytes, data_bytes;
};

bool safetensors_matches(const uint8_t *head, size_t bytes)
{
    uint64_t n = 0;
    if (bytes < 9) return false;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | head[i];
    return n <= SAFETENSORS_HEADER_CAP && (head[8] == '{' || strchr(" \t\r\n", head[8]));
}

static enum status fail_entry(const struct header *h, const struct entry *e, struct error *err,
                              const char *what)
{
    struct strbuf name = {0};
    strbuf_add_escaped(&name, e->name, strlen(e->name));
    enum status st = fail(err, ERR_CORRUPT, "%s: tensor %s: %s", h->path, name.data, what);
    strbuf_release(&name);
    return st;
}

/* ---- the text of the header ---- */

static enum status read_text(struct header *h, const struct bytes *file, struct strbuf *text,
                             struct error *err)
{
    uint8_t head[16];
    const uint64_t file_bytes = file->size_bytes;
    size_t head_bytes = min_u64(sizeof head, file_bytes);
    TRY(bytes_read(file, 0, head, head_bytes, err));
    if (file_bytes < 8)
        return fail(err, ERR_CORRUPT, "%s: %" PRIu64 " bytes; a safetensors header needs 8",
                    h->path, file_bytes);
    for (int i = 7; i >= 0; i--)
        h->header_bytes = h->header_bytes << 8 | head[i];
    if (h->header_bytes > SAFETENSORS_HEADER_CAP) {
        const char *what = sniff_name(head, head_bytes);
        if (what) return fail(err, ERR_CORRUPT, "%s: this is %s, not safetensors", h->path, what);
        return fail(err, ERR_CORRUPT, "%s: a header of %" PRIu64 " bytes, at most %d are allowed",
                    h->path, h->header_bytes, SAFETENSORS_HEADER_CAP);
    }
    if (h->header_bytes > file_bytes - 8)
        return fail(err, ERR_CORRUPT, "%s: a header of %" PRIu64 " bytes in a file of %" PRIu64,
                    h->path, h->header_bytes, file_bytes);
    h->data_bytes = file_bytes - 8 - h->header_bytes;
    strbuf_add_repeated(text, '\0', h->header_bytes);
    return bytes_read(file, 8, text->data, text->length, err);
}

/* ---- entries ---- */

/* Digits only: other readers refuse 2.0. */
static bool read_size(const cJSON *item, uint64_t *out)
{
    return json_is_number(item) && parse_u64(item->valuestring, out);
}

static enum status read_shape(struct header *h, struct entry *e, const cJSON *shape,
                              struct error *err)
{
    if (!cJSON_IsArray(shape)) return fail_entry(h, e, err, "shape is not an array");
    size_t n = 0;
    for (const cJSON *d = shape->child; d; d = d->next)
        n++;
    e->num_dims = (unsigned)n;
    e->shape = arena_array(&h->arena, n, sizeof *e->shape);
    n = 0;
    for (const cJSON *d = shape->child; d; d = d->next)
        if (!read_size(d, &e->shape[n++]))
            return fail_entry(h, e, err, "a dimension is not a whole number of 64 bits");
    return OK;
}

static enum status read_offsets(struct header *h, struct entry *e, const cJSON *offsets,
                                struct error *err)
{
    const cJSON *begin = cJSON_IsArray(offsets) ? offsets->child : NULL;
    const cJSON *end = begin ? begin->next : NULL;
    if (!end || end->next || !read_size(begin, &e->begin) || !read_size(end, &e->end))
        return fail_entry(h, e, err, "data_offsets is not [begin, end]");
    return OK;
}

static enum status read_entry(struct header *h, struct entry *e, const cJSON *item,
                              struct error *err)
{
    e->name = item->string;
    if (!cJSON_IsObject(item)) return fail_entry(h, e, err, "its entry is not an object");
    const cJSON *dtype = json_get(item, "dtype"), *shape = json_get(item, "shape"),
                *offsets = json_get(item, "data_offsets");
    if (!dtype || !shape || !offsets)
        return fail_entry(h, e, err, !dtype ? "no dtype" : !shape ? "no shape" : "no data_offsets");
    const char *name = json_as_text(dtype);
    if (!name) return fail_entry(h, e, err, "dtype is not a string");
    if (!dtype_from_safetensors(name, &e->dtype)) {
        struct strbuf text = {0};
        strbuf_add_text(&text, "dtype \"");
        strbuf_add_escaped(&text, name, strlen(name));
        strbuf_add_text(&text, "\" is not known");
        enum status st = fail_entry(h, e, err, text.data);
        strbuf_release(&text);
        return st;
    }
    TRY(read_shape(h, e, shape, err));
    return read_offsets(h, e, offsets, err);
}

static enum status read_metadata(const struct header *h, const cJSON *item,
                                 struct safetensors_info *info, struct stored *s, struct error *err)
{
    if (cJSON_IsNull(item)) return OK; /* optional in the reference */
    if (!cJSON_IsObject(item))
        return fail(err, ERR_CORRUPT, "%s: __metadata__ is not an object", h->path);
    for (const cJSON *v = item->child; v; v = v->next) {
        const char *text = json_as_text(v);
        if (!text)
            return fail(err, ERR_CORRUPT, "%s: a value of __metadata__ is not a string", h->path);
        if (strcmp(v->string, "format") == 0) info->format = arena_copy_text(&s->arena, text);
        if (strcmp(v->string, "DCP_SHARDING_INFO")) continue;
        info->dcp_shard = true;
        info->dcp_sharding = arena_copy_text(&s->arena, text);
    }
    return OK;
}

static enum status read_entries(struct header *h, struct safetensors_info *info, struct stored *s,
                                struct error *err)
{
    size_t n = 0;
    if (!cJSON_IsObject(h->tree))
        return fail(err, ERR_CORRUPT, "%s: the header is not a JSON object", h->path);
    for (const cJSON *i = h->tree->child; i; i = i->next)
        n++;
    h->entries = arena_array(&h->arena, n, sizeof *h->entries);
    for (const cJSON *i = h->tree->child; i; i = i->next)
        if (strcmp(i->string, "__metadata__") == 0)
            TRY(read_metadata(h, i, info, s, err));
        else
            TRY(read_entry(h, &h->entries[h->num_entries++], i, err));
    return OK;
}

/* ---- the rules, in the reference's order ---- */

static int by_offsets(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static enum status check_entry(const struct header *h, const struct entry *e, uint64_t previous_end,
                               struct error *err)
{
    char text[160];
    uint64_t numel, bits;
    if (e->begin != previous_end || e->end < e->begin) {
        snprintf(text, sizeof text,
                 "data_offsets [%" PRIu64 ", %" PRIu64 "], the data before it ends at %" PRIu64,
                 e->begin, e->end, previous_end);
        return fail_entry(h, e, err, text);
    }
    if (!shape_numel(e->shape, e->num_dims, &numel) ||
        !mul_u64(numel, dtype_infos[e->dtype].bits, &bits))
        return fail_entry(h, e, err, "its shape overflows 64 bits");
    if (bits % 8) {
        snprintf(text, sizeof text, "%" PRIu64 " elements of %s are not a whole number of bytes",
                 numel, dtype_infos[e->dtype].name);
        return fail_entry(h, e, err, text);
    }
    if (e->end - e->begin != bits / 8) {
        snprintf(text, sizeof text,
                 "%" PRIu64 " elements of %s need %" PRIu64 " bytes, data_offsets give %" PRIu64,
                 numel, dtype_infos[e->dtype].name, bits / 8, e->end - e->begin);
        return fail_entry(h, e, err, text);
    }
    return OK;
}

static enum status check_entries(struct header *h, struct error *err)
{
    uint64_t end = 0;
    if (h->num_entries) qsort(h->entries, h->num_entries, sizeof *h->entries, by_offsets);
    for (size_t i = 0; i < h->num_entries; i++) {
        TRY(check_entry(h, &h->entries[i], end, err));
        end = h->entries[i].end;
    }
    if (end > h->data_bytes)
        return fail(err, ERR_CORRUPT,
                    "%s: the tensors end at byte %" PRIu64 ", the file at %" PRIu64
                    ": truncated, or not fully downloaded",
                    h->path, 8 + h->header_bytes + end, 8 + h->header_bytes + h->data_bytes);
    if (end < h->data_bytes)
        return fail(err, ERR_CORRUPT, "%s: %" PRIu64 " bytes behind the last tensor", h->path,
                    h->data_bytes - end);
    return OK;
}

static enum status add_tensors(const struct header *h, struct safetensors_info *info,
                               struct stored *s, struct error *err)
{
    for (size_t i = 0; i < h->num_entries; i++) {
        const struct entry *e = &h->entries[i];
        struct stored_tensor *t;
        TRY(stored_add_tensor(s, e->name, strlen(e->name), e->dtype, e->num_dims, e->shape, &t,
                              err));
        t->num_pieces = 1;
        t->pieces = arena_alloc(&s->arena, sizeof *t->pieces);
        t->pieces[0] = (struct stored_piece){.file = info->file,
                                             .offset_bytes = 8 + h->header_bytes + e->begin};
        info->num_tensors++;
    }
    return OK;
}

enum status safetensors_open(struct stored *s, const char *path, struct safetensors_info *info,
                             struct error *err)
{
    struct header h = {.path = path};
    struct strbuf text = {0};
    struct file_stamp stamp;
    struct bytes file;
    *info = (struct safetensors_info){.first_tensor = s->num_tensors};
    TRY(bytes_open(&file, path, &stamp, err));
    arena_init(&h.arena);
    enum status st = read_text(&h, &file, &text, err);
    bytes_release(&file);
    if (!st && json_parse(text.data, text.length, JSON_STRICT, &h.tree, err))
        st = fail_in(err, "%s: header", path);
    strbuf_release(&text);
    if (!st) st = read_entries(&h, info, s, err);
    if (!st) st = check_entries(&h, err);
    if (!st) {
        info->file = stored_add_file(s, path, &stamp);
        st = add_tensors(&h, info, s, err);
    }
    cJSON_Delete(h.tree);
    arena_release(&h.arena);
    return st;
}

/* ---- writing ---- */

static int by_rank_and_name(const void *a, const void *b)
{
    const struct safetensors_out *x = a, *y = b;
    if (x->dtype != y->dtype) return x->dtype > y->dtype ? -1 : 1;
    return strcmp(x->name, y->name);
}

static void add_entry(struct strbuf *head, const struct safetensors_out *t, uint64_t begin,
                      uint64_t end)
{
    json_print_text(head, t->name);
    strbuf_printf(head, ":{\"dtype\":\"%s\",\"shape\":[", dtype_infos[t->dtype].safetensors);
    for (unsigned d = 0; d < t->num_dims; d++)
        strbuf_printf(head, "%s%" PRIu64, d ? "," : "", t->shape[d]);
    strbuf_printf(head, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, end);
}

enum status safetensors_layout(struct safetensors_out *tensors, size_t num_tensors,
                               struct strbuf *head, uint64_t *file_bytes, struct error *err)
{
    uint64_t end = 0;
    if (num_tensors) qsort(tensors, num_tensors, sizeof *tensors, by_rank_and_name);
    strbuf_clear(head);
    strbuf_add_repeated(head, '\0', 8);
    strbuf_add_text(head, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < num_tensors; i++) {
        struct safetensors_out *t = &tensors[i];
        uint64_t numel, bytes;
        if (!dtype_infos[t->dtype].safetensors)
            return fail(err, ERR_UNSUPPORTED, "tensor %s: safetensors has no dtype %s", t->name,
                        dtype_infos[t->dtype].name);
        if (!shape_numel(t->shape, t->num_dims, &numel) ||
            !dtype_size_bytes(t->dtype, numel, &bytes) || !add_u64(end, bytes, file_bytes))
            return fail(err, ERR_UNSUPPORTED, "tensor %s: its size overflows", t->name);
        strbuf_add_char(head, ',');
        add_entry(head, t, end, *file_bytes);
        t->offset_bytes = end;
        end = *file_bytes;
    }
    strbuf_add_char(head, '}');
    strbuf_add_repeated(head, ' ', (8 - head->length % 8) % 8);
    uint64_t n = head->length - 8;
    if (n > SAFETENSORS_HEADER_CAP)
        return fail(err, ERR_UNSUPPORTED,
                    "a safetensors header of %" PRIu64 " bytes, at most %d are allowed", n,
                    SAFETENSORS_HEADER_CAP);
    for (int i = 0; i < 8; i++)
        head->data[i] = (char)(n >> 8 * i);
    for (size_t i = 0; i < num_tensors; i++)
        tensors[i].offset_bytes += head->length;
    *file_bytes = head->length + end;
    return OK;
}
