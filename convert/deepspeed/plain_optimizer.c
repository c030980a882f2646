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
    const struct tp_rank *split;
    const struct value *state, *buffers;
    const struct value *masters; /* lists of masters, one per group; NULL: weights are their own */
    struct numbered_param *params; /* possible ones, in the model's order */
    size_t num_params, params_capacity;
    const char **numbered; /* names by number */
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
            (struct numbered_param){native->name, t->num_dims, t->shape};
    return OK;
}

/* Names the groups' numbers; returns why that is impossible, NULL: it is not. */
static const char *name_numbers(struct plain *x, const struct value *groups)
{
    return numbered_names(&x->c->arena, x->state, groups, x->params, x->num_params, &x->numbered);
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
    if (x->split) return tp_add_stored(x->split, name, state, s->num_tensors - 1, err);
    return catalog_native_stored(&c->catalog, name, state, stored, err);
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
        TRY(add_plain_state(
            x, name, arena_copy_text(&c->arena, state),
            arena_printf(&c->arena, "%s/state.%" PRId64 ".%s", x->file, number, state), v, err));
    }
    return OK;
}

/* Adds the masters of group g, one for each of its numbers. */
static enum status add_masters(struct plain *x, uint32_t g, struct value *const *numbers,
                               uint32_t count, struct error *err)
{
    struct value *const *groups, *const *masters;
    const uint32_t n = ds_list(x->masters, &groups);
    const uint32_t listed = g < n ? ds_list(groups[g], &masters) : 0;
    int64_t number = 0;
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
        (void)value_as_int(numbers[i], &number);
        TRY(add_plain_state(x, x->numbered[number], master_state, stored, masters[i], err));
    }
    return OK;
}

static enum status add_plain_group(struct plain *x, const struct value *group, uint32_t g,
                                   struct error *err)
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
    }
    return x->masters ? add_masters(x, g, params, count, err) : OK;
}

/* Reads all steps, which are in tensors, at once. */
static enum status set_steps(struct plain *x, struct error *err)
{
    size_t at = 0;
    TRY(ds_numbers_read(&x->c->catalog.stored, x->steps, x->num_steps, err));
    for (size_t g = 0; g < x->c->training.run.num_groups && adds_groups(x); g++) {
        struct torch_group *group = &x->c->training.torch_groups[g];
        for (size_t i = 0; i < group->num_names && at < x->num_steps; i++)
            group->steps[i] = x->steps[at++].value;
    }
    return OK;
}

enum status plain_optimizer_read(struct checkpoint *c, const struct plain_optimizer *p,
                                 struct error *err)
{
    const struct value *optimizer = p->optimizer,
                       *within = value_get(optimizer, "optimizer_state_dict");
    const struct value *adam = within ? within : optimizer;
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
    if (!n || !x.state || !p->module) {
        states_unread(c, "%s: its optimizer is not of torch.optim", file);
        return OK;
    }
    TRY(value_walk(p->module, "", add_param_name, &x, err));
    const char *why = name_numbers(&x, value_get(adam, "param_groups"));
    if (why) {
        states_unread(c, "%s: parameters are numbered, not named: %s", file, why);
        return OK;
    }
    for (uint32_t g = 0; g < n; g++)
        TRY(add_plain_group(&x, groups[g], g, err));
    return set_steps(&x, err);
}
