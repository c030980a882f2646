#include "convert/source_kind.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/panel.h"
#include "common/checked.h"
#include "common/memory.h"

bool globs_match(const struct arg_list *globs, const char *name)
{
    for (size_t i = 0; globs && i < globs->count; i++)
        if (fnmatch(globs->items[i], name, 0) == 0) return true;
    return false;
}

enum status source_choose_map(const struct source_options *o, const struct model_maps *maps,
                              const cJSON *hf_config, const struct model_map **map,
                              struct error *err)
{
    if (!o->family) return model_map_of_config(maps, hf_config, map, err);
    *map = model_map_of_family(maps, o->family);
    if (*map) return OK;
    return fail(err, ERR_USAGE, "--model %s: unknown family; `ferry models` lists the families",
                o->family);
}

enum status source_check_vocab(const struct source_options *o, uint64_t vocab_size,
                               const char *file, struct error *err)
{
    if (!o->true_vocab_size || !vocab_size || o->true_vocab_size == vocab_size) return OK;
    return fail(err, ERR_USAGE,
                "--true-vocab-size %" PRIu64 ": the vocabulary of %s has %" PRIu64 " entries",
                o->true_vocab_size, file, vocab_size);
}

/* ---- two tensors ---- */

enum { COMPARE_ELEMENTS = 1 << 16, MAX_ELEMENT_BYTES = 8 };

/* buffers: four of COMPARE_ELEMENTS. */
static enum status compare_elements(const struct catalog *c, const struct tensor *a,
                                    const struct tensor *b, char *buffers, bool *same, uint64_t *at,
                                    struct error *err)
{
    const size_t room = (size_t)COMPARE_ELEMENTS * MAX_ELEMENT_BYTES, bytes = dtype_bytes(a->dtype);
    char *x = buffers, *y = buffers + room;
    struct stored_reader *reader = stored_reader_create(&c->stored, 2);
    struct panel_reader r = {.reader = reader,
                             .buffer_bytes = room,
                             .temp = buffers + 2 * room,
                             .cast = buffers + 3 * room};
    enum status st = OK;
    for (*at = 0; *same && *at < a->numel && !st;) {
        uint64_t n = min_u64(COMPARE_ELEMENTS, a->numel - *at), i = 0;
        st = panel_read(&r, a, *at, n, x, err);
        if (!st) st = panel_read(&r, b, *at, n, y, err);
        while (!st && i < n && memcmp(x + i * bytes, y + i * bytes, bytes) == 0)
            i++;
        *same = i == n;
        *at += i;
    }
    stored_reader_free(reader);
    return st;
}

static enum status compare_tensors(const struct catalog *c, const struct tensor *x,
                                   const struct tensor *y, bool *same, uint64_t *at,
                                   struct error *err)
{
    char *buffers = must_calloc(4 * COMPARE_ELEMENTS, MAX_ELEMENT_BYTES);
    enum status st = compare_elements(c, x, y, buffers, same, at, err);
    free(buffers);
    return st;
}

static bool are_alike(const struct tensor *x, const struct tensor *y)
{
    return x->dtype == y->dtype && x->num_dims == y->num_dims && dtype_bytes(x->dtype) &&
           memcmp(x->shape, y->shape, x->num_dims * sizeof *x->shape) == 0;
}

enum status source_same_stored(const struct checkpoint *c, const struct stored_tensor *a,
                               const struct stored_tensor *b, bool *same, uint64_t *at,
                               struct error *err)
{
    struct arena arena;
    struct tensor *x, *y;
    *at = 0;
    arena_init(&arena);
    enum status st = catalog_wrap_stored(&c->catalog, &arena, a, &x, err);
    if (!st) st = catalog_wrap_stored(&c->catalog, &arena, b, &y, err);
    if (!st && (*same = are_alike(x, y))) st = compare_tensors(&c->catalog, x, y, same, at, err);
    arena_release(&arena);
    return st;
}

/* Makes a readable tensor of a native one, outside the catalog. */
static enum status wrap_native(struct checkpoint *c, const struct native_tensor *native,
                               struct tensor *out, struct error *err)
{
    const struct pair whole = pair_whole(0, 0, native->numel);
    *out = (struct tensor){.name = native->name,
                           .dtype = native->dtype,
                           .num_dims = native->num_dims,
                           .shape = native->shape,
                           .numel = native->numel};
    TRY(catalog_add_part(&c->catalog, out, native, &whole, err));
    return tensor_check(out, err);
}

enum status source_same_native(struct checkpoint *c, const struct native_tensor *a,
                               const struct native_tensor *b, bool *same, uint64_t *at,
                               struct error *err)
{
    struct tensor x, y;
    *at = 0;
    TRY(wrap_native(c, a, &x, err));
    TRY(wrap_native(c, b, &y, err));
    *same = x.dtype == y.dtype && x.numel == y.numel && dtype_bytes(x.dtype);
    return *same ? compare_tensors(&c->catalog, &x, &y, same, at, err) : OK;
}

/* ---- unknown fields ---- */

enum { MAX_UNKNOWN = 10000 };

void source_list_unknown(void *context, const char *name, const char *value)
{
    struct unknown_of *x = context;
    struct unknown_fields *u = &x->c->unknown;
    if (x->count++ >= MAX_UNKNOWN) return;
    if (strcmp(x->file, "run_config.yaml") == 0) {
        const struct unknown_field *same = unknown_fields_find(u, name);
        if (same && strcmp(same->value, value) == 0) return;
    }
    unknown_fields_add(u, &x->c->arena, x->file, name, value,
                       globs_match(x->o->allow_config, name));
}

static unsigned settle_clash(void *context, const struct spelling_clash *clash)
{
    struct unknown_of *x = context;
    bool allowed[2];
    for (unsigned i = 0; i < 2; i++)
        allowed[i] = globs_match(x->o->allow_config, clash->names[i]);
    const unsigned out = allowed[1] && !allowed[0], other = 1 - out;
    const struct unknown_field field = {.file = x->file,
                                        .name = clash->names[out],
                                        .value = clash->values[out],
                                        .allowed = allowed[0] != allowed[1],
                                        .other = clash->names[other],
                                        .other_value = clash->values[other]};
    x->count++;
    unknown_fields_add_clash(&x->c->unknown, &x->c->arena, &field);
    return out;
}

void source_settle_config(struct unknown_of *x, const struct model_map *map, cJSON *hf_config)
{
    model_config_settle(map, hf_config, &x->c->arena, settle_clash, x);
}

enum status source_check_listed(const struct unknown_of *x, struct error *err)
{
    if (x->count <= MAX_UNKNOWN) return OK;
    return fail(err, ERR_CORRUPT, "%s: %s: %zu unknown fields, too many", x->c->path, x->file,
                x->count);
}

const char *source_unused_text(struct arena *a, const char *glob)
{
    return arena_printf(a, "--allow-config %s: matches no unknown field", glob);
}

void source_note_unused(struct checkpoint *c, const struct source_options *o)
{
    for (size_t i = 0; o->allow_config && i < o->allow_config->count; i++)
        if (!unknown_fields_match(&c->unknown, o->allow_config->items[i]))
            checkpoint_note(c, "%s", source_unused_text(&c->arena, o->allow_config->items[i]));
}

/* copied: a file that is copied unchanged, so its fields are no reason to
 * refuse. */
static enum status check_unknown(const struct checkpoint *c, const char *copied, const char *does,
                                 struct error *err)
{
    struct unknown_fields refused = {0};
    struct arena a;
    arena_init(&a);
    for (size_t i = 0; i < c->unknown.count; i++) {
        const struct unknown_field *f = &c->unknown.items[i];
        if (!f->allowed && strcmp(f->file, copied))
            unknown_fields_add(&refused, &a, f->file, f->name, f->value, false);
    }
    enum status st = OK;
    if (refused.count)
        st = fail(err, ERR_UNSUPPORTED,
                  "%s: unknown fields may change what the model computes (--allow-config FIELD %s "
                  "without them): %s",
                  c->path, does, unknown_fields_text(&refused, true, &a));
    arena_release(&a);
    return st;
}

enum status source_check_spellings(const struct checkpoint *c, const char *does, struct error *err)
{
    for (size_t i = 0; i < c->unknown.count; i++) {
        const struct unknown_field *f = &c->unknown.items[i];
        if (!f->other || f->allowed) continue;
        return fail(err, ERR_UNSUPPORTED,
                    "%s: %s: %s is %.80s, but %s, another spelling of it, is %.80s: "
                    "--allow-config %s %s without the first, --allow-config %s without the second",
                    c->path, f->file, f->name, f->value, f->other, f->other_value, f->name, does,
                    f->other);
    }
    return OK;
}

enum status source_check_computes(const struct checkpoint *c, struct error *err)
{
    TRY(source_check_spellings(c, "computes", err));
    TRY(check_unknown(c, "", "computes", err));
    if (!model_config_check(&c->config, err)) return OK;
    return fail_in(err, "%s: its config is incomplete; --hf-config DIR completes it", c->path);
}

enum status source_check_exports(const struct checkpoint *c, struct error *err)
{
    return check_unknown(c, "config.json", "exports", err);
}
