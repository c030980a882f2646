/* source_hf.c - opens a Hugging Face folder: config.json selects the model map;
 * each stored tensor is a native tensor, or a state of the optimizer. */
#include "convert/foreign.h"
#include "convert/format.h"
#include "convert/hf/hf_model.h"
#include "convert/hf/states_hf.h"
#include "formats/hf_folder.h"

/* Many folders have a config.json. Without weights, a folder with signs of
 * another program is not recognised. */
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
    struct naming_import import;
    c->folder = hf_folder_resolve(&c->arena, c->path);
    const char *const folders[] = {c->folder, NULL};
    if (o->has_ckpt_step)
        return fail(err, ERR_USAGE,
                    "%s: --ckpt-step does not apply: a Hugging Face folder has no iterations",
                    c->path);
    TRY(hf_folder_open(&c->catalog.stored, c->folder, NULL, err));
    for (size_t i = 0; i < c->catalog.stored.num_tensors; i++)
        TRY(catalog_native_stored(&c->catalog, c->catalog.stored.tensors[i].name, NULL,
                                  &c->catalog.stored.tensors[i], err));
    TRY(hf_model_describe(c, o, maps, folders, true, &import, err));
    TRY(hf_states_open(c, err));
    TRY(hf_model_import(&import, err));
    return c->training.optimizer.inferred ? hf_states_prove(c, err) : OK;
}

const struct source_kind source_hf = {matches_hf, open_hf};
