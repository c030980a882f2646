#include "convert/source.h"

#include <string.h>

#include "common/count.h"
#include "common/text.h"
#include "convert/foreign.h"
#include "convert/format.h"
#include "convert/map/params.h"
#include "convert/states.h"
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

/* Fails with the command that downloads the model of this name. */
static enum status not_downloaded(struct arena *a, const char *path, const struct hub_name *name,
                                  struct error *err)
{
    const char *model = hub_cache_model(a, name);
    const char *revision =
        strcmp(name->revision, "main") ? arena_printf(a, " --revision %s", name->revision) : "";
    if (model)
        return fail(err, ERR_IO,
                    "%s: the hub cache has this model, but not its revision %s (%s); download it "
                    "first: hf download %s%s",
                    path, name->revision, model, name->model, revision);
    return fail(err, ERR_IO,
                "%s: no such folder, here or in the hub cache; if it is a model of the Hugging "
                "Face hub, download it first: hf download %s%s",
                path, name->model, revision);
}

/* Whether a name looks like ORG/MODEL
 * rather than a file, or is cached. */
static bool may_be_model(struct arena *a, const struct hub_name *name)
{
    static const char *const of_files[] = {".safetensors", ".json", ".bin",    ".pt",
                                           ".pth",         ".gguf", ".distcp", ".yaml"};
    for (size_t i = 0; i < COUNT(of_files); i++)
        if (text_ends_with(name->model, of_files[i])) return false;
    return strchr(name->model, '/') || hub_cache_model(a, name);
}

static enum status not_there(const char *path, struct error *err)
{
    if (strstr(path, "://"))
        return fail(err, ERR_IO,
                    "%s: is a URL; copy it to a local folder first (of the Hugging Face hub: hf "
                    "download ORG/NAME)",
                    path);
    if (strncmp(path, "~/", 2) == 0)
        return fail(err, ERR_IO, "%s: the shell has not expanded ~; write $HOME", path);
    struct hub_name name;
    struct arena a;
    arena_init(&a);
    enum status st = hub_name_parse(&a, path, &name) && may_be_model(&a, &name)
                         ? not_downloaded(&a, path, &name, err)
                         : fail(err, ERR_IO, "%s: no such file or folder", path);
    arena_release(&a);
    return st;
}

/* Fails for a path that no format recognises. */
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
    return fail(
        err, ERR_UNSUPPORTED,
        "%s: not a checkpoint of a known format: neither a Hugging Face folder (config.json and "
        "weights) nor a Megatron checkpoint (a tracker file, metadata.json or mp_rank_*)",
        path);
}

/* Notes other programs' files beside weights that were read. An optimizer among
 * them counts as unreadable. */
static void note_beside(struct checkpoint *c)
{
    const struct foreign *f = foreign_find(c->folder);
    struct optimizer_info *o = &c->training.optimizer;
    if (f && f->beside) checkpoint_note(c, "%s: %s", c->path, f->beside);
    if (!f || !f->optimizer || o->present) return;
    o->present = true;
    o->kind = f->optimizer;
    o->size_bytes = foreign_bytes(f, c->folder);
    states_unread(c, "it is of another program");
}

enum status source_open(struct checkpoint *c, const char *path, const struct source_options *o,
                        const struct model_maps *maps, struct error *err)
{
    checkpoint_init(c, path);
    params_use(c, maps, NULL); /* for parameter names; called again when the config is known */
    source_find_in_hub_cache(c);
    if (!path_exists(c->path)) return not_there(path, err);
    const struct format *also, *format = format_of_path(c->path, o, &also);
    if (!format) return refuse_unknown(c->path, err);
    if (also)
        checkpoint_note(c, "%s is read as format %s; it also matches format %s: --from %s", c->path,
                        format->name, also->name, also->name);
    struct source_options native = *o;
    if (o->hf_config) native.hf_config = hf_folder_resolve(&c->arena, o->hf_config);
    if (o->hf_config && !path_exists(native.hf_config)) return not_there(o->hf_config, err);
    c->format = format;
    TRY(format->source->open(c, &native, maps, err));
    for (size_t k = 0; k < c->catalog.stored.num_warnings; k++)
        checkpoint_note(c, "%s", c->catalog.stored.warnings[k]);
    if (format->has & FORMAT_CONFIG_JSON) note_beside(c);
    return OK;
}
