#include "convert/deepspeed/plain_optimizer.h"
#include "formats/pickle.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "convert/deepspeed/ds_values.h"
#include "convert/deepspeed/zero_read.h"
#include "convert/numbered.h"
#include "convert/states.h"
#include "convert/torch_groups.h"

struct plain {
    struct checkpoint *c;
    struct torch_file *t;
    const char *file;
    const struct value *state, *buffers;
    const struct value *masters; /* lists of masters, one per group; NULL: weights are their own */
    const char **names;          /* possible parameters, in the model's order */
    size_t num_names, names_capacity;
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
    (void)tensor, (void)err;
    if (native && !is_buffer(x->buffers, path))
        *ARENA_PUSH(&x->c->arena, x->names, x->num_names, x->names_capacity) = native->name;
    return OK;
}

/* A parameter's kind by the shape of a state; 0: it has none. */
static size_t kind_of_states(struct shape_kinds *kinds, const struct value *states)
{
    for (uint32_t k = 0; states && states->kind == VALUE_DICT && k < states->count; k++) {
        const struct value *v = states->items[2 * k + 1];
        if (v->kind == VALUE_TENSOR && v->tensor->num_dims)
            return shape_kind(kinds, v->tensor->num_dims, v->tensor->shape);
    }
    return 0;
}

/* Sets the names of the groups' numbers, in their order; returns why that is
 * impossible, NULL: it is not. */
static const char *name_numbers(struct plain *x, struct value *const *groups, uint32_t num_groups,
                                const char ***names)
{
    struct arena *a = &x->c->arena;
    struct shape_kinds kinds = {.arena = a};
    struct value *const *params;
    size_t count = 0, total = 0;
    for (uint32_t g = 0; g < num_groups; g++)
        total += ds_list(value_get(groups[g], "params"), &params);
    struct numbered *numbers = arena_array(a, total + 1, sizeof *numbers);
    size_t *of_params = arena_array(a, x->num_names + 1, sizeof *of_params),
           *param_of = arena_array(a, total + 1, sizeof *param_of);
    *names = arena_array(a, total + 1, sizeof **names);
    for (uint32_t g = 0; g < num_groups; g++)
        for (uint32_t i = 0, n = ds_list(value_get(groups[g], "params"), &params); i < n; i++) {
            int64_t number = -1;
            (void)value_as_int(params[i], &number);
            numbers[count++] =
                (struct numbered){g, kind_of_states(&kinds, ds_get_int(x->state, number))};
        }
    for (size_t i = 0; i < x->num_names; i++) {
        const struct native_tensor *native = catalog_find_native(&x->c->catalog, x->names[i], NULL);
        of_params[i] = shape_kind(&kinds, native->num_dims, native->shape);
    }
    const char *why = numbered_assign(a, of_params, x->num_names, numbers, total, param_of);
    for (size_t i = 0; i < total && !why; i++)
        (*names)[i] = x->names[param_of[i]];
    shape_kinds_release(&kinds);
    return why;
}

/* Adds a parameter's tensor of a state, under a name of its own in the file. */
static enum status add_plain_state(struct plain *x, const char *name, const char *state,
                                   const char *stored_name, const struct value *v,
                                   struct error *err)
{
    struct checkpoint *c = x->c;
    struct stored *s = &c->catalog.stored;
    TRY(torch_add_tensor(x->t, s, stored_name, v, err));
    const struct stored_tensor *stored = &s->tensors[s->num_tensors - 1];
    c->training.optimizer.size_bytes += stored_tensor_bytes(stored);
    return catalog_native_stored(&c->catalog, name, state, stored, err);
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
        if (!state_is_valid(state) || catalog_find_native(&c->catalog, name, state)) {
            states_unread(c, "%s of %s: invalid state name", state, name);
            continue;
        }
        TRY(add_plain_state(
            x, name, arena_copy_text(&c->arena, state),
            arena_printf(&c->arena, "%s/state.%" PRId64 ".%s", x->file, number, state), v, err));
    }
    return OK;
}

/* Adds the masters of group g, whose parameters have these names. */
static enum status add_masters(struct plain *x, uint32_t g, const char *const *names,
                               uint32_t count, struct error *err)
{
    struct value *const *groups, *const *masters;
    const uint32_t n = ds_list(x->masters, &groups);
    const uint32_t listed = g < n ? ds_list(groups[g], &masters) : 0;
    if (listed != count) {
        states_unread(x->c,
                      "%s: group %" PRIu32 " has %" PRIu32 " parameters, but %" PRIu32
                      " masters in fp32_groups",
                      x->file, g, count, listed);
        return OK;
    }
    for (uint32_t i = 0; i < count; i++) {
        const char *stored =
            arena_printf(&x->c->arena, "%s/fp32_groups.%" PRIu32 ".%" PRIu32, x->file, g, i);
        if (masters[i]->kind != VALUE_TENSOR)
            return fail(err, ERR_CORRUPT, "%s is not a tensor", stored);
        TRY(add_plain_state(x, names[i], master_state, stored, masters[i], err));
    }
    return OK;
}

/* names: of the group's parameters. */
static enum status add_plain_group(struct plain *x, const struct value *group,
                                   const char *const *names, struct error *err)
{
    struct value *const *params, *copy;
    int64_t number;
    TRY(value_copy(&x->c->arena, group, &copy, err));
    TRY(torch_groups_add(x->c, copy, NULL, NULL, err));
    for (uint32_t i = 0, n = ds_list(value_get(group, "params"), &params); i < n; i++) {
        if (!value_as_int(params[i], &number))
            return fail(err, ERR_CORRUPT, "param_groups: a parameter is not a number");
        torch_groups_add_param(x->c, names[i], NAN);
        TRY(add_plain_states(x, names[i], number, ds_get_int(x->state, number), err));
    }
    return OK;
}

/* Reads all steps, which are in tensors, at once. */
static enum status set_steps(struct plain *x, struct error *err)
{
    size_t at = 0;
    TRY(ds_numbers_read(&x->c->catalog.stored, x->steps, x->num_steps, err));
    for (size_t g = 0; g < x->c->training.run.num_groups; g++) {
        struct torch_group *group = &x->c->training.torch_groups[g];
        for (size_t i = 0; i < group->num_names && at < x->num_steps; i++)
            group->steps[i] = x->steps[at++].value;
    }
    return OK;
}

enum status plain_optimizer_read(struct checkpoint *c, struct torch_file *t, const char *file,
                                 const struct value *module, const struct value *buffers,
                                 const struct value *optimizer, struct error *err)
{
    const struct value *within = value_get(optimizer, "optimizer_state_dict");
    const struct value *adam = within ? within : optimizer;
    struct plain x = {.c = c,
                      .t = t,
                      .file = file,
                      .state = value_get(adam, "state"),
                      .masters = value_get(optimizer, "fp32_groups"),
                      .buffers = buffers};
    struct value *const *groups;
    const uint32_t n = ds_list(value_get(adam, "param_groups"), &groups);
    c->training.optimizer.present = true;
    c->training.optimizer.inferred = x.masters != NULL;
    c->training.optimizer.kind = "DeepSpeed, without ZeRO";
    if (value_get(optimizer, "fp32_groups_flat")) {
        states_unread(c,
                      "%s: masters of FP16_Optimizer (fp32_groups_flat), joined to vectors, are "
                      "not supported",
                      file);
        return OK;
    }
    bool dynamic = false;
    (void)value_as_bool(value_get(optimizer, "dynamic_loss_scale"), &dynamic);
    ds_read_loss_scale(c, optimizer, dynamic);
    if (!n || !x.state || !module) {
        states_unread(c, "%s: its optimizer is not of torch.optim", file);
        return OK;
    }
    TRY(value_walk(module, "", add_param_name, &x, err));
    const char **names, *why = name_numbers(&x, groups, n, &names);
    if (why) {
        states_unread(c, "%s: parameters are numbered, not named: %s", file, why);
        return OK;
    }
    for (uint32_t g = 0; g < n; g++) {
        struct value *const *params;
        const uint32_t count = ds_list(value_get(groups[g], "params"), &params);
        TRY(add_plain_group(&x, groups[g], names, err));
        if (x.masters) TRY(add_masters(&x, g, names, count, err));
        names += count;
    }
    return set_steps(&x, err);
}
