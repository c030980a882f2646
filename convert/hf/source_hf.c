/* source_hf.c - opens a Hugging Face folder: config.json selects the model map; each stored tensor
 * is an own tensor, with a state if it is one of the optimizer's. */
#include <string.h>

#include "common/json.h"
#include "convert/foreign.h"
#include "convert/format.h"
#include "convert/hf/states_hf.h"
#include "convert/hf_config.h"
#include "convert/map/model_fit.h"
#include "convert/map/params.h"
#include "convert/naming.h"
#include "convert/states.h"
#include "formats/hf_folder.h"

struct opening {
    struct checkpoint *c;
    const struct source_options *o;
    const struct model_map *map;
    bool quantised; /* config.json says so */
};

/* Quantised weights are stored under other names, in other shapes and dtypes than a map's. */
static void note_quantised(struct opening *x, const cJSON *config)
{
    const cJSON *q = json_get(config, "quantization_config");
    if (!cJSON_IsObject(q)) q = json_get(config, "quantization"); /* MLX writes this key */
    const char *method = json_as_text(json_get(q, "quant_method"));
    if (!cJSON_IsObject(q) || strcmp(x->c->hf_folder, x->c->folder)) return;
    x->quantised = true;
    checkpoint_note(x->c,
                    "config.json says that the weights are quantised (%s%s%s), which "
                    "is not supported: they are read as they are stored",
                    q->string, method ? ": " : "", method ? method : "");
}

/* ---- a family that no map is of ---- */

static bool find_shape(const void *context, const char *name, unsigned *num_dims,
                       const uint64_t **shape)
{
    const struct stored_tensor *t = stored_find(context, name);
    if (!t) return false;
    *num_dims = t->num_dims;
    *shape = t->shape;
    return true;
}

/* Completes the error for an unknown model_type: names the map that fits the names and shapes of
 * the folder's tensors best. */
static enum status with_nearest_map(const char *folder, const struct model_maps *maps,
                                    const cJSON *config, struct error *err)
{
    struct error none;
    struct arena a;
    struct stored s;
    arena_init(&a);
    stored_init(&s);
    if (!hf_folder_open(&s, folder, NULL, &none)) {
        const struct hf_shapes tensors = {find_shape, &s, s.num_tensors};
        const char *family, *nearest = model_fit_tensors(maps, config, &tensors, &family, &a);
        const char *known = arena_copy_text(&a, err->text);
        if (nearest)
            err->code = fail(err, err->code, "%s; the nearest is %s; --model %s takes it as that",
                             known, nearest, family);
    }
    stored_release(&s);
    arena_release(&a);
    return err->code;
}

/* ---- opening ---- */

static enum status read_config(struct opening *x, const char *folder, const struct model_maps *maps,
                               struct error *err)
{
    cJSON *config;
    if (!x->o->hf_config && !path_exists(path_join(&x->c->arena, folder, "config.json")))
        return fail(err, ERR_UNSUPPORTED,
                    "%s: weights without config.json, which says what model they are of; "
                    "--hf-config DIR can",
                    folder);
    TRY(hf_config_read(folder, &config, err));
    note_quantised(x, config);
    enum status st = source_choose_map(x->o, maps, config, &x->map, err);
    if (st == ERR_UNSUPPORTED) st = with_nearest_map(x->c->folder, maps, config, err);
    if (!st) x->c->family = model_map_family(x->map);
    if (!st) st = model_config_from_hf(x->map, config, &x->c->arena, &x->c->config, err);
    struct unknown_of unknown = {.c = x->c, .o = x->o, .file = "config.json"};
    if (!st) model_config_unknown(x->map, config, source_list_unknown, &unknown);
    if (!st) st = source_check_listed(&unknown, err);
    cJSON_Delete(config);
    if (st) return fail_in(err, "%s", folder);
    x->c->config_origin = CONFIG_OF_JSON;
    return source_check_vocab(x->o, x->c->config.vocab_size,
                              path_join(&x->c->arena, folder, "config.json"), err);
}

/* Many folders have a config.json. Without weights beside it, a folder that another program's files
 * mark is not recognised. */
static bool matches_hf(const char *path, const struct source_options *o)
{
    (void)o;
    struct arena a;
    arena_init(&a);
    const char *folder = hf_folder_resolve(&a, path);
    bool matches =
        hf_folder_matches(folder) && (hf_folder_has_weights(folder) || !foreign_find(folder));
    arena_release(&a);
    return matches;
}

static enum status open_hf(struct checkpoint *c, const struct source_options *o,
                           const struct model_maps *maps, struct error *err)
{
    struct opening x = {.c = c, .o = o};
    c->folder = hf_folder_resolve(&c->arena, c->path);
    c->hf_folder = o->hf_config ? o->hf_config : c->folder;
    if (o->has_ckpt_step)
        return fail(err, ERR_USAGE, "%s: --ckpt-step: a Hugging Face folder has no iterations",
                    c->path);
    TRY(read_config(&x, c->hf_folder, maps, err));
    TRY(hf_folder_open(&c->catalog.stored, c->folder, NULL, err));
    for (size_t i = 0; i < c->catalog.stored.num_tensors; i++)
        TRY(catalog_own_stored(&c->catalog, c->catalog.stored.tensors[i].name, NULL,
                               &c->catalog.stored.tensors[i], err));
    TRY(hf_states_open(c, err));

    struct layout_options one = {0};
    params_use(c, maps, x.map);
    TRY(layout_make(&c->layout, &c->arena, &one, &c->config, err));
    const struct naming_import import = {.c = c, .o = o, .map = x.map, .quantised = x.quantised};
    TRY(c->format->naming->import(&import, err));
    TRY(c->format->naming->import_states(&import, err));
    TRY(states_complete(c, err));
    return catalog_check(&c->catalog, err);
}

const struct source_kind source_hf = {matches_hf, open_hf};
