#include "convert/source.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/panel.h"
#include "common/checked.h"
#include "common/json.h"
#include "common/memory.h"
#include "convert/foreign.h"
#include "convert/format.h"
#include "convert/map/params.h"
#include "formats/hf_folder.h"
#include "formats/hub_cache.h"

void source_find_in_hub_cache(struct checkpoint *c)
{
    struct hub_name name;
    const char *path = c->path;
    if (path_exists(path) || !hub_name_parse(&c->arena, path, &name)) return;
    const char *found = hub_cache_find(&c->arena, &name);
    if (!found) return;
    c->path = found;
    checkpoint_note(c, "%s: snapshot %.12s of the hub cache, %s", path, path_base(&c->arena, found),
                    found);
}

/* The name of a model that is not here: the command that downloads it. */
static enum status not_downloaded(struct arena *a, const char *path, const struct hub_name *name,
                                  struct error *err)
{
    const char *model = hub_cache_model(a, name);
    const char *revision =
        strcmp(name->revision, "main") ? arena_printf(a, " --revision %s", name->revision) : "";
    if (model)
        return fail(err, ERR_IO,
                    "%s: the hub cache has this model, but no snapshot of its revision %s (%s); "
                    "download it first: hf download %s%s",
                    path, name->revision, model, name->model, revision);
    return fail(err, ERR_IO,
                "%s: no such folder here, nor in the hub cache; if it is a model of the Hugging "
                "Face hub, download it first: hf download %s%s",
                path, name->model, revision);
}

static enum status not_there(const char *path, struct error *err)
{
    struct hub_name name;
    struct arena a;
    arena_init(&a);
    enum status st = hub_name_parse(&a, path, &name)
                         ? not_downloaded(&a, path, &name, err)
                         : fail(err, ERR_IO, "%s: no such file or folder", path);
    arena_release(&a);
    return st;
}

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
    return fail(err, ERR_USAGE, "--model %s: there is no such family; `ferry models` lists them",
                o->family);
}

enum status source_check_vocab(const struct source_options *o, uint64_t vocab_size,
                               const char *file, struct error *err)
{
    if (!o->true_vocab_size || !vocab_size || o->true_vocab_size == vocab_size) return OK;
    return fail(err, ERR_USAGE,
                "--true-vocab-size %" PRIu64 ": by %s the vocabulary has %" PRIu64 " entries",
                o->true_vocab_size, file, vocab_size);
}

/* ---- two tensors ---- */

enum { COMPARE_ELEMENTS = 1 << 16, MOST_ELEMENT_BYTES = 8 };

/* buffers: four of COMPARE_ELEMENTS. */
static enum status compare_elements(const struct catalog *c, const struct tensor *a,
                                    const struct tensor *b, char *buffers, bool *same, uint64_t *at,
                                    struct error *err)
{
    const size_t room = (size_t)COMPARE_ELEMENTS * MOST_ELEMENT_BYTES,
                 bytes = dtype_bytes(a->dtype);
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

static enum status compare_stored(const struct catalog *c, const struct stored_tensor *a,
                                  const struct stored_tensor *b, struct arena *arena, bool *same,
                                  uint64_t *at, struct error *err)
{
    struct tensor *x, *y;
    TRY(catalog_wrap_stored(c, arena, a, &x, err));
    TRY(catalog_wrap_stored(c, arena, b, &y, err));
    char *buffers = must_calloc(4 * COMPARE_ELEMENTS, MOST_ELEMENT_BYTES);
    enum status st = compare_elements(c, x, y, buffers, same, at, err);
    free(buffers);
    return st;
}

enum status source_same_stored(const struct checkpoint *c, const struct stored_tensor *a,
                               const struct stored_tensor *b, bool *same, uint64_t *at,
                               struct error *err)
{
    struct arena arena;
    *at = 0;
    *same = a->dtype == b->dtype && a->num_dims == b->num_dims && dtype_bytes(a->dtype) &&
            memcmp(a->shape, b->shape, a->num_dims * sizeof *a->shape) == 0;
    if (!*same) return OK;
    arena_init(&arena);
    enum status st = compare_stored(&c->catalog, a, b, &arena, same, at, err);
    arena_release(&arena);
    return st;
}

enum status source_check_beyond(const struct checkpoint *c, struct error *err)
{
    if (!c->beyond) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "%s: its %s say %s, which no family with a model map here computes", c->path,
                value_get(c->training.common, "args") ? "args" : "run_config.yaml", c->beyond);
}

/* What no reader here is for. */
static enum status refuse_unknown(const char *path, struct error *err)
{
    const struct foreign *f = foreign_find(path);
    struct name_list names = {0};
    struct arena a;
    if (f) return foreign_refuse(f, path, err);
    arena_init(&a);
    enum status st = path_is_folder(path) ? folder_list(path, &a, &names, err) : OK;
    bool is_empty = path_is_folder(path) && names.count == 0;
    arena_release(&a);
    if (st) return st;
    if (is_empty) return fail(err, ERR_UNSUPPORTED, "%s: an empty folder", path);
    return fail(err, ERR_UNSUPPORTED,
                "%s: not a known checkpoint: neither a Hugging Face folder (config.json and "
                "weights) nor a Megatron checkpoint (a tracker file, metadata.json or mp_rank_*)",
                path);
}

/* What other programs left in a folder whose weights were read. */
static void note_beside(struct checkpoint *c)
{
    const struct foreign *f = foreign_find(c->folder);
    if (f && f->beside) checkpoint_note(c, "%s: %s", c->path, f->beside);
}

enum status source_open(struct checkpoint *c, const char *path, const struct source_options *o,
                        const struct model_maps *maps, struct error *err)
{
    checkpoint_init(c, path);
    params_use(c, maps, NULL); /* for names; again when the config is known */
    source_find_in_hub_cache(c);
    if (!path_exists(c->path)) return not_there(path, err);
    const struct format *format = format_of_path(c->path);
    if (!format) return refuse_unknown(c->path, err);
    struct source_options own = *o;
    if (o->hf_config) own.hf_config = hf_folder_resolve(&c->arena, o->hf_config);
    if (o->hf_config && !path_exists(own.hf_config)) return not_there(o->hf_config, err);
    TRY(format->source->open(c, &own, maps, err));
    for (size_t k = 0; k < c->catalog.stored.num_warnings; k++)
        checkpoint_note(c, "%s", c->catalog.stored.warnings[k]);
    if (c->format->has & FORMAT_CONFIG_JSON) note_beside(c);
    return OK;
}
