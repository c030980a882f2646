/* target_deepspeed.c - writes a DeepSpeed checkpoint: global_stepN with the
 * model's files and, in ZeRO's stages, the optimizer's partitions; `latest`
 * beside it.
 *
 * Rank R's optimizer file is [bf16_]zero_pp_rank_R_mp_rank_00_optim_states.pt:
 * {optimizer_state_dict: S, ds_config, ds_version}. S of stages 1 and 2 has,
 * per group, this rank's part of the vectors
 * (deepspeed/runtime/zero/stage_1_and_2.py:state_dict): moments with padding,
 * masters without. S of stage 3 has, per sub-group, this rank's parts of all
 * its parameters (stage3.py:_rigid_state_dict). clip_grad is left out:
 * DeepSpeed then takes the run's. */
#include <inttypes.h>
#include <string.h>

#include "common/checked.h"
#include "convert/deepspeed/write/model_states.h"
#include "convert/deepspeed/write/zero_values.h"
#include "convert/deepspeed/zero_layout.h"
#include "convert/hf/hf_model.h"
#include "convert/record.h"

/* A rank's planned file. */
struct optim_file {
    struct zero_run *r;
    struct arena *a;
    struct torch_archive *archive;
    uint64_t rank;
};

/* ---- stages 1 and 2 ---- */

/* A rank's part of a group's vector. */
struct part {
    const struct zero_group *g;
    struct zero_place *places; /* [num_params] */
    uint64_t begin, length, padding;
};

static struct part rank_part(const struct optim_file *f, const struct zero_group *g)
{
    const struct zero_run *r = f->r;
    struct part p = {.g = g, .places = arena_array(f->a, g->num_params, sizeof *p.places)};
    for (size_t i = 0; i < g->num_params; i++)
        p.places[i].numel = r->native.out.items[g->params[i]].numel;
    const uint64_t end = zero_place_group(p.places, g->num_params, NULL);
    p.length = zero_padded(end, r->dp) / r->dp;
    p.begin = f->rank * p.length;
    p.padding = zero_rank_padding(end, r->dp, f->rank);
    return p;
}

/* The part's elements of parameter i; false: none. */
static bool part_has(const struct part *p, size_t i, uint64_t *from, uint64_t *to)
{
    const struct zero_place *at = &p->places[i];
    *from = at->begin > p->begin ? at->begin : p->begin;
    *to = min_u64(at->begin + at->numel, p->begin + p->length);
    return *from < *to;
}

/* This rank's part of state k's vector. */
static enum status part_tensor(struct optim_file *f, const struct part *p, size_t k, bool padded,
                               struct value **out, struct error *err)
{
    const struct zero_group *g = p->g;
    const uint64_t length = p->length - (padded ? 0 : p->padding);
    uint64_t from, to;
    uint32_t segment = 0;
    *out = zero_tensor(f->r, f->archive, DT_F32, 1, &length, &segment);
    for (size_t i = 0; i < g->num_params; i++)
        if (part_has(p, i, &from, &to))
            TRY(zero_fill(f->r, g->vectors[k * g->num_params + i], from - p->places[i].begin,
                          to - from, from - p->begin, segment, err));
    if (padded) zero_fill_padding(f->r, length - p->padding, p->padding, segment);
    return OK;
}

static struct value *slice_mapping(struct optim_file *f, const struct part *p)
{
    struct value *pairs, *mapping = zero_ordered_dict(f->a, &pairs);
    uint64_t from, to;
    for (size_t i = 0; i < p->g->num_params; i++)
        if (part_has(p, i, &from, &to))
            value_dict_add(f->a, pairs, f->r->native.out.items[p->g->params[i]].name,
                           zero_fragment(f->a, from - p->begin, to - from));
    return mapping;
}

static struct value *zeros_list(struct arena *a, size_t count)
{
    struct value *list = value_list(a, VALUE_LIST, 0, NULL), *zero = value_int(a, 0);
    for (size_t i = 0; i < count; i++)
        value_append(a, list, zero);
    return list;
}

static struct value *list_of(struct arena *a, struct value *one)
{
    return value_list(a, VALUE_LIST, 1, &one);
}

/* The lists of S, an item per group. */
struct group_lists {
    struct value *state, *groups, *masters, *paddings, *alignments, *counts, *mappings;
};

static enum status add_flat_group(struct optim_file *f, size_t number, struct group_lists *to,
                                  struct error *err)
{
    const struct zero_group *g = &f->r->groups[number];
    const struct part p = rank_part(f, g);
    struct value *of = value_dict(f->a), *v;
    value_dict_add(f->a, of, "step", zero_scalar(f->r, f->archive, g->step));
    for (size_t k = 1; k < g->num_states; k++) {
        TRY(part_tensor(f, &p, k, true, &v, err));
        value_dict_add(f->a, of, g->states[k], v);
    }
    TRY(part_tensor(f, &p, 0, false, &v, err));
    value_append(f->a, to->masters, v);
    value_dict_put(f->a, to->state, value_int(f->a, (int64_t)number), of);
    value_append(f->a, to->groups,
                 zero_param_group(f->r, g, list_of(f->a, value_int(f->a, (int64_t)number))));
    value_append(f->a, to->paddings, value_int(f->a, (int64_t)p.padding));
    value_append(f->a, to->alignments, zeros_list(f->a, g->num_params));
    value_append(f->a, to->counts, value_int(f->a, (int64_t)f->r->dp));
    value_append(f->a, to->mappings, slice_mapping(f, &p));
    return OK;
}

static struct value *new_list(struct arena *a)
{
    return value_list(a, VALUE_LIST, 0, NULL);
}

static enum status flat_groups(struct optim_file *f, struct value *dict, struct error *err)
{
    struct arena *a = f->a;
    struct value *base = value_dict(a);
    struct group_lists to = {value_dict(a), new_list(a), new_list(a), new_list(a),
                             new_list(a),   new_list(a), new_list(a)};
    for (size_t g = 0; g < f->r->num_groups; g++)
        TRY(add_flat_group(f, g, &to, err));
    value_dict_add(a, base, "state", to.state);
    value_dict_add(a, base, "param_groups", to.groups);
    value_dict_add(a, dict, "base_optimizer_state", base);
    value_dict_add(a, dict, "single_partition_of_fp32_groups", to.masters);
    value_dict_add(a, dict, "group_paddings", to.paddings);
    value_dict_add(a, dict, "param_alignment_paddings", to.alignments);
    value_dict_add(a, dict, "partition_count", to.counts);
    value_dict_add(a, dict, "ds_version", value_text(a, ZERO_DS_VERSION));
    value_dict_add(a, dict, "param_slice_mappings", to.mappings);
    return OK;
}

/* ---- stage 3 ---- */

/* This rank's consecutive parts of state k of a group's parameters [first,
 * last). */
static enum status parts_tensor(struct optim_file *f, const struct zero_group *g, size_t first,
                                size_t last, size_t k, struct value **out, struct error *err)
{
    const struct out_tensor *all = f->r->native.out.items;
    uint64_t length = 0, place = 0, part;
    uint32_t segment = 0;
    for (size_t i = first; i < last; i++)
        length += zero3_part(all[g->params[i]].numel, f->r->dp);
    *out = zero_tensor(f->r, f->archive, DT_F32, 1, &length, &segment);
    for (size_t i = first; i < last; i++, place += part) {
        part = zero3_part(all[g->params[i]].numel, f->r->dp);
        if (part)
            TRY(zero_fill(f->r, g->vectors[k * g->num_params + i], f->rank * part, part, place,
                          segment, err));
    }
    return OK;
}

/* Adds a sub-group; their numbers run through all groups. */
static enum status add_sub_group(struct optim_file *f, const struct zero_group *g, size_t first,
                                 size_t last, struct value *state, struct value *masters,
                                 struct error *err)
{
    struct value *of = value_dict(f->a), *v;
    value_dict_add(f->a, of, "step", zero_scalar(f->r, f->archive, g->step));
    for (size_t k = 1; k < g->num_states; k++) {
        TRY(parts_tensor(f, g, first, last, k, &v, err));
        value_dict_add(f->a, of, g->states[k], v);
    }
    TRY(parts_tensor(f, g, first, last, 0, &v, err));
    value_dict_put(f->a, state, value_int(f->a, masters->count), of);
    value_append(f->a, masters, v);
    return OK;
}

static enum status add_sub_groups(struct optim_file *f, const struct zero_group *g,
                                  struct value *state, struct value *groups, struct value *masters,
                                  struct error *err)
{
    struct value *params = new_list(f->a);
    size_t *sub_group;
    (void)sub_groups_of(f->r, g, f->r->dp, &sub_group);
    for (size_t first = 0, last; first < g->num_params; first = last) {
        for (last = first + 1; last < g->num_params && sub_group[last] == sub_group[first];)
            last++;
        value_append(f->a, params, value_int(f->a, masters->count));
        TRY(add_sub_group(f, g, first, last, state, masters, err));
    }
    value_append(f->a, groups, zero_param_group(f->r, g, params));
    return OK;
}

static enum status partitioned_groups(struct optim_file *f, struct value *dict, struct error *err)
{
    struct arena *a = f->a;
    struct value *optimizer = value_dict(a), *state = value_dict(a);
    struct value *groups = new_list(a), *masters = new_list(a);
    for (size_t g = 0; g < f->r->num_groups; g++)
        TRY(add_sub_groups(f, &f->r->groups[g], state, groups, masters, err));
    value_dict_add(a, optimizer, "state", state);
    value_dict_add(a, optimizer, "param_groups", groups);
    value_dict_add(a, dict, "partition_count", value_int(a, (int64_t)f->r->dp));
    value_dict_add(a, dict, "optimizer_state_dict", optimizer);
    value_dict_add(a, dict, "fp32_flat_groups", masters);
    return OK;
}

/* ---- files ---- */

static enum status optim_states(struct zero_run *r, uint64_t rank, struct error *err)
{
    struct optim_file f = {.r = r, .a = &r->t->plan.arena, .rank = rank};
    struct value *root = value_dict(f.a), *dict = value_dict(f.a);
    f.archive =
        zero_file(r, arena_printf(f.a, "%szero_pp_rank_%" PRIu64 "_mp_rank_00_optim_states.pt",
                                  r->dtype == DT_BF16 ? "bf16_" : "", rank));
    value_dict_add(f.a, dict, "zero_stage", zero_stage_value(f.a, r->stage));
    zero_add_loss_scale(r, dict);
    TRY((r->stage == 3 ? partitioned_groups : flat_groups)(&f, dict, err));
    value_dict_add(f.a, root, "optimizer_state_dict", dict);
    value_dict_add(f.a, root, "ds_config", zero_config(r));
    value_dict_add(f.a, root, "ds_version", value_text(f.a, ZERO_DS_VERSION));
    return zero_file_end(r, f.archive, root, err);
}

/* ---- the plan ---- */

static enum status check_stage(struct zero_run *r, struct error *err)
{
    struct target *t = r->t;
    if (r->stage == 3 && !r->num_groups)
        return fail(err, ERR_UNSUPPORTED,
                    "--zero 3: the weights belong to the optimizer's files, but there is no "
                    "optimizer to write; use stages 0 to 2 for weights alone");
    if (r->stage == 0 && r->num_groups && r->dtype != DT_F32)
        return fail(err, ERR_UNSUPPORTED,
                    "--zero 0: the weights are %s with masters, but without ZeRO only fp32 runs "
                    "can be written; use --zero 1, 2 or 3, or --torch-dtype float32",
                    dtype_infos[r->dtype].name);
    if (!r->num_groups)
        notes_add(
            &t->notes, &t->plan.arena,
            "only weights are written: load them with load_checkpoint(..., load_module_only=True)");
    return OK;
}

static enum status plan_deepspeed(struct target *t, struct error *err)
{
    struct zero_run *r;
    TRY(zero_run_begin(t, &r, err));
    if (t->options.zero < 0 && !t->num_states) r->stage = 1; /* weights alone */
    TRY(check_stage(r, err));
    t->facts.dp = r->dp;
    t->facts.has_zero = true;
    t->facts.zero = r->stage;
    t->unit = arena_printf(&t->plan.arena, "global_step%" PRIu64, r->iteration);
    if (r->stage < 3) TRY(model_states_whole(r, err));
    for (uint64_t rank = 0; rank < r->dp && r->stage == 3; rank++)
        TRY(model_states_part(r, rank, r->dp, err));
    for (uint64_t rank = 0; rank < r->dp && r->stage && r->num_groups; rank++)
        TRY(optim_states(r, rank, err));
    zero_run_end(r);
    return OK;
}

static enum status deepspeed_root_files(struct target *t, struct root_file **files,
                                        size_t *num_files, struct error *err)
{
    (void)err;
    return zero_root_files(t, "latest", files, num_files);
}

const struct target_kind target_deepspeed = {plan_deepspeed, zero_small_files, deepspeed_root_files,
                                             zero_run_release};
