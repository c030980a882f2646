/* source_fsdp_dtensor.c - reads what Megatron-LM writes with --ckpt-format fsdp_dtensor, for runs
 * of Megatron-FSDP: a DCP folder in an iteration, without metadata.json.
 *
 *   args, iteration, checkpoint_version      objects
 *   model.NAME                               names in memory, with global numbers of layers and
 *                                            experts; a gated linear_fc1 as NAME_w and NAME_v
 *   optimizer.state.NAME.exp_avg ...         NAME with "module." in front
 *   optimizer.param_to_group_meta.NAME.KEY   the settings of each parameter's group
 *
 * (megatron/training/checkpointing.py:preprocess_fsdp_dtensor_state_dict,
 * megatron/core/transformer/fsdp_dtensor_checkpoint.py at d98e8a64) No file of Megatron-FSDP itself
 * has been read yet. */
#include <string.h>

#include "common/file.h"
#include "common/text.h"
#include "convert/dcp/dcp_entry.h"
#include "convert/dcp/dcp_model.h"
#include "convert/format.h"
#include "convert/megatron/describe.h"
#include "convert/megatron/find_iteration.h"
#include "convert/megatron/megatron_source.h"
#include "formats/dcp.h"

static bool matches_fsdp_dtensor(const char *path, const struct source_options *o)
{
    const struct source_options none = {0};
    struct iteration found;
    struct arena a;
    bool matches = false;
    if (!path_is_folder(path)) return false;
    arena_init(&a);
    if (!iteration_find(&a, path, o ? o : &none, &found, NULL))
        matches = path_exists(path_join(&a, found.folder, ".metadata")) &&
                  !path_exists(path_join(&a, found.folder, "metadata.json")) &&
                  !path_exists(path_join(&a, found.folder, "common.pt"));
    arena_release(&a);
    return matches;
}

/* ---- names ---- */

/* The key of torch_dist (megatron_names.h) of an expert's name in memory, where `name` is one:
 * mlp.experts.linear_fcN.weightE and mlp.experts.local_experts.E.REST. Else the name. */
static const char *key_of(struct arena *a, const char *name)
{
    static const char experts[] = ".mlp.experts.", local[] = "local_experts.";
    const char *at = strstr(name, experts);
    if (!at) return name;
    const char *rest = at + strlen(experts);
    const int before = (int)(rest - name);
    if (text_skip_prefix(&rest, local))
        return arena_printf(a, "%.*sexperts.%s", before, name, rest);
    const char *end = rest + strlen(rest);
    if (text_ends_with(rest, "_w") || text_ends_with(rest, "_v")) end -= 2;
    const char *digits = end;
    while (digits > rest && digits[-1] >= '0' && digits[-1] <= '9')
        digits--;
    if (digits == end || !text_starts_with(rest, "linear_fc")) return name;
    return arena_printf(a, "%.*sexperts.%.*s.%.*s%s", before, name, (int)(end - digits), digits,
                        (int)(digits - rest), rest, end);
}

/* ---- reading ---- */

static void read_common(struct checkpoint *c)
{
    static const char *const names[] = {"args", "iteration", "checkpoint_version"};
    int64_t iteration;
    c->training.common = value_dict(&c->arena);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct value *v = dcp_object_value(c, names[i]);
        if (v) value_dict_add(&c->arena, c->training.common, names[i], (struct value *)v);
    }
    if (value_as_int(value_get(c->training.common, "iteration"), &iteration) && iteration > 0)
        c->training.run.iteration = (uint64_t)iteration;
}

/* The groups' settings are not read but for the step, which all of them have. */
static void read_step(struct checkpoint *c)
{
    int64_t step;
    for (size_t i = 0; i < c->catalog.stored.num_objects && !c->training.run.step; i++) {
        const char *name = c->catalog.stored.objects[i].name;
        if (text_starts_with(name, "optimizer.") && text_ends_with(name, ".step") &&
            value_as_int(dcp_object_value(c, name), &step) && step > 0)
            c->training.run.step = (uint64_t)step;
    }
    if (!c->training.run.step) c->training.run.step = c->training.run.iteration;
    checkpoint_note(c, "settings of the optimizer and its schedule are not read from a checkpoint "
                       "of Megatron-FSDP");
}

static enum status own_tensors(struct checkpoint *c, struct error *err)
{
    struct optimizer_info *o = &c->training.optimizer;
    for (size_t i = 0; i < c->catalog.stored.num_tensors; i++) {
        const struct stored_tensor *t = &c->catalog.stored.tensors[i];
        const struct dcp_entry e = dcp_entry_of(&c->arena, t->name, t->nested_path, true);
        const bool is_state = e.kind == DCP_STATE && strcmp(e.below, "optimizer") == 0;
        const bool is_model = e.kind == DCP_PARAMETER && strcmp(e.below, "model") == 0;
        const char *key = key_of(&c->arena, e.name), *state = is_state ? e.key : NULL;
        o->present |= is_state;
        if ((!is_state && !is_model) || (is_state && strcmp(e.key, "step") == 0)) continue;
        if (is_state) o->size_bytes += stored_tensor_bytes(t);
        if (catalog_find_own(&c->catalog, key, state))
            return fail(err, ERR_CORRUPT, "%s: %s is there twice: the second is %s", c->path, key,
                        t->name);
        TRY(catalog_own_stored(&c->catalog, key, state, t, err));
    }
    if (o->present) o->kind = "of Megatron-FSDP";
    return OK;
}

static enum status read_fsdp_dtensor(struct megatron_source *m, struct error *err)
{
    struct checkpoint *c = m->c;
    struct megatron_evidence evidence = {0};
    TRY(dcp_open(&c->catalog.stored, c->folder, true, err));
    read_common(c);
    TRY(own_tensors(c, err));
    TRY(evidence_add_keys(c, &evidence, err));
    TRY(megatron_describe(m, &evidence, err));
    if (c->training.optimizer.present) read_step(c);
    TRY(megatron_import(m, err));
    return megatron_import_states(m, err);
}

static enum status open_fsdp_dtensor(struct checkpoint *c, const struct source_options *o,
                                     const struct model_maps *maps, struct error *err)
{
    struct megatron_source m = {.c = c, .o = o, .maps = maps};
    return megatron_open(&m, read_fsdp_dtensor, err);
}

const struct source_kind source_fsdp_dtensor = {matches_fsdp_dtensor, open_fsdp_dtensor};
