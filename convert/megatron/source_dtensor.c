/* source_dtensor.c - reads Megatron-FSDP's checkpoints (--ckpt-format
 * fsdp_dtensor, also torch_dcp): a DCP folder of one rank's nested state dict
 * with whole tensors.
 *
 *   model.NAME                       a parameter, by its name in memory
 *       (megatron_names.h) with the model's numbers of layer and expert; halves
 *       of a gated fc1: NAME_w, NAME_v
 *   optimizer.state.module.NAME.STATE         its state
 *   optimizer.param_to_group_meta.NAME.KEY    a setting of its group
 *   args, iteration, checkpoint_version, opt_param_scheduler.KEY, rng_state, ...
 *                                    the common state
 *
 * Names are paths in the nested dict. Source:
 * megatron/training/checkpointing.py (generate_state_dict,
 * preprocess_fsdp_dtensor_state_dict),
 * megatron/core/transformer/fsdp_dtensor_checkpoint.py
 * (handle_swiglu_in_state_dict, handle_experts_in_state_dict),
 * megatron/core/optimizer/distrib_optimizer.py
 * (sharded_param_state_fsdp_dtensor). */
#include <string.h>

#include "common/text.h"
#include "convert/megatron/describe.h"
#include "convert/megatron/megatron_names.h"
#include "convert/megatron/megatron_source.h"
#include "convert/megatron/optim/training_source.h"
#include "convert/states.h"
#include "formats/dcp.h"

/* ---- paths ---- */

static const char separator = '\x1f';

/* The rest of a path below a key; NULL: not below it. */
static const char *path_below(const char *path, const char *key)
{
    const size_t n = strlen(key);
    return path && strncmp(path, key, n) == 0 && path[n] == separator ? path + n + 1 : NULL;
}

/* A name without its wrapper modules. */
static const char *name_without_modules(const char *name)
{
    while (text_starts_with(name, "module."))
        name += strlen("module.");
    return name;
}

/* ---- tensors ---- */

struct reading {
    struct megatron_source *m;
    bool *moe; /* [num_layers], of which num_moe are known */
    uint64_t num_moe;
};

/* A parsed name in memory. half: 'w', 'v' of a gated fc1, else 0. */
static struct memory_name parse_memory_name(struct checkpoint *c, const char *name, char *half)
{
    const size_t n = strlen(name);
    const bool is_half = n > 2 && name[n - 2] == '_' && (name[n - 1] == 'w' || name[n - 1] == 'v');
    *half = is_half ? name[n - 1] : 0;
    return memory_name_parse(&c->arena, c->params,
                             is_half ? arena_text(&c->arena, name, n - 2) : name);
}

/* Finds layers with experts by their routers, which also fixes the name of the
 * norm before an MLP. */
static void find_routers(struct reading *r)
{
    struct checkpoint *c = r->m->c;
    const struct stored *s = &c->catalog.stored;
    char half;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < s->num_tensors; i++) {
            const char *name = path_below(s->tensors[i].nested_path, "model");
            if (!name) continue;
            const struct memory_name m = parse_memory_name(c, name_without_modules(name), &half);
            const bool is_router = m.in_layers && strcmp(m.rest, "mlp.router.weight") == 0;
            if (!is_router || m.layer >= s->num_tensors) continue;
            if (pass)
                r->moe[m.layer] = true;
            else if (m.layer >= r->num_moe)
                r->num_moe = m.layer + 1;
        }
        if (!pass) r->moe = arena_array(&c->arena, r->num_moe, sizeof *r->moe);
    }
}

/* Adds a parameter, or its state, as a native tensor under its torch_dist
 * key. */
static enum status add_dtensor(struct reading *r, const struct stored_tensor *s, const char *name,
                               const char *state, struct error *err)
{
    struct checkpoint *c = r->m->c;
    char half;
    const struct memory_name m = parse_memory_name(c, name_without_modules(name), &half);
    if (m.kind == MEMORY_SKIP) return OK;
    if (m.kind != MEMORY_PARAM && state) {
        states_unread(c, "%s belongs to no known parameter", s->name);
        return OK;
    }
    if (m.kind != MEMORY_PARAM) {
        gaps_add_unexpected(&c->gaps, &c->arena, s->name);
        return OK;
    }
    const bool moe = m.in_layers && m.layer < r->num_moe && r->moe[m.layer];
    const char *key = memory_name_logical(&c->arena, c->params, &m, m.layer, m.expert, moe);
    if (half) key = arena_printf(&c->arena, "%s_%c", key, half);
    return catalog_native_stored(&c->catalog, key, state, s, err);
}

static enum status add_parameters(struct reading *r, struct error *err)
{
    const struct stored *s = &r->m->c->catalog.stored;
    for (size_t i = 0; i < s->num_tensors; i++) {
        const char *name = path_below(s->tensors[i].nested_path, "model");
        if (name) TRY(add_dtensor(r, &s->tensors[i], name, NULL, err));
    }
    return OK;
}

/* Adds tensors at optimizer.state.NAME.STATE, except numbers, as each
 * parameter's step. */
static enum status add_dtensor_states(struct reading *r, struct error *err)
{
    struct checkpoint *c = r->m->c;
    struct optimizer_info *o = &c->training.optimizer;
    for (size_t i = 0; i < c->catalog.stored.num_tensors; i++) {
        const struct stored_tensor *s = &c->catalog.stored.tensors[i];
        const char *path = path_below(path_below(s->nested_path, "optimizer"), "state");
        const char *end = path ? strchr(path, separator) : NULL;
        if (!end || !s->num_dims) continue;
        o->present = true;
        o->size_bytes += stored_tensor_bytes(s);
        const char *state = end + 1, *name = arena_text(&c->arena, path, (size_t)(end - path));
        if (strcmp(state, "master_param") == 0) state = master_state;
        if (!state_is_valid(state))
            states_unread(c, "%s is not a parameter's state", s->name);
        else
            TRY(add_dtensor(r, s, name, state, err));
    }
    if (o->present) o->kind = "distributed, fsdp_dtensor";
    return OK;
}

/* ---- the common state ---- */

/* Puts a value at a path of a nested dict. */
static void put_at(struct arena *a, struct value *dict, const char *path, struct value *v)
{
    const char *end;
    while ((end = strchr(path, separator))) {
        const char *key = arena_text(a, path, (size_t)(end - path));
        struct value *inner = value_get(dict, key);
        if (!inner || inner->kind != VALUE_DICT) {
            inner = value_dict(a);
            value_dict_set(a, dict, key, inner);
        }
        dict = inner;
        path = end + 1;
    }
    value_dict_set(a, dict, path, v);
}

static bool is_common_path(const char *path)
{
    static const char *const not_common[] = {"model", "rng_state", "rerun_state_machine"};
    for (size_t i = 0; i < sizeof not_common / sizeof *not_common; i++)
        if (path_below(path, not_common[i]) || strcmp(path, not_common[i]) == 0) return false;
    return !path_below(path_below(path, "optimizer"), "state");
}

/* Makes a list of groups, as in other formats, of the settings of each
 * parameter's group; equal ones are one group. */
static void list_groups(struct arena *a, struct value *common)
{
    const struct value *metas = value_get(value_get(common, "optimizer"), "param_to_group_meta");
    struct value *list = value_list(a, VALUE_LIST, 0, NULL);
    if (!metas || metas->kind != VALUE_DICT) return;
    for (uint32_t i = 0; i < metas->count; i++)
        value_append(a, list, metas->items[2 * i + 1]);
    struct value *inner = value_dict(a), *outer = value_dict(a);
    value_dict_add(a, inner, "param_groups", list);
    value_dict_add(a, outer, "optimizer", inner);
    value_dict_set(a, common, "optimizer", outer);
}

static enum status read_common(struct reading *r, struct error *err)
{
    struct checkpoint *c = r->m->c;
    struct stored *s = &c->catalog.stored;
    struct value *common = value_dict(&c->arena), *v;
    for (size_t i = 0; i < s->num_objects; i++) {
        const char *path = s->objects[i].nested_path;
        c->training.run.has_rng |= path && text_starts_with(path, "rng_state");
        if (!path || !is_common_path(path)) continue;
        TRY(dcp_read_object(s, &s->objects[i], &c->arena, &v, err));
        put_at(&c->arena, common, path, v);
    }
    list_groups(&c->arena, common);
    c->training.common = common;
    if (!value_get(common, "args")) checkpoint_note(c, "%s: its objects lack args", c->folder);
    return OK;
}

static void read_training(struct checkpoint *c)
{
    struct training_source training;
    struct error why;
    training_source_begin(&training, c);
    training_source_common(&training, NULL, 0, 0);
    if (training_reader_optimizer(&training.reader, value_get(c->training.common, "optimizer"),
                                  c->folder, &why))
        states_unread(c, "%s", why.text);
    training_source_end(&training);
}

/* ---- all ---- */

static enum status check_paths(const struct checkpoint *c, struct error *err)
{
    for (size_t i = 0; i < c->catalog.stored.num_tensors; i++)
        if (path_below(c->catalog.stored.tensors[i].nested_path, "model")) return OK;
    return fail(
        err, ERR_UNSUPPORTED,
        "%s: this DCP checkpoint is neither torch_dist (no metadata.json) nor fsdp_dtensor (no "
        "tensor below `model`)",
        c->folder);
}

static enum status read_dtensor(struct megatron_source *m, struct error *err)
{
    struct reading r = {.m = m};
    struct megatron_evidence evidence = {0};
    TRY(dcp_open(&m->c->catalog.stored, m->c->folder, true, err));
    TRY(check_paths(m->c, err));
    TRY(read_common(&r, err));
    find_routers(&r);
    TRY(add_parameters(&r, err));
    TRY(evidence_add_keys(m->c, &evidence, err));
    TRY(megatron_describe(m, &evidence, err));
    TRY(add_dtensor_states(&r, err));
    read_training(m->c);
    TRY(megatron_import(m, err));
    return megatron_import_states(m, err);
}

static bool matches_dtensor(const char *path, const struct source_options *o)
{
    return megatron_files_of(path, o) == MEGATRON_DTENSORS;
}

static enum status open_dtensor(struct checkpoint *c, const struct source_options *o,
                                const struct model_maps *maps, struct error *err)
{
    struct megatron_source m = {.c = c, .o = o, .maps = maps};
    return megatron_open(&m, read_dtensor, err);
}

const struct source_kind source_fsdp_dtensor = {matches_dtensor, open_dtensor};
