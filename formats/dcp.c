/* Opens a DCP folder: .metadata, then every item, by several threads.
 *
 * 1. Each tensor's chunks are sorted, deduplicated and proven to tile it before
 *    any item is read.
 * 2. Items are read file by file in order of offset, in batches, so a thread
 *    has one file open. Findings go into the item, and only then, by one
 *    thread, into `stored`. */
#include "formats/dcp.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"
#include "common/threads.h"
#include "formats/dcp_internal.h"
#include "formats/torch_internal.h"

/* One chunk of a tensor and the findings in its item. */
struct item {
    const struct meta_chunk *chunk;
    const struct meta_place *place;
    uint32_t tensor; /* index into open.tensors */
    enum dtype dtype;
    bool byte_swapped;
    uint64_t data_offset;
    const uint64_t *stride; /* NULL: row-major */
};

struct open_tensor {
    const struct meta_entry *entry;
    size_t first_item, num_items;
};

struct open {
    const char *folder;
    struct dcp_metadata meta;
    struct arena arena;
    const char **paths;        /* of meta.paths */
    struct file_stamp *stamps; /* size_bytes UINT64_MAX: not known yet */
    struct open_tensor *tensors;
    size_t num_tensors;
    struct item *items;
    size_t num_items;
    struct item **by_place; /* sorted by path, then offset */
    struct batch {
        size_t first, count; /* of by_place */
    } * batches;
    size_t num_batches;
    struct arena *worker_arenas;
    size_t num_workers;
};

static const char *interned_name(const struct open *o, uint32_t name)
{
    return o->meta.names.texts[name];
}

static void add_dims(struct strbuf *out, const uint64_t *dims, uint32_t count)
{
    strbuf_add_char(out, '[');
    for (uint32_t d = 0; d < count; d++)
        strbuf_printf(out, "%s%" PRIu64, d ? ", " : "", dims[d]);
    strbuf_add_char(out, ']');
}

/* Puts "NAME chunk at [..]" in front of err's message after a failure. */
static enum status in_chunk(const struct open *o, uint32_t name, const struct meta_chunk *c,
                            enum status st, struct error *err)
{
    struct strbuf at = {0};
    if (!st) return OK;
    add_dims(&at, c->bounds, c->num_dims);
    st = fail_in(err, "%s: %s chunk at %s", o->folder, interned_name(o, name), at.data);
    strbuf_release(&at);
    return st;
}

/* ---- tiling ---- */

/* Chunks tile a tensor if for every measure their sum is the whole tensor's. A
 * random measure misses a gap or overlap with probability 2^-57: each
 * coordinate of each dimension gets a random number modulo p = 2^61 - 1, and a
 * box measures the product over its dimensions of the difference between the
 * numbers of its ends (Schwartz, Zippel: the sum is a polynomial in those
 * numbers; each folder draws a new seed). Linear in the number of chunks for
 * any grid. */
static const uint64_t P = ((uint64_t)1 << 61) - 1;
__extension__ typedef unsigned __int128 u128;

static uint64_t multiply_mod_p(uint64_t a, uint64_t b)
{
    u128 n = (u128)a * b;
    uint64_t sum = (uint64_t)(n & P) + (uint64_t)(n >> 61);
    return sum >= P ? sum - P : sum;
}

static uint64_t hash_coordinate(uint64_t seed, uint32_t dim, uint64_t coordinate)
{
    uint64_t z = seed ^ (coordinate + (dim + 1) * 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u; /* splitmix64 */
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (z ^ z >> 31) % P;
}

static uint64_t measure_box(uint64_t seed, const uint64_t *start, const uint64_t *size,
                            uint32_t num_dims)
{
    uint64_t product = 1;
    for (uint32_t d = 0; d < num_dims; d++) {
        uint64_t from = hash_coordinate(seed, d, start ? start[d] : 0);
        uint64_t to = hash_coordinate(seed, d, (start ? start[d] : 0) + size[d]);
        product = multiply_mod_p(product, to >= from ? to - from : to + P - from);
    }
    return product;
}

static const uint64_t *sizes_of(const struct meta_chunk *c)
{
    return c->bounds + c->num_dims;
}

static bool is_empty(const struct meta_chunk *c)
{
    for (uint32_t d = 0; d < c->num_dims; d++)
        if (!sizes_of(c)[d]) return true;
    return false;
}

static int by_bounds(const void *a, const void *b)
{
    const struct meta_chunk *const *x = a, *const *y = b;
    for (uint32_t i = 0; i < 2 * (*x)->num_dims; i++)
        if ((*x)->bounds[i] != (*y)->bounds[i]) return (*x)->bounds[i] < (*y)->bounds[i] ? -1 : 1;
    return 0;
}

/* Sorts non-empty chunks to the front and drops repetitions (several ranks may
 * list the same chunk). Returns the number kept. */
static uint32_t sort_chunks(const struct meta_chunk **chunks, uint32_t count)
{
    uint32_t full = 0, kept = 0;
    for (uint32_t i = 0; i < count; i++)
        if (!is_empty(chunks[i])) chunks[full++] = chunks[i];
    if (full) qsort(chunks, full, sizeof *chunks, by_bounds);
    for (uint32_t i = 0; i < full; i++)
        if (!i || by_bounds(&chunks[i], &chunks[i - 1]) != 0) chunks[kept++] = chunks[i];
    return kept;
}

static enum status check_bounds(const struct meta_tensor *t, const struct meta_chunk *c,
                                struct error *err)
{
    const uint64_t *size = sizes_of(c);
    for (uint32_t d = 0; d < t->num_dims; d++)
        if (c->bounds[d] > t->shape[d] || size[d] > t->shape[d] - c->bounds[d])
            return fail(err, ERR_CORRUPT,
                        "%" PRIu64 " elements along dimension %" PRIu32 ", which has %" PRIu64,
                        size[d], d, t->shape[d]);
    return OK;
}

static enum status check_tiling(const struct open *o, uint32_t name, const struct meta_tensor *t,
                                uint32_t num_chunks, struct error *err)
{
    uint64_t numel, covered = 0, whole, sum = 0, seed = o->meta.seed;
    if (!shape_numel(t->shape, t->num_dims, &numel) || numel > INT64_MAX)
        return fail(err, ERR_CORRUPT, "%s: %s: too many elements", o->folder,
                    interned_name(o, name));
    whole = measure_box(seed, NULL, t->shape, t->num_dims);
    for (uint32_t i = 0; i < num_chunks; i++) {
        const struct meta_chunk *c = t->chunks[i];
        TRY(in_chunk(o, name, c, check_bounds(t, c, err), err));
        uint64_t volume = 1, m = measure_box(seed, c->bounds, sizes_of(c), t->num_dims);
        for (uint32_t d = 0; d < t->num_dims; d++)
            volume *= sizes_of(c)[d];
        covered = covered > UINT64_MAX - volume ? UINT64_MAX : covered + volume;
        sum = sum + m >= P ? sum + m - P : sum + m;
    }
    if (covered != numel)
        return fail(err, ERR_CORRUPT,
                    "%s: %s: its chunks cover %" PRIu64 " of %" PRIu64 " elements", o->folder,
                    interned_name(o, name), covered, numel);
    if (numel && sum != whole)
        return fail(err, ERR_CORRUPT, "%s: %s: its chunks overlap and leave gaps", o->folder,
                    interned_name(o, name));
    return OK;
}

/* ---- files ---- */

static enum status fail_missing(const struct open *o, uint32_t path, struct error *err)
{
    size_t count = 0, first = 0;
    for (size_t i = o->meta.num_items; i-- > 0;)
        if (o->meta.items[i].place->path == path) {
            count++;
            first = i;
        }
    return fail(err, ERR_IO, "%s: missing; it should hold %zu items, the first is %s",
                o->paths[path], count, interned_name(o, o->meta.items[first].index->name));
}

/* Stamps the file of a place, once, and checks that it holds the place. */
static enum status check_place(struct open *o, const struct meta_place *p, uint32_t name,
                               struct error *err)
{
    struct file_stamp *stamp = &o->stamps[p->path];
    const char *path = o->paths[p->path], *relative = o->meta.paths.texts[p->path];
    if (p->transform)
        return fail(err, ERR_UNSUPPORTED, "%s: %s: its transform %s is not supported", o->folder,
                    interned_name(o, name), p->transform);
    if (stamp->size_bytes == UINT64_MAX) {
        if (!path_is_safe(relative))
            return fail(err, ERR_CORRUPT, "%s: %s: its file %s is outside the folder", o->folder,
                        interned_name(o, name), relative);
        if (!path_is_file(path)) return fail_missing(o, p->path, err);
        TRY(file_stamp(path, stamp, err));
    }
    if (p->offset <= stamp->size_bytes && p->length <= stamp->size_bytes - p->offset) return OK;
    return fail(err, ERR_CORRUPT,
                "%s: %s: bytes %" PRIu64 " to %" PRIu64 " are beyond the file's %" PRIu64, path,
                interned_name(o, name), p->offset, p->offset + p->length, stamp->size_bytes);
}

static void init_paths(struct open *o)
{
    size_t n = o->meta.paths.count;
    o->paths = arena_array(&o->arena, n, sizeof *o->paths);
    o->stamps = arena_array(&o->arena, n, sizeof *o->stamps);
    for (size_t i = 0; i < n; i++) {
        o->paths[i] = path_join(&o->arena, o->folder, o->meta.paths.texts[i]);
        o->stamps[i].size_bytes = UINT64_MAX;
    }
}

/* ---- list of items ---- */

static enum status plan_tensor(struct open *o, const struct meta_entry *e, struct error *err)
{
    const struct meta_tensor *t = e->tensor;
    uint32_t num_chunks = sort_chunks(t->chunks, t->num_chunks);
    if (t->properties->unknown)
        return fail(err, ERR_UNSUPPORTED, "%s: %s: its dtype torch.%s is not supported", o->folder,
                    interned_name(o, e->name), t->properties->unknown);
    TRY(check_tiling(o, e->name, t, num_chunks, err));
    o->tensors[o->num_tensors] = (struct open_tensor){e, o->num_items, num_chunks};
    for (uint32_t i = 0; i < num_chunks; i++) {
        const struct meta_chunk *c = t->chunks[i];
        const struct meta_place *p = dcp_metadata_find(&o->meta, e->name, c->bounds, c->num_dims);
        if (!p) return in_chunk(o, e->name, c, fail(err, ERR_CORRUPT, "no storage entry"), err);
        TRY(check_place(o, p, e->name, err));
        o->items[o->num_items++] = (struct item){.chunk = c,
                                                 .place = p,
                                                 .tensor = (uint32_t)o->num_tensors,
                                                 .dtype = t->properties->dtype,
                                                 .data_offset = p->offset};
    }
    o->num_tensors++;
    return OK;
}

static enum status plan_tensors(struct open *o, struct error *err)
{
    size_t num_chunks = 0;
    for (size_t i = 0; i < o->meta.num_entries; i++)
        if (o->meta.entries[i].tensor) num_chunks += o->meta.entries[i].tensor->num_chunks;
    o->tensors = arena_array(&o->arena, o->meta.num_entries, sizeof *o->tensors);
    o->items = arena_array(&o->arena, num_chunks, sizeof *o->items);
    for (size_t i = 0; i < o->meta.num_entries; i++)
        if (o->meta.entries[i].tensor) TRY(plan_tensor(o, &o->meta.entries[i], err));
    return OK;
}

/* ---- reading items ---- */

enum { BATCH = 256 };

static int by_path_and_offset(const void *a, const void *b)
{
    const struct meta_place *x = (*(struct item *const *)a)->place,
                            *y = (*(struct item *const *)b)->place;
    if (x->path != y->path) return x->path < y->path ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static void make_batches(struct open *o)
{
    size_t n = o->num_items;
    o->by_place = arena_array(&o->arena, n, sizeof *o->by_place);
    o->batches = arena_array(&o->arena, n / BATCH + o->meta.paths.count + 1, sizeof *o->batches);
    for (size_t i = 0; i < n; i++)
        o->by_place[i] = &o->items[i];
    if (n) qsort(o->by_place, n, sizeof *o->by_place, by_path_and_offset);
    for (size_t i = 0; i < n; i++) {
        struct batch *b = o->num_batches ? &o->batches[o->num_batches - 1] : NULL;
        if (!b || b->count == BATCH ||
            o->by_place[b->first]->place->path != o->by_place[i]->place->path) {
            b = &o->batches[o->num_batches++];
            b->first = i;
        }
        b->count++;
    }
}

static enum status fail_shape(const struct value_tensor *v, const struct meta_chunk *c,
                              struct error *err)
{
    struct strbuf said = {0}, held = {0};
    add_dims(&said, sizes_of(c), c->num_dims);
    add_dims(&held, v->shape, v->num_dims);
    enum status st =
        fail(err, ERR_CORRUPT, "metadata says %s, the file holds %s", said.data, held.data);
    strbuf_release(&said);
    strbuf_release(&held);
    return st;
}

static enum status take_tensor(struct item *item, const struct torch_file *t, struct arena *a,
                               struct error *err)
{
    if (t->root->kind != VALUE_TENSOR)
        return fail(err, ERR_CORRUPT, "the file holds no tensor at this place");
    const struct value_tensor *v = t->root->tensor;
    const struct meta_chunk *c = item->chunk;
    if (v->num_dims != c->num_dims ||
        (c->num_dims && memcmp(v->shape, sizes_of(c), c->num_dims * sizeof *v->shape) != 0))
        return fail_shape(v, c, err);
    if (dtype_infos[v->dtype].bits != dtype_infos[item->dtype].bits)
        return fail(err, ERR_CORRUPT, "metadata says %s, the file holds %s",
                    dtype_infos[item->dtype].name, dtype_infos[v->dtype].name);
    if (t->num_storages && t->storages[0].coding)
        return fail(err, ERR_UNSUPPORTED, "its archive is deflated");
    struct torch_place place = torch_place_of(t, v);
    item->dtype = v->dtype;
    item->byte_swapped = t->byte_swapped;
    item->data_offset = item->place->offset + place.offset_bytes;
    if (place.stride) item->stride = arena_copy(a, place.stride, v->num_dims * sizeof *v->stride);
    return OK;
}

static enum status read_item(const struct open *o, struct item *item, const struct bytes *file,
                             struct arena *a, struct error *err)
{
    struct torch_file t;
    const struct meta_place *p = item->place;
    const struct bytes archive = bytes_range(file, p->offset, p->length);
    enum status st = torch_parse(&t, NULL, &archive, err);
    if (!st) {
        st = take_tensor(item, &t, a, err);
        torch_close(&t);
    }
    if (st) st = fail_in(err, "%s at %" PRIu64, o->meta.paths.texts[p->path], p->offset);
    return in_chunk(o, o->tensors[item->tensor].entry->name, item->chunk, st, err);
}

static enum status read_batch(void *context, size_t index, unsigned worker, struct error *err)
{
    struct open *o = context;
    const struct batch *b = &o->batches[index];
    struct item **items = o->by_place + b->first;
    uint32_t path = items[0]->place->path;
    struct file_stamp stamp;
    struct bytes file;
    TRY(bytes_open(&file, o->paths[path], &stamp, err));
    enum status st = OK;
    if (!file_stamp_equal(&stamp, &o->stamps[path]))
        st = fail(err, ERR_IO, "%s: changed while it was read", o->paths[path]);
    for (size_t i = 0; i < b->count && !st; i++)
        st = read_item(o, items[i], &file, &o->worker_arenas[worker], err);
    bytes_release(&file);
    return st;
}

static enum status read_all_items(struct open *o, struct error *err)
{
    make_batches(o);
    o->num_workers = min_u64(threads_available(), o->num_batches);
    if (!o->num_workers) return OK;
    o->worker_arenas = arena_array(&o->arena, o->num_workers, sizeof *o->worker_arenas);
    return threads_run((unsigned)o->num_workers, o->num_batches, read_batch, o, err);
}

/* ---- into the stored ---- */

struct adder {
    const struct open *o;
    struct stored *s;
    uint32_t *files; /* of paths; UINT32_MAX: not added yet */
    bool warned;
};

static uint32_t file_of(struct adder *a, uint32_t path)
{
    if (a->files[path] == UINT32_MAX)
        a->files[path] = stored_add_file(a->s, a->o->paths[path], &a->o->stamps[path]);
    return a->files[path];
}

static const uint64_t *copy_dims(struct adder *a, const uint64_t *dims, uint32_t num_dims)
{
    return dims ? arena_copy(&a->s->arena, dims, num_dims * sizeof *dims) : NULL;
}

static void add_chunk_piece(struct adder *a, struct stored_tensor *t, const struct item *item)
{
    uint32_t n = item->chunk->num_dims;
    bool whole = memcmp(sizes_of(item->chunk), t->shape, n * sizeof *t->shape) == 0;
    t->pieces[t->num_pieces++] = (struct stored_piece){
        .file = file_of(a, item->place->path),
        .byte_swapped = item->byte_swapped,
        .offset_bytes = item->data_offset,
        .start = whole ? NULL : copy_dims(a, item->chunk->bounds, n),
        .extent = whole ? NULL : copy_dims(a, sizes_of(item->chunk), n),
        .stride = copy_dims(a, item->stride, n),
    };
}

/* The items' dtype, which may differ from .metadata's. */
static enum status items_dtype(struct adder *a, const struct open_tensor *t, enum dtype *dtype,
                               struct error *err)
{
    const struct item *items = a->o->items + t->first_item;
    const char *name = interned_name(a->o, t->entry->name);
    enum dtype said = t->entry->tensor->properties->dtype;
    *dtype = t->num_items ? items[0].dtype : said;
    for (size_t i = 1; i < t->num_items; i++)
        if (items[i].dtype != *dtype)
            return fail(err, ERR_CORRUPT, "%s: %s: some of its chunks are %s, some %s",
                        a->o->folder, name, dtype_infos[*dtype].name,
                        dtype_infos[items[i].dtype].name);
    if (*dtype != said && !a->warned) {
        stored_warn(a->s, "%s: %s is %s, metadata says %s (other tensors may differ, too)",
                    a->o->folder, name, dtype_infos[*dtype].name, dtype_infos[said].name);
        a->warned = true;
    }
    return OK;
}

static enum status add_dcp_tensor(struct adder *a, const struct open_tensor *t, struct error *err)
{
    enum dtype dtype;
    struct stored_tensor *out;
    const struct meta_entry *e = t->entry;
    const char *name = interned_name(a->o, e->name);
    TRY(items_dtype(a, t, &dtype, err));
    enum status st = stored_add_tensor(a->s, name, strlen(name), dtype, e->tensor->num_dims,
                                       e->tensor->shape, &out, err);
    if (st) return fail_in(err, "%s", a->o->folder);
    if (e->nested_path) out->nested_path = arena_copy_text(&a->s->arena, e->nested_path);
    out->pieces = arena_array(&a->s->arena, t->num_items, sizeof *out->pieces);
    for (size_t i = 0; i < t->num_items; i++)
        add_chunk_piece(a, out, &a->o->items[t->first_item + i]);
    return OK;
}

static enum status add_dcp_object(struct adder *a, struct open *o, const struct meta_entry *e,
                                  struct error *err)
{
    const char *name = interned_name(o, e->name);
    const struct meta_place *p = dcp_metadata_find(&o->meta, e->name, NULL, 0);
    if (!p) return fail(err, ERR_CORRUPT, "%s: %s: no storage entry", o->folder, name);
    TRY(check_place(o, p, e->name, err));
    struct stored_object *out =
        stored_add_object(a->s, name, file_of(a, p->path), p->offset, p->length);
    if (e->nested_path) out->nested_path = arena_copy_text(&a->s->arena, e->nested_path);
    return OK;
}

static enum status add_all(struct open *o, struct stored *s, struct error *err)
{
    struct adder a = {.o = o, .s = s};
    a.files = arena_array(&o->arena, o->meta.paths.count, sizeof *a.files);
    for (size_t i = 0; i < o->meta.paths.count; i++)
        a.files[i] = UINT32_MAX;
    for (size_t i = 0; i < o->num_tensors; i++)
        TRY(add_dcp_tensor(&a, &o->tensors[i], err));
    for (size_t i = 0; i < o->meta.num_entries; i++)
        if (!o->meta.entries[i].tensor) TRY(add_dcp_object(&a, o, &o->meta.entries[i], err));
    return OK;
}

/* ---- the folder ---- */

/* Files of single ranks, __0.metadata and so on. */
static enum status read_rank_files(struct open *o, size_t *count, struct error *err)
{
    struct name_list names;
    *count = 0;
    TRY(folder_list(o->folder, &o->arena, &names, err));
    for (size_t i = 0; i < names.count; i++) {
        if (fnmatch("__[0-9]*.metadata", names.names[i], 0)) continue;
        ++*count;
        TRY(dcp_metadata_add(&o->meta, path_join(&o->arena, o->folder, names.names[i]), err));
    }
    return OK;
}

static enum status read_metadata(struct open *o, struct error *err)
{
    const char *path = path_join(&o->arena, o->folder, ".metadata");
    size_t count = 0;
    if (path_is_file(path)) return dcp_metadata_add(&o->meta, path, err);
    const bool begun = path_exists(path_join(&o->arena, o->folder, ".metadata.tmp"));
    if (!begun && path_is_folder(o->folder)) TRY(read_rank_files(o, &count, err));
    if (count) return OK;
    return fail(err, ERR_IO,
                "%s: no .metadata: not a distributed checkpoint, or its save did not finish%s",
                o->folder, begun ? " (.metadata.tmp exists)" : "");
}

enum status dcp_open(struct stored *s, const char *folder, bool read_items, struct error *err)
{
    struct open o = {.folder = folder};
    arena_init(&o.arena);
    dcp_metadata_init(&o.meta);
    enum status st = read_metadata(&o, err);
    if (!st) {
        init_paths(&o);
        st = plan_tensors(&o, err);
        if (!st && read_items) st = read_all_items(&o, err);
        if (!st) st = add_all(&o, s, err);
    }
    dcp_metadata_release(&o.meta);
    for (size_t i = 0; i < o.num_workers; i++)
        arena_release(&o.worker_arenas[i]);
    arena_release(&o.arena);
    return st;
}

enum status dcp_read_object(struct stored *s, const struct stored_object *object, struct arena *a,
                            struct value **out, struct error *err)
{
    struct torch_file t;
    struct bytes file;
    const struct stored_file *f = &s->files[object->file];
    TRY(bytes_open(&file, f->path, NULL, err));
    file.size_bytes = f->size_bytes; /* size at the check: a shorter file fails to read */
    const struct bytes archive = bytes_range(&file, object->offset_bytes, object->size_bytes);
    enum status st = torch_parse(&t, a, &archive, err);
    bytes_release(&file);
    if (st) return fail_in(err, "%s: %s", f->path, object->name);
    *out = t.root;
    torch_close(&t);
    return OK;
}
