/* source_dcp.c - reads FSDP's DCP folders:
 *
 * - one of model and optimizer, under the user's keys;
 * - or one of each, told apart by their keys:
 *
 *     pytorch_model_fsdp_0   optimizer_0        accelerate
 *     weights/model          optimizer/optim    NeMo-RL
 *     model                  optim              NeMo Automodel */
#include <fnmatch.h>
#include <string.h>

#include "common/count.h"
#include "common/file.h"
#include "convert/dcp/dcp_folder.h"
#include "convert/dcp/dcp_model.h"
#include "convert/format.h"
#include "convert/hf/hf_model.h"
#include "convert/megatron/find_iteration.h"
#include "convert/states.h"

/* ---- folders of model and optimizer ---- */

/* Whether a key, or the name of an object, is of an optimizer's dict. */
static bool is_of_optimizer(const char *key)
{
    static const char *const parts[] = {"state.*", "*.state.*", "param_groups*", "*.param_groups*",
                                        "exp_avg*"};
    for (size_t i = 0; i < COUNT(parts); i++)
        if (fnmatch(parts[i], key, 0) == 0) return true;
    return false;
}

enum dcp_content { DCP_NOTHING, DCP_MODEL, DCP_OPTIMIZER, DCP_BOTH };

static enum dcp_content content_of(const struct stored *s)
{
    size_t states = 0;
    for (size_t i = 0; i < s->num_tensors; i++)
        states += is_of_optimizer(s->tensors[i].name);
    if (!s->num_tensors) return DCP_NOTHING;
    return !states ? DCP_MODEL : states == s->num_tensors ? DCP_OPTIMIZER : DCP_BOTH;
}

static bool is_named_optimizer(struct arena *a, const char *folder)
{
    return fnmatch("*optim*", path_base(a, folder), 0) == 0;
}

/* Folders found, of one content. */
struct dcp_found {
    const char *first;
    size_t count;
    bool cut; /* there are more folders than are looked at */
};

/* An optimizer that cannot be opened counts by its name: opening it tells why. */
static void look_at(struct arena *a, const char *folder, enum dcp_content wanted,
                    struct dcp_found *found)
{
    if (!dcp_folder_matches(folder) || dcp_folder_is_megatron(folder) ||
        dcp_folder_is_titan(folder))
        return;
    struct stored s;
    struct error why;
    stored_init(&s);
    enum dcp_content content = dcp_folder_open(&s, folder, &why) ? DCP_NOTHING : content_of(&s);
    stored_release(&s);
    if (content == DCP_NOTHING && is_named_optimizer(a, folder)) content = DCP_OPTIMIZER;
    if (content == wanted && !found->count++) found->first = folder;
}

/* The folders in a folder. Of too many, as in a root of checkpoints, none. */
static struct name_list folders_in(struct arena *a, const char *folder, bool *cut)
{
    enum { MOST = 64 };
    struct name_list names, none = {NULL, 0};
    struct error why;
    size_t count = 0;
    if (folder_list(folder, a, &names, &why)) return none;
    for (size_t i = 0; i < names.count; i++)
        if (path_is_folder(path_join(a, folder, names.names[i])))
            names.names[count++] = names.names[i];
    names.count = count;
    *cut |= count > MOST;
    return count > MOST ? none : names;
}

/* Finds folders of this content, one or two levels below. */
static void look_below(struct arena *a, const char *folder, enum dcp_content wanted,
                       struct dcp_found *found)
{
    const struct name_list names = folders_in(a, folder, &found->cut);
    for (size_t i = 0; i < names.count; i++) {
        const char *child = path_join(a, folder, names.names[i]);
        look_at(a, child, wanted, found);
        if (dcp_folder_matches(child)) continue;
        bool cut = false;
        const struct name_list inner = folders_in(a, child, &cut);
        for (size_t k = 0; k < inner.count; k++)
            look_at(a, path_join(a, child, inner.names[k]), wanted, found);
    }
}

/* The only folder of this content below; NULL: none, or several. */
static const char *only_below(struct arena *a, const char *folder, enum dcp_content wanted)
{
    struct dcp_found found = {0};
    look_below(a, folder, wanted, &found);
    return found.count == 1 ? found.first : NULL;
}

static bool matches_dcp(const char *path, const struct source_options *o)
{
    struct arena a;
    (void)o;
    if (!path_is_folder(path)) return false;
    arena_init(&a);
    bool matches = !iteration_is_below(path) && !path_exists(path_join(&a, path, "common.pt"));
    if (matches && dcp_folder_matches(path))
        matches = !dcp_folder_is_titan(path) && !dcp_folder_is_megatron(path);
    else if (matches)
        matches = only_below(&a, path, DCP_MODEL) != NULL;
    arena_release(&a);
    return matches;
}

/* The folder with the other content; NULL: none, or several.
 *
 * - It lies beside this one,
 * - or its parent lies beside this one's. */
static const char *find_other(struct checkpoint *c, const char *folder, enum dcp_content content)
{
    struct arena *a = &c->arena;
    const bool of_model = content == DCP_MODEL;
    const enum dcp_content wanted = of_model ? DCP_OPTIMIZER : DCP_MODEL;
    const char *parent = path_parent(a, folder);
    struct dcp_found found = {0}, alike = {0};
    look_below(a, parent, wanted, &found);
    if (found.cut)
        checkpoint_note(c, "%s has too many folders to look for %s beside %s", parent,
                        of_model ? "an optimizer" : "a model", c->folder);
    if (!found.count && is_named_optimizer(a, parent) != of_model) {
        parent = path_parent(a, parent);
        look_below(a, parent, wanted, &found);
        if (found.count == 1 && is_named_optimizer(a, path_parent(a, found.first)) != of_model)
            return NULL;
    }
    if (!found.count) return NULL;
    look_below(a, parent, content, &alike);
    if (found.count == 1 && alike.count == 1) return found.first;
    c->training.optimizer.present = true;
    states_unread(c, "%s has %zu folders of optimizers (%s) and %zu of models", parent,
                  of_model ? found.count : alike.count, of_model ? found.first : alike.first,
                  of_model ? alike.count : found.count);
    return NULL;
}

static enum status open_folders(struct checkpoint *c, struct error *err)
{
    const char *other = NULL;
    if (!dcp_folder_matches(c->path)) c->folder = only_below(&c->arena, c->path, DCP_MODEL);
    TRY(dcp_folder_open(&c->catalog.stored, c->folder, err));
    const enum dcp_content content = content_of(&c->catalog.stored);
    const char *folder = path_real(&c->arena, c->folder);
    if (folder && (content == DCP_MODEL || content == DCP_OPTIMIZER))
        other = find_other(c, folder, content);
    if (!other) return OK;
    checkpoint_note(c, "%s is read beside %s", other, c->folder);
    return dcp_folder_open(&c->catalog.stored, other, err);
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
