#include "convert/deepspeed/plain_optimizer.h"
#include "formats/pickle.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/checked.h"
#include "common/sha256.h"
#include "convert/deepspeed/ds_values.h"
#include "convert/deepspeed/zero_read.h"
#include "convert/numbered.h"
#include "convert/states.h"
#include "convert/torch_groups.h"
#include "kernels/cpu/cast.h"

struct plain {
    struct checkpoint *c;
    struct torch_file *t;
    const char *file;
    const struct tp_rank *split;
    const struct value *state, *buffers;
    const struct value *masters; /* lists of masters, one per group; NULL: weights are their own */
    struct numbered_param *params; /* possible ones, in the model's order */
    size_t num_params, params_capacity;
    const char **numbered; /* names by number */
    size_t *masters_at;    /* [num_params] by number, the stored master plus 1 */
    struct ds_number *steps;
    size_t num_steps, steps_capacity;
};

static bool is_buffer(const struct value *buffers, const char *name)
{
    struct value *const *items;
    for (uint32_t i = 0, n = ds_list(buffers, &items); i < n; i++) {
        const char *text = value_as_text(items[i]);
        if (text && strcmp(text, name) == 0) return true;
    }
    return false;
}

static enum status add_param_name(void *context, const char *path, const struct value *tensor,
                                  struct error *err)
{
    struct plain *x = context;
    const struct native_tensor *native = catalog_find_native(&x->c->catalog, path, NULL);
    const struct value_tensor *t = tensor->tensor;
    (void)err;
    if (native && !is_buffer(x->buffers, path))
        *ARENA_PUSH(&x->c->arena, x->params, x->num_params, x->params_capacity) =
            (struct numbered_param){
                .name = native->name, .num_dims = t->num_dims, .shape = t->shape};
    return OK;
}

/* ---- masters that tell parameters apart ---- */

/* Stores the masters of a group, one for each of its numbers. */
static enum status store_masters(struct plain *x, uint32_t g, const struct value *group,
                                 struct error *err)
{
    struct stored *s = &x->c->catalog.stored;
    struct value *const *groups, *const *masters, *const *numbers;
    const uint32_t count = ds_list(value_get(group, "params"), &numbers);
    const uint32_t listed = g < ds_list(x->masters, &groups) ? ds_list(groups[g], &masters) : 0;
    if (listed != count) {
        states_unread(x->c,
                      "%s: group %" PRIu32 " has %" PRIu32 " parameters, but %" PRIu32
                      " masters in fp32_groups",
                      x->file, g, count, listed);
        return OK;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint64_t number;
        const char *name =
            arena_printf(&x->c->arena, "%s/fp32_groups.%" PRIu32 ".%" PRIu32, x->file, g, i);
        if (masters[i]->kind != VALUE_TENSOR)
            return fail(err, ERR_CORRUPT, "%s is not a tensor", name);
        if (!ds_as_count(numbers[i], &number) || number >= x->num_params) continue;
        TRY(torch_add_tensor(x->t, s, name, masters[i], err));
        x->masters_at[number] = s->num_tensors;
    }
    return OK;
}

/* Elements of a stored tensor that tell parameters apart, cast to dtype, as a
 * digest: the first ones from `from` on. NULL: they do not lie one behind the
 * other. */
static enum status values_of(struct plain *x, struct stored_reader *r, size_t at, uint64_t from,
                             uint64_t numel, enum dtype dtype, const char **out, struct error *err)
{
    enum { MOST = 512 };
    const struct stored_tensor *s = &x->c->catalog.stored.tensors[at];
    const struct stored_piece *piece = s->pieces;
    const uint64_t count = min_u64(numel, MOST), size = dtype_bytes(s->dtype);
    char read[MOST * sizeof(double)], cast[MOST * sizeof(double)], text[SHA256_TEXT];
    uint64_t step = 1;
    *out = NULL;
    for (unsigned d = s->num_dims; d-- > 0 && piece->stride; step *= s->shape[d])
        if (s->shape[d] > 1 && piece->stride[d] != step) return OK;
    if (s->num_pieces != 1 || piece->byte_swapped || !cast_exists(dtype, s->dtype)) return OK;
    TRY(stored_read(r, piece->file, piece->offset_bytes + from * size, read, count * size, err));
    (void)cast_elements(cast, dtype, read, s->dtype, count);
    struct sha256 *sha = sha256_start();
    sha256_add(sha, cast, dtype_run_bytes(dtype, count));
    sha256_finish(sha, text);
    *out = arena_copy_text(&x->c->arena, text);
    return OK;
}

/* The stored tensor of a weight, in this file. */
static size_t stored_weight(const struct plain *x, const char *name)
{
    return x->split ? tp_stored_part(x->split, name)
                    : catalog_find_native(&x->c->catalog, name, NULL)->parts[0].stored;
}

/* Sets what tells parameters of one shape apart; masters[i]: of number i. */
static enum status read_values(struct plain *x, const char **masters, struct error *err)
{
    const struct stored *s = &x->c->catalog.stored;
    struct stored_reader *r = stored_reader_create(s, 4);
    enum status st = OK;
    for (size_t i = 0; i < x->num_params && !st; i++) {
        const size_t at = stored_weight(x, x->params[i].name);
        const enum dtype dtype = s->tensors[at].dtype;
        st =
            values_of(x, r, at, 0, stored_numel(&s->tensors[at]), dtype, &x->params[i].values, err);
        if (!st && x->masters_at[i])
            st =
                values_of(x, r, x->masters_at[i] - 1, 0,
                          stored_numel(&s->tensors[x->masters_at[i] - 1]), dtype, &masters[i], err);
    }
    stored_reader_free(r);
    return st;
}

/* Names the groups' numbers; *why: that is impossible, NULL: it is not. */
static enum status name_numbers(struct plain *x, const struct value *groups, const char **why,
                                struct error *err)
{
    struct arena *a = &x->c->arena;
    const char **masters = arena_array(a, x->num_params + 1, sizeof *masters);
    *why = numbered_names(a, x->state, groups, NULL, x->params, x->num_params, &x->numbered);
    if (!*why || !x->masters) return OK;
    TRY(read_values(x, masters, err));
    *why = numbered_names(a, x->state, groups, masters, x->params, x->num_params, &x->numbered);
    return OK;
}

/* ---- states ---- */

/* Adds a parameter's tensor of a state. */
static enum status add_plain_state(struct plain *x, const char *name, const char *state,
                                   size_t stored, struct error *err)
{
    struct checkpoint *c = x->c;
    const struct stored_tensor *s = &c->catalog.stored.tensors[stored];
    c->training.optimizer.size_bytes += stored_tensor_bytes(s);
    if (x->split) return tp_add_stored(x->split, name, state, stored, err);
    return catalog_native_stored(&c->catalog, name, state, s, err);
}

/* Whether the groups come from this file: of several ranks, from the first. */
static bool adds_groups(const struct plain *x)
{
    return !x->split || !x->split->rank;
}

static enum status add_plain_states(struct plain *x, const char *name, int64_t number,
                                    const struct value *states, struct error *err)
{
    struct checkpoint *c = x->c;
    struct stored *s = &c->catalog.stored;
    struct ds_number *step = ARENA_PUSH(&c->arena, x->steps, x->num_steps, x->steps_capacity);
    TRY(ds_number_of(x->t, s, value_get(states, "step"),
                     arena_printf(&c->arena, "%s/state.%" PRId64 ".step", x->file, number), step,
                     err));
    for (uint32_t k = 0; states && states->kind == VALUE_DICT && k < states->count; k++) {
        const char *state = value_as_text(states->items[2 * k]);
        const struct value *v = states->items[2 * k + 1];
        if (!state || v->kind != VALUE_TENSOR || !v->tensor->num_dims) continue;
        if (!state_is_valid(state) ||
            (adds_groups(x) && catalog_find_native(&c->catalog, name, state))) {
            states_unread(c, "%s of %s: invalid state name", state, name);
            continue;
        }
        TRY(torch_add_tensor(
            x->t, s, arena_printf(&c->arena, "%s/state.%" PRId64 ".%s", x->file, number, state), v,
            err));
        TRY(add_plain_state(x, name, arena_copy_text(&c->arena, state), s->num_tensors - 1, err));
    }
    return OK;
}

static enum status add_plain_group(struct plain *x, const struct value *group, struct error *err)
{
    struct value *const *params, *copy;
    const uint32_t count = ds_list(value_get(group, "params"), &params);
    int64_t number = 0;
    TRY(value_copy(&x->c->arena, group, &copy, err));
    if (adds_groups(x)) TRY(torch_groups_add(x->c, copy, NULL, NULL, err));
    for (uint32_t i = 0; i < count; i++) {
        (void)value_as_int(params[i], &number);
        if (adds_groups(x)) torch_groups_add_param(x->c, x->numbered[number], NAN);
        TRY(add_plain_states(x, x->numbered[number], number, ds_get_int(x->state, number), err));
        if (x->masters_at[number])
            TRY(add_plain_state(x, x->numbered[number], master_state, x->masters_at[number] - 1,
                                err));
    }
    return OK;
}

/* ---- FP16_Optimizer: one vector per group ---- */

/* A group's vectors, and which parameters are runs of them. */
struct flat_group {
    const struct value *group;
    uint64_t numel;
    size_t stored[MAX_STATES]; /* [num_states] stored tensors, the master first */
    const char *states[MAX_STATES];
    size_t num_states;
    uint64_t at; /* end of the last assigned parameter */
};

struct flat_param {
    size_t group; /* SIZE_MAX: of none */
    uint64_t at, numel;
};

static enum status add_flat_vector(struct plain *x, struct flat_group *g, const char *state,
                                   const char *name, const struct value *v, struct error *err)
{
    struct stored *s = &x->c->catalog.stored;
    if (v->kind != VALUE_TENSOR || v->tensor->num_dims != 1 || g->num_states == MAX_STATES ||
        (g->num_states && v->tensor->shape[0] != g->numel) || !state_is_valid(state)) {
        states_unread(x->c, "%s is not a state of all parameters of a group", name);
        return OK;
    }
    g->numel = v->tensor->shape[0];
    TRY(torch_add_tensor(x->t, s, name, v, err));
    x->c->training.optimizer.size_bytes += stored_tensor_bytes(&s->tensors[s->num_tensors - 1]);
    g->states[g->num_states] = state;
    g->stored[g->num_states++] = s->num_tensors - 1;
    return OK;
}

/* Reads the vectors of group i: its master, then the states. */
static enum status read_flat_group(struct plain *x, struct flat_group *g,
                                   const struct value *master, uint32_t i, struct error *err)
{
    struct arena *a = &x->c->arena;
    struct value *const *numbers;
    int64_t number = 0;
    if (ds_list(value_get(g->group, "params"), &numbers)) (void)value_as_int(numbers[0], &number);
    const struct value *states = ds_get_int(x->state, number);
    TRY(add_flat_vector(x, g, master_state,
                        arena_printf(a, "%s/fp32_groups_flat.%" PRIu32, x->file, i), master, err));
    TRY(ds_number_of(x->t, &x->c->catalog.stored, value_get(states, "step"),
                     arena_printf(a, "%s/state.%" PRId64 ".step", x->file, number),
                     ARENA_PUSH(a, x->steps, x->num_steps, x->steps_capacity), err));
    for (uint32_t k = 0; states && states->kind == VALUE_DICT && k < states->count; k++) {
        const char *state = value_as_text(states->items[2 * k]);
        const struct value *v = states->items[2 * k + 1];
        if (!state || v->kind != VALUE_TENSOR || !v->tensor->num_dims) continue;
        TRY(add_flat_vector(x, g, arena_copy_text(a, state),
                            arena_printf(a, "%s/state.%" PRId64 ".%s", x->file, number, state), v,
                            err));
    }
    return OK;
}

/* Finds the group whose next elements are the parameter's weight rounded;
 * `among` counts such groups. */
static enum status find_flat_group(struct plain *x, struct stored_reader *r,
                                   const struct flat_group *groups, size_t count, size_t i,
                                   uint64_t numel, size_t *found, size_t *among, struct error *err)
{
    const struct stored *s = &x->c->catalog.stored;
    const size_t weight = stored_weight(x, x->params[i].name);
    const enum dtype dtype = s->tensors[weight].dtype;
    const char *master;
    *among = 0;
    TRY(values_of(x, r, weight, 0, numel, dtype, &x->params[i].values, err));
    for (size_t g = 0; g < count && x->params[i].values; g++) {
        if (groups[g].numel - groups[g].at < numel) continue;
        TRY(values_of(x, r, groups[g].stored[0], groups[g].at, numel, dtype, &master, err));
        if (!master || strcmp(master, x->params[i].values)) continue;
        *found = g;
        ++*among;
    }
    return OK;
}

/* Why a parameter without a group cannot be told from one with a group; NULL. */
static const char *first_like(const struct plain *x, const struct flat_param *flat, size_t i)
{
    for (size_t k = 0; k < x->num_params; k++)
        if (flat[k].group != SIZE_MAX && flat[k].numel == flat[i].numel && x->params[i].values &&
            strcmp(x->params[k].values, x->params[i].values) == 0)
            return x->params[k].name;
    return NULL;
}

/* Assigns parameters to groups, each of which has the model's order, by the
 * values of masters. States are unread if these do not tell parameters apart. */
static enum status assign_flat(struct plain *x, struct stored_reader *r, struct flat_group *groups,
                               size_t count, struct flat_param *flat, struct error *err)
{
    for (size_t i = 0; i < x->num_params; i++) {
        size_t among = 0, g = 0;
        TRY(find_flat_group(x, r, groups, count, i, flat[i].numel, &g, &among, err));
        if (among > 1)
            states_unread(x->c, "%s: nothing tells which of %zu groups has %s", x->file, among,
                          x->params[i].name);
        if (!among) continue;
        flat[i].group = g;
        flat[i].at = groups[g].at;
        groups[g].at += flat[i].numel;
    }
    for (size_t i = 0; i < x->num_params; i++) {
        const char *like = flat[i].group == SIZE_MAX ? first_like(x, flat, i) : NULL;
        if (like)
            states_unread(x->c, "%s: nothing tells whether %s or %s is trained", x->file,
                          x->params[i].name, like);
    }
    for (size_t g = 0; g < count; g++)
        if (groups[g].at != groups[g].numel)
            states_unread(x->c,
                          "%s: fp32_groups_flat.%zu has %" PRIu64
                          " elements, but weights are known for the first %" PRIu64,
                          x->file, g, groups[g].numel, groups[g].at);
    return OK;
}

/* Adds a parameter's run of the group's vectors. */
static enum status add_flat_states(struct plain *x, const struct flat_group *g, size_t i,
                                   const struct flat_param *flat, struct error *err)
{
    struct catalog *all = &x->c->catalog;
    const struct pair run = pair_whole(0, flat->at, flat->numel);
    const struct ds_param p = {
        .name = x->params[i].name, .num_dims = x->params[i].num_dims, .shape = x->params[i].shape};
    for (size_t k = 0; k < g->num_states; k++) {
        const struct stored_tensor *s = &all->stored.tensors[g->stored[k]];
        struct native_tensor *native;
        if (x->split) {
            struct tp_rank rank = *x->split;
            TRY(tp_add_run(&rank, &p, g->states[k], s->dtype, g->stored[k], &run, err));
            continue;
        }
        TRY(catalog_add_native(all, p.name, g->states[k], s->dtype, p.num_dims, p.shape, &native,
                               err));
        TRY(catalog_add_native_part(all, native, s, &run, err));
    }
    return OK;
}

static enum status add_flat_groups(struct plain *x, const struct flat_group *groups, size_t count,
                                   const struct flat_param *flat, struct error *err)
{
    TRY(ds_numbers_read(&x->c->catalog.stored, x->steps, x->num_steps, err));
    for (size_t g = 0; g < count; g++) {
        struct value *copy;
        TRY(value_copy(&x->c->arena, groups[g].group, &copy, err));
        if (adds_groups(x)) TRY(torch_groups_add(x->c, copy, NULL, NULL, err));
        for (size_t i = 0; i < x->num_params; i++) {
            if (flat[i].group != g) continue;
            if (adds_groups(x)) torch_groups_add_param(x->c, x->params[i].name, x->steps[g].value);
            TRY(add_flat_states(x, &groups[g], i, &flat[i], err));
        }
    }
    return OK;
}

static enum status read_flat(struct plain *x, const struct value *vectors,
                             struct value *const *dicts, uint32_t count, struct error *err)
{
    struct arena *a = &x->c->arena;
    struct flat_group *groups = arena_array(a, count, sizeof *groups);
    struct flat_param *flat = arena_array(a, x->num_params + 1, sizeof *flat);
    struct value *const *masters;
    if (ds_list(vectors, &masters) != count) {
        states_unread(x->c, "%s: fp32_groups_flat has other groups than param_groups", x->file);
        return OK;
    }
    for (uint32_t g = 0; g < count; g++) {
        groups[g].group = dicts[g];
        TRY(read_flat_group(x, &groups[g], masters[g], g, err));
    }
    for (size_t i = 0; i < x->num_params; i++) {
        flat[i].group = SIZE_MAX;
        (void)shape_numel(x->params[i].shape, x->params[i].num_dims, &flat[i].numel);
    }
    if (x->c->training.optimizer.unread) return OK;
    struct stored_reader *r = stored_reader_create(&x->c->catalog.stored, 4);
    enum status st = assign_flat(x, r, groups, count, flat, err);
    stored_reader_free(r);
    if (st || x->c->training.optimizer.unread) return st;
    return add_flat_groups(x, groups, count, flat, err);
}

/* ---- all ---- */

/* DeepSpeed's FusedAdam, which has bias_correction, counts updates of a group in
 * its last parameter alone (ops/adam/fused_adam.py): gives others its number. */
static void share_step(struct checkpoint *c, struct torch_group *group)
{
    double step = 0;
    size_t counted = 0;
    for (size_t i = 0; i < group->num_names; i++) {
        if (!(group->steps[i] > 0)) continue;
        step = group->steps[i];
        counted++;
    }
    if (counted != 1 || group->num_names == 1) return;
    for (size_t i = 0; i < group->num_names; i++)
        if (!isnan(group->steps[i])) group->steps[i] = step;
    checkpoint_note(c, "FusedAdam counts %.0f updates in one of %zu parameters: it is the group's",
                    step, group->num_names);
}

/* Reads all steps, which are in tensors, at once. */
static enum status set_steps(struct plain *x, struct value *const *groups, struct error *err)
{
    size_t at = 0;
    TRY(ds_numbers_read(&x->c->catalog.stored, x->steps, x->num_steps, err));
    for (size_t g = 0; g < x->c->training.run.num_groups && adds_groups(x); g++) {
        struct torch_group *group = &x->c->training.torch_groups[g];
        for (size_t i = 0; i < group->num_names && at < x->num_steps; i++)
            group->steps[i] = x->steps[at++].value;
        if (value_get(groups[g], "bias_correction")) share_step(x->c, group);
    }
    return OK;
}

enum status plain_optimizer_read(struct checkpoint *c, const struct plain_optimizer *p,
                                 struct error *err)
{
    const struct value *optimizer = p->optimizer,
                       *within = value_get(optimizer, "optimizer_state_dict");
    const struct value *adam = within ? within : optimizer;
    const struct value *flat = value_get(optimizer, "fp32_groups_flat");
    const char *file = p->file;
    struct plain x = {.c = c,
                      .t = p->t,
                      .file = file,
                      .split = p->split,
                      .state = value_get(adam, "state"),
                      .masters = value_get(optimizer, "fp32_groups"),
                      .buffers = p->buffers};
    struct value *const *groups;
    const uint32_t n = ds_list(value_get(adam, "param_groups"), &groups);
    c->training.optimizer.present = true;
    c->training.optimizer.inferred = x.masters || flat;
    c->training.optimizer.kind = "DeepSpeed, without ZeRO";
    bool dynamic = false;
    (void)value_as_bool(value_get(optimizer, "dynamic_loss_scale"), &dynamic);
    ds_read_loss_scale(c, optimizer, dynamic);
    if (!n || !x.state || !p->module) {
        states_unread(c, "%s: its optimizer is not of torch.optim", file);
        return OK;
    }
    TRY(value_walk(p->module, "", add_param_name, &x, err));
    if (flat) return read_flat(&x, flat, groups, n, err);
    x.masters_at = arena_array(&c->arena, x.num_params + 1, sizeof *x.masters_at);
    for (uint32_t g = 0; g < n && x.masters; g++)
        TRY(store_masters(&x, g, groups[g], err));
    const char *why;
    TRY(name_numbers(&x, value_get(adam, "param_groups"), &why, err));
    if (why) {
        states_unread(c, "%s: parameters are numbered, not named: %s", file, why);
        return OK;
    }
    for (uint32_t g = 0; g < n; g++)
        TRY(add_plain_group(&x, groups[g], err));
    return set_steps(&x, groups, err);
}
