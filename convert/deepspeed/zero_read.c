#include "convert/deepspeed/zero_read.h"
#include "formats/pickle.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/checked.h"
#include "common/text.h"
#include "convert/deepspeed/zero_layout.h"
#include "convert/torch_groups.h"

enum { MAX_SEGMENTS = 1 << 16 };

/* ---- param_shapes ---- */

static enum status add_ds_param(struct ds_params *p, struct arena *a, const char *name,
                                const struct value *shape, const char *path, struct error *err)
{
    struct ds_param x = {.segment = p->num_lists};
    uint64_t *dims;
    size_t old;
    if (!name) return fail(err, ERR_CORRUPT, "%s: param_shapes: a key is not a string", path);
    if (!ds_as_shape(a, shape, &x.num_dims, &dims))
        return fail(err, ERR_CORRUPT, "%s: param_shapes: %s lacks a shape", path, name);
    x.shape = dims;
    x.name = x.native_name = arena_copy_text(a, name);
    if (!shape_numel(x.shape, x.num_dims, &x.numel) || x.numel > MAX_ELEMENTS || !x.numel)
        return fail(err, ERR_CORRUPT, "%s: param_shapes: %s has the impossible shape %s", path,
                    name, shape_text(a, x.num_dims, x.shape));
    if (!map_add(&p->names, x.name, p->count, &old))
        return fail(err, ERR_CORRUPT, "%s: param_shapes lists %s twice", path, name);
    *ARENA_PUSH(a, p->items, p->count, p->capacity) = x;
    return OK;
}

static enum status add_list(struct ds_params *p, struct arena *a, const struct value *dict,
                            const char *path, struct error *err)
{
    if (!dict || dict->kind != VALUE_DICT)
        return fail(err, ERR_CORRUPT, "%s: an item of param_shapes is not a dict", path);
    for (uint32_t i = 0; i < dict->count; i++)
        TRY(add_ds_param(p, a, value_as_text(dict->items[2 * i]), dict->items[2 * i + 1], path,
                         err));
    *ARENA_PUSH(a, p->ends, p->num_lists, p->lists_capacity) = p->count;
    return OK;
}

enum status ds_params_read(struct ds_params *p, struct arena *a, const struct value *shapes,
                           const char *path, struct error *err)
{
    struct value *const *items;
    const uint32_t n = ds_list(shapes, &items);
    if (shapes && shapes->kind == VALUE_DICT) return add_list(p, a, shapes, path, err);
    if (!n)
        return fail(err, ERR_CORRUPT, "%s: missing param_shapes, the places of parameters", path);
    for (uint32_t i = 0; i < n; i++)
        TRY(add_list(p, a, items[i], path, err));
    return OK;
}

void ds_params_release(struct ds_params *p)
{
    map_release(&p->names);
}

/* ---- places ---- */

static const char *segment_noun(const struct zero_read *z)
{
    return z->stage == 3 ? "sub-group" : "group";
}

/* Stage 3: parameters follow one another through a rank's sub-groups; none
 * spans two. */
static enum status place_in_sub_groups(struct zero_read *z, struct error *err)
{
    size_t segment = 0;
    uint64_t at = 0;
    for (size_t i = 0; i < z->params->count; i++) {
        struct ds_param *p = &z->params->items[i];
        const uint64_t need = zero3_part(p->numel, z->num_ranks);
        while (segment < z->num_segments && at == z->part[segment]) {
            segment++;
            at = 0;
        }
        if (segment == z->num_segments || z->part[segment] - at < need)
            return fail(err, ERR_CORRUPT,
                        "%s: sub-group %zu: parameter %s needs %" PRIu64
                        " elements of each rank, files hold %" PRIu64 " more",
                        z->folder, segment, p->name, need,
                        segment < z->num_segments ? z->part[segment] - at : 0);
        p->segment = segment;
        p->begin = at;
        at += need;
    }
    if (segment < z->num_segments && at == z->part[segment]) segment++;
    for (; segment < z->num_segments && !z->part[segment]; segment++)
        ;
    if (segment == z->num_segments) return OK;
    return fail(err, ERR_CORRUPT,
                "%s: sub-group %zu: parameters need %" PRIu64 " elements of each rank, files hold "
                "%" PRIu64,
                z->folder, segment, at, z->part[segment]);
}

/* Reads the paddings of group g; *out NULL: none. */
static enum status read_paddings(const struct zero_read *z, const struct value *all, size_t g,
                                 size_t count, uint64_t **out, struct error *err)
{
    struct value *const *lists, *const *numbers;
    *out = NULL;
    if (!all || all->kind == VALUE_NONE) return OK;
    if (g >= ds_list(all, &lists) || ds_list(lists[g], &numbers) != count)
        return fail(err, ERR_CORRUPT,
                    "%s: param_alignment_paddings needs a number for each of the %zu parameters of "
                    "group %zu",
                    z->folder, count, g);
    *out = arena_array(&z->c->arena, count, sizeof **out);
    for (size_t i = 0; i < count; i++)
        if (!ds_as_count(numbers[i], &(*out)[i]))
            return fail(err, ERR_CORRUPT, "%s: param_alignment_paddings of group %zu: not a number",
                        z->folder, g);
    return OK;
}

static enum status place_in_groups(struct zero_read *z, const struct value *paddings,
                                   struct error *err)
{
    size_t first = 0;
    if (z->params->num_lists != z->num_segments)
        return fail(err, ERR_CORRUPT, "%s: param_shapes has %zu groups, the optimizer %zu",
                    z->folder, z->params->num_lists, z->num_segments);
    for (size_t g = 0; g < z->num_segments; g++) {
        const size_t count = z->params->ends[g] - first;
        struct zero_place *places = arena_array(&z->c->arena, count, sizeof *places);
        uint64_t *padding;
        TRY(read_paddings(z, paddings, g, count, &padding, err));
        for (size_t i = 0; i < count; i++)
            places[i].numel = z->params->items[first + i].numel;
        (void)zero_place_group(places, count, padding);
        for (size_t i = 0; i < count; i++) {
            z->params->items[first + i].begin = places[i].begin;
            z->aligned |= padding && i + 1 < count && padding[i];
        }
        first += count;
    }
    return OK;
}

/* One past the last element of a group. */
static uint64_t end_of_group(const struct zero_read *z, size_t g)
{
    const size_t first = g ? z->params->ends[g - 1] : 0, end = z->params->ends[g];
    if (end == first) return 0;
    const struct ds_param *last = &z->params->items[end - 1];
    return last->begin > UINT64_MAX - last->numel ? UINT64_MAX : last->begin + last->numel;
}

/* ---- one file ---- */

struct rank_file {
    struct zero_read *z;
    struct torch_file t;
    const struct ds_file *file;
    const struct value *optimizer; /* S */
    const struct value *base;      /* torch optimizer's state dict, or a list of states */
    const struct value *masters;   /* list of vectors */
};

static size_t *stored_of(const struct zero_read *z, uint64_t rank, size_t segment, size_t state)
{
    return &z->stored[(rank * z->num_segments + segment) * MAX_STATES + state];
}

static uint64_t length_of(const struct zero_read *z, uint64_t rank, size_t segment, size_t state)
{
    const size_t at = *stored_of(z, rank, segment, state);
    return at ? z->c->catalog.stored.tensors[at - 1].shape[0] : 0;
}

static enum status find_parts(struct rank_file *f, struct error *err)
{
    struct zero_read *z = f->z;
    const struct value *s = value_get(f->t.root, "optimizer_state_dict");
    int64_t stage = 1;
    if (!s) s = f->t.root;
    const bool has_stage = ds_as_stage(value_get(s, "zero_stage"), &stage);
    if (value_get(s, "zero_stage") && !has_stage)
        return fail(err, ERR_UNSUPPORTED, "zero_stage is not a known stage of ZeRO");
    if (stage < 1 || stage > 3)
        return fail(err, ERR_UNSUPPORTED, "zero_stage is %" PRId64 "; stages 1 to 3 are supported",
                    stage);
    f->optimizer = s;
    f->base = value_get(s, stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
    f->masters = value_get(s, stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups");
    if (!f->masters && value_get(s, "fp32_groups"))
        return fail(err, ERR_UNSUPPORTED,
                    "fp32_groups of very old DeepSpeed versions are not supported");
    if (!f->masters || f->masters->kind != VALUE_LIST)
        return fail(err, ERR_CORRUPT, "missing %s with the master weights",
                    stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups");
    if (!z->num_ranks) { /* the first file */
        z->stage = stage;
        z->has_stage = has_stage;
    } else if (stage != z->stage)
        return fail(err, ERR_CORRUPT, "ZeRO stage %" PRId64 ", but other files have stage %" PRId64,
                    stage, z->stage);
    if (stage == 3 && value_get(s, "ds_zero_partition_groups"))
        return fail(err, ERR_UNSUPPORTED,
                    "ds_zero_partition_groups: experts shared by fewer ranks are not supported");
    return OK;
}

/* Reads partition_count: an int, or one per group, equal unless there are
 * experts. */
static enum status read_partition_count(struct rank_file *f, size_t num_files, uint64_t *out,
                                        struct error *err)
{
    const struct value *v = value_get(f->optimizer, "partition_count");
    struct value *const *items;
    const uint32_t n = ds_list(v, &items);
    uint64_t count = num_files, one;
    if (v && !n && !ds_as_count(v, &count))
        return fail(err, ERR_CORRUPT, "partition_count is not a number");
    for (uint32_t i = 0; i < n; i++) {
        if (!ds_as_count(items[i], &one))
            return fail(err, ERR_CORRUPT, "partition_count is not a number");
        if (i && one != count)
            return fail(err, ERR_UNSUPPORTED,
                        "groups shared by %" PRIu64 " and by %" PRIu64
                        " ranks, as with experts, are not supported",
                        count, one);
        count = one;
    }
    if (!count) return fail(err, ERR_CORRUPT, "partition_count is 0");
    *out = count;
    return OK;
}

/* ---- files that are missing ---- */

/* Whether the rank has elements of a parameter. */
static bool rank_has(const struct zero_read *z, uint64_t rank, const struct ds_param *p)
{
    if (z->stage == 3) return rank * zero3_part(p->numel, z->num_ranks) < p->numel;
    const uint64_t part = zero_padded(end_of_group(z, p->segment), z->num_ranks) / z->num_ranks;
    return p->begin < (rank + 1) * part && p->begin + p->numel > rank * part;
}

static const char *parameters_of_rank(const struct zero_read *z, uint64_t rank)
{
    enum { MAX_NAMED = 3 };
    const char *names = "";
    size_t count = 0;
    for (size_t i = 0; i < z->params->count; i++) {
        if (!rank_has(z, rank, &z->params->items[i])) continue;
        if (count < MAX_NAMED)
            names = arena_printf(&z->c->arena, "%s%s%s", names, count ? ", " : "",
                                 z->params->items[i].name);
        count++;
    }
    return arena_printf(&z->c->arena, "elements of %zu parameter%s: %s%s", count,
                        count == 1 ? "" : "s", names, count > MAX_NAMED ? ", ..." : "");
}

/* The name of rank's file, by another rank's. */
static const char *name_of_rank(struct arena *a, const char *other, uint64_t rank)
{
    static const char before[] = "pp_rank_";
    const char *at = strstr(other, before) + strlen(before);
    return arena_printf(a, "%.*s%" PRIu64 "%s", (int)(at - other), other, rank,
                        at + strspn(at, "0123456789"));
}

static enum status check_files(struct zero_read *z, const struct ds_file *files, size_t count,
                               struct error *err)
{
    uint64_t missing = 0;
    while (missing < count && files[missing].dp == missing)
        missing++;
    if (missing < z->num_ranks && (missing < count || count < z->num_ranks)) {
        const char *name = name_of_rank(&z->c->arena, files[0].name, missing);
        if (missing < count && files[missing].dp < missing)
            return fail(err, ERR_CORRUPT, "%s: two files of rank %" PRIu64 ", such as %s",
                        z->folder, files[missing].dp, files[missing].name);
        return fail(err, ERR_CORRUPT,
                    "%s: %s is missing (%zu of %" PRIu64 " files exist): it held %s", z->folder,
                    name, count, z->num_ranks, parameters_of_rank(z, missing));
    }
    if (count == z->num_ranks) return OK;
    return fail(err, ERR_CORRUPT,
                "%s: %zu files of optimizer states, but partition_count is %" PRIu64
                ": files of several runs, or an incomplete save",
                z->folder, count, z->num_ranks);
}

/* ---- vectors ---- */

static enum status add_vector(struct rank_file *f, const struct value *v, const char *key,
                              size_t segment, size_t state, struct error *err)
{
    struct zero_read *z = f->z;
    struct stored *s = &z->c->catalog.stored;
    const char *name = arena_printf(&z->c->arena, "%s/%s", f->file->name, key);
    TRY(torch_add_tensor(&f->t, s, name, v, err));
    *stored_of(z, f->file->dp, segment, state) = s->num_tensors;
    z->c->training.optimizer.size_bytes += stored_tensor_bytes(&s->tensors[s->num_tensors - 1]);
    return OK;
}

static enum status add_masters(struct rank_file *f, struct error *err)
{
    struct zero_read *z = f->z;
    if (f->masters->count != z->num_segments)
        return fail(err, ERR_CORRUPT, "%u %ss of master weights, but other files have %zu",
                    f->masters->count, segment_noun(z), z->num_segments);
    for (size_t g = 0; g < z->num_segments; g++) {
        const struct value *v = f->masters->items[g];
        if (v->kind != VALUE_TENSOR || v->tensor->num_dims != 1)
            return fail(err, ERR_CORRUPT, "master weights of %s %zu are not a vector",
                        segment_noun(z), g);
        TRY(add_vector(
            f, v,
            arena_printf(&z->c->arena, "%s.%zu",
                         z->stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups", g),
            g, 0, err));
    }
    return OK;
}

/* The number of an optimizer state, or SIZE_MAX. */
static size_t find_state(struct zero_read *z, const char *state)
{
    for (size_t i = 1; i < z->num_states; i++)
        if (strcmp(z->states[i], state) == 0) return i;
    if (z->num_states == MAX_STATES || !state_is_valid(state) || strcmp(state, master_state) == 0)
        return SIZE_MAX;
    z->states[z->num_states] = arena_copy_text(&z->c->arena, state);
    return z->num_states++;
}

static enum status add_zero_state(struct rank_file *f, size_t segment, const char *key,
                                  const struct value *v, struct error *err)
{
    struct zero_read *z = f->z;
    const uint64_t masters = length_of(z, f->file->dp, segment, 0);
    const char *noun = segment_noun(z);
    if (v->kind != VALUE_TENSOR || !v->tensor->num_dims) return OK; /* of the whole group */
    const size_t state = find_state(z, key);
    if (state == SIZE_MAX)
        states_unread(z->c, "%s: %s of %s %zu: invalid state name, or too many states",
                      f->file->name, key, noun, segment);
    else if (v->tensor->num_dims != 1 || v->tensor->shape[0] < masters)
        states_unread(z->c,
                      "%s: %s of %s %zu has shape %s, expected a vector of at least %" PRIu64
                      " elements",
                      f->file->name, key, noun, segment,
                      shape_text(&z->c->arena, v->tensor->num_dims, v->tensor->shape), masters);
    else
        return add_vector(f, v, arena_printf(&z->c->arena, "state.%zu.%s", segment, key), segment,
                          state, err);
    return OK;
}

/* The dict of a segment's states; NULL: none. */
static const struct value *states_of(const struct rank_file *f, size_t segment)
{
    struct value *const *items;
    if (segment < ds_list(f->base, &items)) return items[segment];
    return ds_get_int(value_get(f->base, "state"), (int64_t)segment);
}

static enum status add_segment_states(struct rank_file *f, size_t segment, struct error *err)
{
    struct zero_read *z = f->z;
    const struct value *dict = states_of(f, segment), *step = value_get(dict, "step");
    struct ds_number *to = &z->steps[f->file->dp * z->num_segments + segment];
    if (!step) step = value_get(f->optimizer, "base_optimizer_state_step");
    TRY(ds_number_of(&f->t, &z->c->catalog.stored, step,
                     arena_printf(&z->c->arena, "%s/state.%zu.step", f->file->name, segment), to,
                     err));
    if (!dict || dict->kind != VALUE_DICT) return OK;
    for (uint32_t i = 0; i < dict->count; i++) {
        const char *key = value_as_text(dict->items[2 * i]);
        if (!key || strcmp(key, "step") == 0) continue;
        TRY(add_zero_state(f, segment, key, dict->items[2 * i + 1], err));
    }
    return OK;
}

/* ---- what files must agree in ---- */

/* The rank's run of a parameter, as the mappings should have it; false:
 * none. */
static bool run_of_rank(const struct zero_read *z, uint64_t rank, const struct ds_param *p,
                        uint64_t *start, uint64_t *numel)
{
    const uint64_t part = z->part[p->segment], from = rank * part;
    const uint64_t begin = max_u64(p->begin, from), end = min_u64(p->begin + p->numel, from + part);
    if (begin >= end) return false;
    *start = begin - from;
    *numel = end - begin;
    return true;
}

static bool mapping_is(const struct zero_read *z, uint64_t rank, size_t segment,
                       const struct value *key, const struct value *address)
{
    const char *name = value_as_text(key);
    uint64_t start, numel, start_here, numel_here;
    size_t i;
    if (!name || !map_get(&z->params->names, name, &i)) return false;
    const struct ds_param *p = &z->params->items[i];
    return p->segment == segment && run_of_rank(z, rank, p, &start, &numel) &&
           ds_as_count(value_get(address, "start"), &start_here) && start_here == start &&
           ds_as_count(value_get(address, "numel"), &numel_here) && numel_here == numel;
}

/* Whether param_slice_mappings agrees with param_shapes. */
static bool mappings_agree(const struct rank_file *f)
{
    const struct zero_read *z = f->z;
    struct value *const *dicts;
    const uint32_t n = ds_list(value_get(f->optimizer, "param_slice_mappings"), &dicts);
    for (size_t g = 0; g < n && g < z->num_segments; g++)
        for (uint32_t i = 0; dicts[g]->kind == VALUE_DICT && i < dicts[g]->count; i++)
            if (!mapping_is(z, f->file->dp, g, dicts[g]->items[2 * i], dicts[g]->items[2 * i + 1]))
                return false;
    return true;
}

static void compare_version(struct rank_file *f)
{
    struct zero_read *z = f->z;
    const char *version = value_as_text(value_get(f->t.root, "ds_version"));
    if (!version) version = value_as_text(value_get(f->optimizer, "ds_version"));
    if (!version) return;
    if (!z->version) z->version = arena_copy_text(&z->c->arena, version);
    if (strcmp(version, z->version) && !z->other_versions++)
        z->first_other_version = arena_printf(&z->c->arena, "%s by %s", f->file->name, version);
}

/* Checks that ranks have equal parts of a group, except at its end. */
static enum status check_length(const struct zero_read *z, uint64_t rank, size_t segment,
                                struct error *err)
{
    const uint64_t length = length_of(z, rank, segment, 0), first = z->part[segment],
                   before = rank ? length_of(z, rank - 1, segment, 0) : first;
    if (z->stage == 3 ? length == first : length <= before && (!length || before == first))
        return OK;
    return fail(err, ERR_CORRUPT,
                "%s: %s %zu: %" PRIu64 " elements of rank %" PRIu64 ", and %" PRIu64
                " of the rank before it",
                z->folder, segment_noun(z), segment, length, rank, before);
}

/* ---- groups ---- */

static bool is_of_experts(const struct value *group)
{
    bool moe;
    return value_as_bool(value_get(group, "moe"), &moe) && moe;
}

/* Copies the groups' dicts, and finds each segment's group. */
static enum status keep_groups(struct rank_file *f, struct error *err)
{
    struct zero_read *z = f->z;
    struct value *const *groups, *const *members;
    const uint32_t n = ds_list(value_get(f->base, "param_groups"), &groups);
    z->group_of = arena_array(&z->c->arena, z->num_segments, sizeof *z->group_of);
    z->groups = arena_array(&z->c->arena, max_u64(n, 1), sizeof *z->groups);
    for (size_t s = 0; s < z->num_segments; s++)
        z->group_of[s] = !n ? 0 : z->stage != 3 && s < n ? s : SIZE_MAX;
    if (n > MAX_PARAM_GROUPS)
        return fail(err, ERR_CORRUPT, "more than %d parameter groups", MAX_PARAM_GROUPS);
    for (uint32_t g = 0; g < n; g++) {
        struct value *copy;
        if (is_of_experts(groups[g]))
            return fail(err, ERR_UNSUPPORTED, "group %u: experts (moe) are not supported", g);
        TRY(value_copy(&z->c->arena, groups[g], &copy, err));
        z->groups[g] = copy;
        for (uint32_t i = 0, m = ds_list(value_get(groups[g], "params"), &members); i < m; i++) {
            uint64_t segment;
            if (ds_as_count(members[i], &segment) && segment < z->num_segments)
                z->group_of[segment] = g;
        }
    }
    z->num_groups = max_u64(n, 1);
    return OK;
}

/* ---- all files ---- */

void ds_read_loss_scale(struct checkpoint *c, const struct value *scaler, bool dynamic)
{
    struct training *run = &c->training.run;
    uint64_t at, window, hysteresis;
    int64_t last;
    double scale;
    if (!value_as_float(value_get(scaler, "cur_scale"), &scale)) return;
    if (!dynamic && !(scale > 1)) return; /* no scaling */
    run->loss_scale = scale;
    if (!dynamic) return;
    if (ds_as_count(value_get(scaler, "cur_iter"), &at) &&
        value_as_int(value_get(scaler, "last_overflow_iter"), &last) && last < (int64_t)at &&
        ds_as_count(value_get(scaler, "scale_window"), &window) && window)
        run->growth_tracker = (uint64_t)((int64_t)at - last - 1) % window;
    if (ds_as_count(value_get(scaler, "cur_hysteresis"), &hysteresis))
        run->hysteresis_tracker = hysteresis;
}

/* Sets from the first file the number of ranks and all that files share. */
static enum status read_first(struct rank_file *f, const struct ds_file *files, size_t count,
                              struct error *err)
{
    struct zero_read *z = f->z;
    struct arena *a = &z->c->arena;
    bool dynamic = false;
    uint64_t num_ranks = 0;
    TRY(read_partition_count(f, count, &num_ranks, err));
    if (f->masters->count > MAX_SEGMENTS)
        return fail(err, ERR_CORRUPT, "%u %ss", f->masters->count, segment_noun(z));
    z->num_ranks = num_ranks;
    z->num_segments = f->masters->count;
    z->part = arena_array(a, z->num_segments, sizeof *z->part);
    for (size_t g = 0; g < z->num_segments; g++) {
        const struct value *v = f->masters->items[g];
        if (v->kind == VALUE_TENSOR && v->tensor->num_dims == 1) z->part[g] = v->tensor->shape[0];
    }
    if (z->stage == 3)
        TRY(place_in_sub_groups(z, err));
    else
        TRY(place_in_groups(z, value_get(f->optimizer, "param_alignment_paddings"), err));
    TRY(check_files(z, files, count, err));
    z->states[z->num_states++] = master_state;
    z->stored = arena_array(a, num_ranks * z->num_segments, MAX_STATES * sizeof *z->stored);
    z->steps = arena_array(a, num_ranks * z->num_segments, sizeof *z->steps);
    (void)value_as_bool(value_get(f->optimizer, "dynamic_loss_scale"), &dynamic);
    ds_read_loss_scale(z->c, value_get(f->optimizer, "loss_scaler"), dynamic);
    return keep_groups(f, err);
}

static enum status read_parts(struct rank_file *f, const struct ds_file *files, size_t count,
                              struct error *err)
{
    struct zero_read *z = f->z;
    TRY(find_parts(f, err));
    if (!z->num_ranks) TRY(read_first(f, files, count, err));
    compare_version(f);
    TRY(add_masters(f, err));
    for (size_t g = 0; g < z->num_segments; g++) {
        TRY(check_length(z, f->file->dp, g, err));
        TRY(add_segment_states(f, g, err));
    }
    if (z->stage != 3 && !mappings_agree(f)) z->other_mappings++;
    return OK;
}

static enum status read_rank_file(struct zero_read *z, const struct ds_file *file,
                                  const struct ds_file *files, size_t count, struct error *err)
{
    struct rank_file f = {.z = z, .file = file};
    const char *path = path_join(&z->c->arena, z->folder, file->name);
    TRY(torch_open(&f.t, &z->c->catalog.stored, path, 0, UINT64_MAX, err));
    enum status st = torch_check_name(&f.t, err);
    if (!st) st = read_parts(&f, files, count, err);
    if (st && !text_starts_with(err->text, z->folder)) st = fail_in(err, "%s", path);
    torch_close(&f.t);
    return st;
}

/* Checks that a group's parts sum to what its parameters need. */
static enum status check_sum(const struct zero_read *z, size_t g, struct error *err)
{
    uint64_t sum = 0;
    const uint64_t need = end_of_group(z, g);
    for (uint64_t r = 0; r < z->num_ranks; r++)
        sum += length_of(z, r, g, 0);
    if (sum == need || (sum > need && zero_padded(need, z->num_ranks) == sum)) return OK;
    return fail(err, ERR_CORRUPT,
                "%s: group %zu: parameters need %" PRIu64 " elements, files hold %" PRIu64,
                z->folder, g, need, sum);
}

enum status zero_read_files(struct zero_read *z, const struct ds_file *files, size_t count,
                            struct error *err)
{
    for (size_t i = 0; i < count; i++)
        TRY(read_rank_file(z, &files[i], files, count, err));
    for (size_t g = 0; g < z->num_segments && z->stage != 3; g++)
        TRY(check_sum(z, g, err));
    if (z->other_versions)
        checkpoint_note(z->c, "%s: files of different DeepSpeed versions: %s, the first by %s",
                        z->folder, z->first_other_version, z->version);
    if (z->other_mappings)
        checkpoint_note(
            z->c,
            "%s: param_slice_mappings disagree with param_shapes, as after round_robin_gradients: "
            "param_shapes are used, and weights are compared with their masters",
            z->folder);
    return OK;
}

/* ---- native tensors ---- */

/* DeepSpeed's Muon has hidden matrices, AdamW the other groups. */
static bool is_of_muon(const struct zero_read *z, size_t segment)
{
    bool muon = false;
    const size_t g = z->group_of[segment];
    return g < z->num_groups && value_as_bool(value_get(z->groups[g], "use_muon"), &muon) && muon;
}

static bool segment_has(const struct zero_read *z, size_t segment, size_t state)
{
    for (uint64_t r = 0; r < z->num_ranks; r++)
        if (*stored_of(z, r, segment, state)) return true;
    return false;
}

/* Whether a group of the segment's optimizer has the state. */
static bool optimizer_has(const struct zero_read *z, size_t segment, size_t state)
{
    for (size_t s = 0; s < z->num_segments; s++)
        if (is_of_muon(z, s) == is_of_muon(z, segment) && segment_has(z, s, state)) return true;
    return false;
}

static bool segment_has_any(const struct zero_read *z, size_t segment)
{
    for (size_t state = 1; state < z->num_states; state++)
        if (segment_has(z, segment, state)) return true;
    return false;
}

/* Whether every rank with elements of the segment has the state, as its
 * optimizer should; records why not. */
static bool state_is_whole(struct zero_read *z, size_t segment, size_t state)
{
    if (!optimizer_has(z, segment, state) && segment_has_any(z, segment)) return false;
    for (uint64_t r = 0; r < z->num_ranks; r++) {
        if (*stored_of(z, r, segment, state) || !length_of(z, r, segment, 0)) continue;
        states_unread(z->c, "rank %" PRIu64 " has no %s of %s %zu", r, z->states[state],
                      segment_noun(z), segment);
        return false;
    }
    return true;
}

/* ---- Muon's momentum ---- */

/* Finds parameters in the momentum of a group of Muon.
 *
 * - Masters are cut evenly.
 * - Momentum is not: a rank has each parameter that its part of the masters
 *   touches, whole, one behind the other
 *   (runtime/zero/stage_1_and_2.py). */
static void place_momentum(struct zero_read *z, size_t segment, size_t state)
{
    const uint64_t part = z->part[segment];
    uint64_t *ends = arena_array(&z->c->arena, z->num_ranks, sizeof *ends);
    for (size_t i = 0; i < z->params->count; i++) {
        struct ds_param *p = &z->params->items[i];
        const uint64_t first = p->segment == segment && part ? p->begin / part : z->num_ranks;
        uint64_t start, numel;
        if (first < z->num_ranks) p->whole_at = ends[first];
        for (uint64_t r = first; r < z->num_ranks && run_of_rank(z, r, p, &start, &numel); r++)
            ends[r] += p->numel;
    }
    for (uint64_t r = 0; r < z->num_ranks; r++)
        if (length_of(z, r, segment, state) != ends[r])
            states_unread(z->c,
                          "%s of rank %" PRIu64 ", group %zu, has %" PRIu64
                          " elements, but the parameters that the rank has a part of need %" PRIu64,
                          z->states[state], r, segment, length_of(z, r, segment, state), ends[r]);
}

/* Context of place_shared(). */
struct placing {
    struct catalog *all;
    struct native_tensor *native;
    size_t stored;
};

static enum status place_shared(void *context, const struct pair *pair, struct error *err)
{
    const struct placing *x = context;
    return catalog_add_native_part(x->all, x->native, &x->all->stored.tensors[x->stored], pair,
                                   err);
}

enum status zero_place_run(struct catalog *all, struct native_tensor *native, size_t stored,
                           const struct pair *piece, const struct pair *run, const char *name,
                           struct error *err)
{
    struct placing x = {all, native, stored};
    return pair_join_nested(piece, run, name, place_shared, &x, err);
}

/* The native tensor of a parameter's state (NULL: its weight), from vectors of
 * state `number`. */
struct adding {
    struct zero_read *z;
    const struct ds_param *p;
    const char *state;
    size_t number;
    enum dtype dtype;
    struct native_tensor *native; /* NULL: left to z->add_run */
};

static enum status add_vector_run(const struct adding *x, uint64_t rank, uint64_t a, uint64_t b,
                                  uint64_t count, struct error *err)
{
    struct zero_read *z = x->z;
    const size_t at = *stored_of(z, rank, x->p->segment, x->number) - 1;
    const struct pair run = pair_whole(a, b, count);
    if (!x->native) return z->add_run(z->context, x->p, x->state, x->dtype, at, &run, err);
    return catalog_add_native_part(&z->c->catalog, x->native, &z->c->catalog.stored.tensors[at],
                                   &run, err);
}

static enum status add_runs(const struct adding *x, struct error *err)
{
    const struct zero_read *z = x->z;
    const struct ds_param *p = x->p;
    if (z->stage == 3) {
        const uint64_t part = zero3_part(p->numel, z->num_ranks);
        for (uint64_t r = 0; r < z->num_ranks && r * part < p->numel; r++)
            TRY(add_vector_run(x, r, r * part, p->begin, min_u64(part, p->numel - r * part), err));
        return OK;
    }
    const uint64_t part = z->part[p->segment];
    if (x->number && is_of_muon(z, p->segment))
        return part ? add_vector_run(x, p->begin / part, 0, p->whole_at, p->numel, err) : OK;
    for (uint64_t r = part ? p->begin / part : z->num_ranks; r < z->num_ranks; r++) {
        uint64_t start, numel;
        if (!run_of_rank(z, r, p, &start, &numel)) break;
        TRY(add_vector_run(x, r, r * part + start - p->begin, start, numel, err));
    }
    return OK;
}

static enum status add_zero_native(struct zero_read *z, const struct ds_param *p, const char *state,
                                   size_t number, enum dtype dtype, struct error *err)
{
    struct adding x = {z, p, state, number, dtype, NULL};
    if (!z->add_run)
        TRY(catalog_add_native(&z->c->catalog, p->native_name, state, dtype, p->num_dims, p->shape,
                               &x.native, err));
    return add_runs(&x, err);
}

static enum dtype dtype_of_state(const struct zero_read *z, const struct ds_param *p, size_t state)
{
    for (uint64_t r = 0; r < z->num_ranks; r++) {
        const size_t at = *stored_of(z, r, p->segment, state);
        if (at) return z->c->catalog.stored.tensors[at - 1].dtype;
    }
    return DT_F32;
}

/* whole: [num_segments][MAX_STATES] */
static enum status add_param_tensors(struct zero_read *z, const struct ds_param *p,
                                     const bool *all_whole, struct error *err)
{
    const bool of_master = !z->only_states, *whole = all_whole + p->segment * MAX_STATES;
    if (of_master) TRY(add_zero_native(z, p, NULL, 0, p->dtype, err));
    for (size_t s = 0; s < z->num_states; s++) {
        const enum dtype dtype = dtype_of_state(z, p, s);
        if (!whole[s] || (s == 0 && of_master && dtype == p->dtype)) continue;
        TRY(add_zero_native(z, p, z->states[s], s, dtype, err));
    }
    return OK;
}

static const double *segment_step(const struct zero_read *z, uint64_t rank, size_t segment)
{
    return &z->steps[rank * z->num_segments + segment].value;
}

static enum status check_steps(const struct zero_read *z, struct error *err)
{
    for (size_t g = 0; g < z->num_segments; g++)
        for (uint64_t r = 1; r < z->num_ranks; r++) {
            const double here = *segment_step(z, r, g), first = *segment_step(z, 0, g);
            if ((isnan(here) && isnan(first)) || !(here < first || here > first)) continue;
            return fail(err, ERR_CORRUPT,
                        "%s: rank %" PRIu64 " has made %.0f steps in %s %zu, rank 0 %.0f: files of "
                        "different saves",
                        z->folder, r, here, segment_noun(z), g, first);
        }
    return OK;
}

enum status zero_read_finish(struct zero_read *z, struct error *err)
{
    bool *whole = arena_array(&z->c->arena, z->num_segments * MAX_STATES, sizeof *whole);
    TRY(ds_numbers_read(&z->c->catalog.stored, z->steps, z->num_ranks * z->num_segments, err));
    TRY(check_steps(z, err));
    for (size_t g = 0; g < z->num_segments; g++)
        for (size_t s = 0; s < z->num_states; s++) {
            bool *is_whole = &whole[g * MAX_STATES + s];
            *is_whole = s == 0 || state_is_whole(z, g, s);
            if (!s || !*is_whole || !is_of_muon(z, g)) continue;
            if (z->stage == 3)
                states_unread(z->c, "Muon's states of ZeRO stage 3 are not read");
            else
                place_momentum(z, g, s);
            *is_whole = !z->c->training.optimizer.unread;
        }
    for (size_t i = 0; i < z->params->count; i++)
        TRY(add_param_tensors(z, &z->params->items[i], whole, err));
    return OK;
}

static void add_params_of_group(const struct zero_read *z, size_t g)
{
    for (size_t i = 0; i < z->params->count; i++) {
        const struct ds_param *p = &z->params->items[i];
        if (z->group_of[p->segment] == g)
            torch_groups_add_param(z->c, p->native_name, *segment_step(z, 0, p->segment));
    }
}

enum status zero_read_add_groups(const struct zero_read *all, size_t count, size_t tp,
                                 struct error *err)
{
    struct training *run = &all[0].c->training.run;
    bool muon;
    for (size_t g = 0; g < all[0].num_groups; g++) {
        TRY(torch_groups_add(all[0].c, all[0].groups[g], NULL, NULL, err));
        if (value_as_bool(value_get(all[0].groups[g], "use_muon"), &muon)) {
            run->optimizer = "muon";
            run->groups[run->num_groups - 1].optimizer = muon ? "muon" : "adam";
        }
        for (size_t i = 0; i < count; i += tp)
            add_params_of_group(&all[i], g);
    }
    return OK;
}
