/* source_torchtitan.c - reads checkpoints of torchtitan.
 *
 *   ROOT/step-N/.metadata, *.distcp
 *       parameters at the top, by torchtitan's names; "optimizer" with flattened
 *       states; train_state, lr_scheduler, dataloader
 *   ROOT/step-N, *.safetensors
 *       the last step of a run that saves it for Hugging Face: weights under
 *       Hugging Face's names
 *
 * A step is complete if it has .metadata or model.safetensors.index.json
 * (torchtitan/components/checkpointer/dcp.py:_find_load_step). */
#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>

#include "common/file.h"
#include "common/numbers.h"
#include "common/text.h"
#include "convert/dcp/dcp_folder.h"
#include "convert/dcp/dcp_model.h"
#include "convert/format.h"
#include "convert/hf/hf_model.h"
#include "convert/states.h"
#include "formats/hf_folder.h"

static const char fused_state[] = ".attention.qkv_linear.wqkv.weight";

struct step {
    const char *folder;
    uint64_t number;
    bool numbered;
};

static bool number_of_step(const char *name, uint64_t *number)
{
    return text_skip_prefix(&name, "step-") && parse_u64(name, number);
}

static bool step_is_complete(struct arena *a, const char *folder)
{
    return path_is_file(path_join(a, folder, ".metadata")) ||
           path_is_file(path_join(a, folder, "model.safetensors.index.json"));
}

/* Finds a root's wanted step, or (wanted NULL) its last complete one. */
static bool find_step(struct arena *a, const char *root, const uint64_t *wanted, struct step *out)
{
    struct name_list names;
    bool found = false;
    if (!path_is_folder(root) || folder_list(root, a, &names, NULL)) return false;
    for (size_t i = 0; i < names.count; i++) {
        uint64_t number;
        const char *folder = path_join(a, root, names.names[i]);
        if (!number_of_step(names.names[i], &number) || !step_is_complete(a, folder)) continue;
        if (wanted ? number != *wanted : found && number < out->number) continue;
        *out = (struct step){folder, number, true};
        found = true;
    }
    return found;
}

static bool matches_torchtitan(const char *path, const struct source_options *o)
{
    struct arena a;
    struct step step;
    (void)o;
    if (dcp_folder_is_titan(path)) return true;
    arena_init(&a);
    const bool matches = find_step(&a, path, NULL, &step) &&
                         (dcp_folder_is_titan(step.folder) || hf_folder_has_weights(step.folder));
    arena_release(&a);
    return matches;
}

static enum status choose_step(struct checkpoint *c, const struct source_options *o,
                               struct step *step, struct error *err)
{
    struct arena *a = &c->arena;
    const uint64_t *wanted = o->has_ckpt_step ? &o->ckpt_step : NULL;
    *step = (struct step){.folder = c->path};
    if (step_is_complete(a, c->path)) {
        step->numbered = number_of_step(path_base(a, c->path), &step->number);
        if (!wanted || (step->numbered && step->number == *wanted)) return OK;
        return fail(err, ERR_USAGE, "%s: --ckpt-step %" PRIu64 ": the path is a single step",
                    c->path, *wanted);
    }
    if (find_step(a, c->path, wanted, step)) return OK;
    if (wanted) return fail(err, ERR_IO, "%s: no complete step-%" PRIu64, c->path, *wanted);
    return fail(err, ERR_UNSUPPORTED,
                "%s: no complete step-N: none has .metadata or model.safetensors.index.json",
                c->path);
}

/* ---- the run ---- */

static void read_train_state(struct checkpoint *c, const struct step *step)
{
    int64_t number;
    struct training *run = &c->training.run;
    if (step->numbered && step->number <= INT64_MAX) c->training.iteration = (int64_t)step->number;
    if (value_as_int(dcp_object_value(c, "train_state.step"), &number) && number > 0)
        run->iteration = (uint64_t)number;
    if (value_as_int(dcp_object_value(c, "train_state.ntokens_seen"), &number) && number > 0)
        run->consumed_tokens = (uint64_t)number;
}

static void note_dataloader(struct checkpoint *c)
{
    size_t count = 0;
    for (size_t i = 0; i < c->catalog.stored.num_objects; i++)
        count += text_starts_with(c->catalog.stored.objects[i].name, "dataloader.");
    if (count) checkpoint_note(c, "only conversions to torchtitan copy the dataloader's state");
}

/* Without a config, rows of wqkv cannot be assigned to q, k and v. */
static void check_fused(struct checkpoint *c)
{
    for (size_t i = 0; i < c->catalog.num_native && !c->family; i++)
        if (c->catalog.native[i].state && text_ends_with(c->catalog.native[i].name, fused_state))
            states_unread(c,
                          "%s fuses q, k and v; splitting it takes a config.json: --hf-config DIR",
                          c->catalog.native[i].name);
}

/* Weights for Hugging Face have its names in every family. */
static enum status take_weights(struct checkpoint *c, struct error *err)
{
    struct titan_names names;
    if (!path_is_file(path_join(&c->arena, c->folder, ".metadata")))
        return dcp_model_take(c, NULL, err);
    TRY(titan_names_init(&names, c, err));
    return dcp_model_take(c, &names, err);
}

static enum status open_torchtitan(struct checkpoint *c, const struct source_options *o,
                                   const struct model_maps *maps, struct error *err)
{
    struct naming_import import;
    struct step step;
    TRY(choose_step(c, o, &step, err));
    c->folder = step.folder;
    TRY(dcp_folder_open(&c->catalog.stored, c->folder, err));
    const char *const folders[] = {c->folder, path_parent(&c->arena, c->folder), NULL};
    TRY(hf_model_describe(c, o, maps, folders, false, &import, err));
    TRY(take_weights(c, err));
    read_train_state(c, &step);
    note_dataloader(c);
    check_fused(c);
    return hf_model_import(&import, err);
}

const struct source_kind source_torchtitan = {matches_torchtitan, open_torchtitan};
