#include "convert/deepspeed/plain_optimizer.h"
#include "formats/pickle.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "convert/deepspeed/ds_values.h"
#include "convert/states.h"
#include "convert/torch_groups.h"

struct plain {
    struct checkpoint *c;
    struct torch_file *t;
    const char *file;
    const struct value *state, *buffers;
    const char **names; /* possible parameters, in the model's order */
    size_t num_names, names_capacity;
    bool *taken; /* [num_names] */
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

static bool has_shape(const struct native_tensor *native, const struct value *v)
{
    return v->kind == VALUE_TENSOR && v->tensor->num_dims == native->num_dims &&
           memcmp(v->tensor->shape, native->shape, native->num_dims * sizeof *native->shape) == 0;
}

/* Whether all states have the shape of the native tensor. */
static bool states_fit(const struct plain *x, const struct native_tensor *native,
                       const struct value *states)
{
    for (uint32_t k = 0; states && states->kind == VALUE_DICT && k < states->count; k++) {
        const struct value *v = states->items[2 * k + 1];
        if (v->kind == VALUE_TENSOR && v->tensor->num_dims && !has_shape(native, v)) return false;
    }
    (void)x;
    return true;
}

/* The name of a group's next parameter: with one group the model's next; with
 * several, the next whose shape its states fit. */
static const char *next_name(struct plain *x, size_t *at, bool alone, const struct value *states)
{
    for (size_t i = *at; i < x->num_names; i++) {
        const struct native_tensor *native = catalog_find_native(&x->c->catalog, x->names[i], NULL);
        if (!x->taken[i] && states_fit(x, native, states)) {
            x->taken[i] = true;
            *at = i + 1;
            return x->names[i];
        }
        if (alone) break;
    }
    return NULL;
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
        TRY(torch_add_tensor(
            x->t, s, arena_printf(&c->arena, "%s/state.%" PRId64 ".%s", x->file, number, state), v,
            err));
        const struct stored_tensor *stored = &s->tensors[s->num_tensors - 1];
        c->training.optimizer.size_bytes += stored_tensor_bytes(stored);
        TRY(catalog_native_stored(&c->catalog, name, arena_copy_text(&c->arena, state), stored,
                                  err));
    }
    return OK;
}

static enum status add_plain_group(struct plain *x, const struct value *group, bool alone,
                                   struct error *err)
{
    struct value *const *params, *copy;
    size_t at = 0;
    int64_t number;
    TRY(value_copy(&x->c->arena, group, &copy, err));
    TRY(torch_groups_add(x->c, copy, NULL, NULL, err));
    for (uint32_t i = 0, n = ds_list(value_get(group, "params"), &params); i < n; i++) {
        if (!value_as_int(params[i], &number))
            return fail(err, ERR_CORRUPT, "param_groups: a parameter is not a number");
        const struct value *states = ds_get_int(x->state, number);
        const char *name = next_name(x, &at, alone, states);
        if (!name) {
            states_unread(
                x->c, "the states of parameter %" PRId64 " fit no parameter in the model's order",
                number);
            return OK;
        }
        torch_groups_add_param(x->c, name, NAN);
        TRY(add_plain_states(x, name, number, states, err));
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
    struct plain x = {
        .c = c, .t = t, .file = file, .state = value_get(optimizer, "state"), .buffers = buffers};
    struct value *const *groups;
    const uint32_t n = ds_list(value_get(optimizer, "param_groups"), &groups);
    c->training.optimizer.present = true;
    c->training.optimizer.kind = "DeepSpeed, without ZeRO";
    if (!n || !x.state || !module) {
        states_unread(c, "%s: its optimizer is not of torch.optim", file);
        return OK;
    }
    TRY(value_walk(module, "", add_param_name, &x, err));
    x.taken = arena_array(&c->arena, x.num_names, sizeof *x.taken);
    for (uint32_t g = 0; g < n; g++)
        TRY(add_plain_group(&x, groups[g], n == 1, err));
    return set_steps(&x, err);
}
