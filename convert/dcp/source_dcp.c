/* source_dcp.c - reads FSDP's DCP folders: one folder of model and optimizer
 * under the user's keys, or accelerate's sibling folders pytorch_model_fsdp_0
 * and optimizer_0 (accelerate/utils/fsdp_utils.py). */
#include <fnmatch.h>
#include <string.h>

#include "common/file.h"
#include "convert/dcp/dcp_folder.h"
#include "convert/dcp/dcp_model.h"
#include "convert/format.h"
#include "convert/hf/hf_model.h"
#include "convert/megatron/find_iteration.h"

static const char accelerate_model[] = "pytorch_model_fsdp_0",
                  accelerate_optimizer[] = "optimizer_0";

static bool matches_dcp(const char *path, const struct source_options *o)
{
    struct arena a;
    (void)o;
    if (!path_is_folder(path)) return false;
    arena_init(&a);
    const bool matches = !iteration_is_below(path) &&
                         !path_exists(path_join(&a, path, "common.pt")) &&
                         ((dcp_folder_matches(path) && !dcp_folder_is_titan(path) &&
                           !dcp_folder_is_megatron(path)) ||
                          dcp_folder_matches(path_join(&a, path, accelerate_model)));
    arena_release(&a);
    return matches;
}

/* The sibling of `folder` if it is one of accelerate's two; NULL: none. */
static const char *folder_beside(struct arena *a, const char *folder, const char *one,
                                 const char *other)
{
    if (strcmp(path_base(a, folder), one)) return NULL;
    const char *path = path_join(a, path_parent(a, folder), other);
    return dcp_folder_matches(path) ? path : NULL;
}

static enum status open_folders(struct checkpoint *c, struct error *err)
{
    struct arena *a = &c->arena;
    const char *inner = path_join(a, c->path, accelerate_model), *other = NULL;
    if (!dcp_folder_matches(c->path) && dcp_folder_matches(inner)) c->folder = inner;
    if (!other) other = folder_beside(a, c->folder, accelerate_model, accelerate_optimizer);
    if (!other) other = folder_beside(a, c->folder, accelerate_optimizer, accelerate_model);
    TRY(dcp_folder_open(&c->catalog.stored, c->folder, err));
    return other ? dcp_folder_open(&c->catalog.stored, other, err) : OK;
}

/* Lightning's trainer saves the rest of its run beside the tensors. */
static void note_run(struct checkpoint *c)
{
    if (path_exists(path_join(&c->arena, c->folder, "meta.pt")))
        checkpoint_note(c, "meta.pt is not read: Lightning's epoch, step, loops, callbacks, "
                           "schedules and hyperparameters");
}

static enum status open_dcp(struct checkpoint *c, const struct source_options *o,
                            const struct model_maps *maps, struct error *err)
{
    struct naming_import import;
    if (o->has_ckpt_step)
        return fail(err, ERR_USAGE, "%s: --ckpt-step: an FSDP folder has no iterations", c->path);
    c->folder = c->path;
    TRY(open_folders(c, err));
    const char *const folders[] = {c->folder, path_parent(&c->arena, c->folder), NULL};
    TRY(hf_model_describe(c, o, maps, folders, false, &import, err));
    TRY(dcp_model_take(c, NULL, err));
    note_run(c);
    return hf_model_import(&import, err);
}

const struct source_kind source_dcp = {matches_dcp, open_dcp};
