/* fsdp_states.c - reads optimizer states of FSDP's files, full or per rank:
 *
 *   {"state": {NAME or NUMBER: {"step", "exp_avg", "exp_avg_sq", ...}},
 *    "param_groups": [{"lr", ..., "params": [NAME or NUMBER, ...]}]}
 *
 * FSDP's functions name parameters; a plain optimizer.state_dict() numbers
 * them. step is a number, or a one-element tensor. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/count.h"
#include "convert/fsdp/fsdp_source.h"
#include "convert/numbered.h"
#include "convert/states.h"
#include "convert/torch_groups.h"
#include "formats/dtensor.h"
#include "formats/pickle.h"

/* Bound on a parameter's states: values of a pickle are shared, so many
 * parameters may have the same large dict at no cost. */
enum { MOST_STATES = 2 * MAX_STATES };

/* The steps of parameters. */
struct steps {
    struct map names; /* -> values */
    double *values;
    size_t count, capacity;
};

struct reader {
    struct fsdp_source *x;
    struct torch_file *t;
    size_t rank;
    const char **numbered; /* names by parameter number; NULL: not numbered */
    struct steps steps;
    struct map grouped; /* names listed by groups */
    bool compared;      /* compared a step with an earlier file's */
    /* tensors of this file with steps to read */
    const struct value **tensors;
    const char **of;
    size_t num_tensors, tensors_capacity, of_capacity, num_of;
};

const struct value *fsdp_find_optimizer(const struct value *root)
{
    static const char *const keys[] = {"optim", "optimizer", "optimizer_state_dict",
                                       "optim_state_dict"};
    const struct value *state = value_get(root, "state");
    if (state && state->kind == VALUE_DICT && value_get(root, "param_groups")) return root;
    for (size_t i = 0; i < COUNT(keys); i++) {
        const struct value *below = value_get(root, keys[i]);
        state = value_get(below, "state");
        if (state && state->kind == VALUE_DICT) return below;
    }
    return NULL;
}

static bool is_list(const struct value *v)
{
    return v && (v->kind == VALUE_LIST || v->kind == VALUE_TUPLE);
}

/* ---- names ---- */

/* Whether weights are stored in pieces, so that states are cut anywhere. */
static bool has_pieces(const struct fsdp_join *j)
{
    for (size_t i = 0; i < j->count; i++)
        if (j->items[i].in_pieces && !j->items[i].state) return true;
    return j->flat;
}

static enum status number_params(struct reader *r, const struct value *state,
                                 const struct value *groups, struct error *err)
{
    struct fsdp_source *x = r->x;
    struct arena *a = &x->c->arena;
    const bool pieces = has_pieces(&x->join);
    struct numbered_param *params = arena_array(a, x->num_params + 1, sizeof *params);
    for (size_t i = 0; i < x->num_params; i++) {
        const struct joined *j = fsdp_join_find(&x->join, x->params[i], NULL);
        params[i] = (struct numbered_param){.name = x->params[i]};
        if (!j || pieces) continue;
        params[i].num_dims = j->num_dims;
        params[i].shape = j->shape;
    }
    const char *why = numbered_names(a, state, groups, NULL, params, x->num_params, &r->numbered);
    if (!why) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s: parameters are numbered, not named: %s", r->t->path,
                why);
}

static enum status param_name(struct reader *r, const struct value *key, const char **out,
                              struct error *err)
{
    const char *text = value_as_text(key);
    int64_t number;
    if (text) return wrapper_names_strip(&r->x->names, text, out, err);
    if (!value_as_int(key, &number))
        return fail(err, ERR_CORRUPT,
                    "%s: a key of the optimizer's state is neither a name nor a number",
                    r->t->path);
    if (number < 0 || (uint64_t)number >= r->x->num_params || !r->numbered || !r->numbered[number])
        return fail(err, ERR_CORRUPT, "%s: unknown parameter number %" PRId64 " of %zu", r->t->path,
                    number, r->x->num_params);
    *out = r->numbered[number];
    return OK;
}

/* ---- steps ---- */

/* Sets a parameter's step, which must be equal on all ranks. */
static enum status set_step(struct reader *r, const char *name, double step, struct error *err)
{
    struct steps *s = &r->steps;
    size_t old;
    if (map_add(&s->names, name, s->count, &old)) {
        *ARENA_PUSH(&r->x->c->arena, s->values, s->count, s->capacity) = step;
        return OK;
    }
    if (s->values[old] >= step && s->values[old] <= step) return OK;
    return fail(
        err, ERR_CORRUPT,
        "%s: %s has seen %g updates, but %g in another rank's file: files of different saves",
        r->t->path, name, step, s->values[old]);
}

/* Takes a step; compares one known step per file. */
static enum status take_step(struct reader *r, const char *name, const struct value *v,
                             struct error *err)
{
    double step;
    struct arena *a = &r->t->arena;
    if (map_get(&r->steps.names, name, NULL)) {
        if (r->compared) return OK;
        r->compared = true;
    }
    if (value_as_float(v, &step)) return set_step(r, name, step, err);
    if (v->kind != VALUE_TENSOR) v = value_get(v, "_local_tensor");
    if (!v || v->kind != VALUE_TENSOR) return OK;
    *ARENA_PUSH(a, r->tensors, r->num_tensors, r->tensors_capacity) = v;
    *ARENA_PUSH(a, r->of, r->num_of, r->of_capacity) = name;
    return OK;
}

static enum status read_steps(struct reader *r, struct error *err)
{
    double *numbers = arena_array(&r->t->arena, r->num_tensors + 1, sizeof *numbers);
    if (r->num_tensors)
        TRY(torch_numbers(r->t->path, 0, UINT64_MAX, r->tensors, r->num_tensors, numbers, err));
    for (size_t i = 0; i < r->num_tensors; i++)
        TRY(set_step(r, r->of[i], numbers[i], err));
    r->tensors = NULL;
    r->of = NULL;
    r->num_tensors = r->num_of = r->tensors_capacity = r->of_capacity = 0;
    return OK;
}

/* ---- states ---- */

static bool is_scalar(const struct value *v)
{
    return v->kind == VALUE_TENSOR && v->tensor->num_dims == 0;
}

static enum status read_param(struct reader *r, const char *name, const struct value *states,
                              struct error *err)
{
    struct fsdp_source *x = r->x;
    if (states->kind != VALUE_DICT)
        return fail(err, ERR_CORRUPT, "%s: the state of %s is not a dict", r->t->path, name);
    if (states->count > MOST_STATES)
        return fail(err, ERR_UNSUPPORTED, "%s: %s has %u states, too many", r->t->path, name,
                    states->count);
    for (uint32_t i = 0; i < states->count; i++) {
        const char *state = value_as_text(states->items[2 * i]);
        const struct value *v = states->items[2 * i + 1];
        if (state && strcmp(state, "step") == 0) {
            TRY(take_step(r, name, v, err));
            continue;
        }
        if (!state || !dtensor_matches(v) || is_scalar(v)) continue;
        if (!state_is_valid(state))
            return fail(err, ERR_UNSUPPORTED, "%s: %s has a state with an invalid name", r->t->path,
                        name);
        TRY(fsdp_join_add(&x->join, r->t, r->rank, name, arena_copy_text(&x->c->arena, state), v,
                          err));
    }
    return OK;
}

/* ---- groups ---- */

static bool read_scalar(void *context, const struct value *tensor, double *out)
{
    const struct reader *r = context;
    struct error why;
    return !torch_numbers(r->t->path, 0, UINT64_MAX, &tensor, 1, out, &why);
}

/* Copies a group without its parameters, tensors as their numbers, into the
 * checkpoint's arena. */
static enum status plain_group(struct reader *r, const struct value *group, struct value **out,
                               struct error *err)
{
    struct arena *a = &r->t->arena;
    struct value *plain = value_dict(a);
    double number;
    for (uint32_t i = 0; i < group->count; i++) {
        struct value *key = group->items[2 * i], *v = group->items[2 * i + 1];
        const char *name = value_as_text(key);
        if (!name || strcmp(name, "params") == 0) continue;
        if (v->kind == VALUE_TENSOR) v = read_scalar(r, v, &number) ? value_float(a, number) : NULL;
        if (v) value_dict_put(a, plain, key, v);
    }
    return value_copy(&r->x->c->arena, plain, out, err);
}

static enum status read_group(struct reader *r, const struct value *group, struct error *err)
{
    struct checkpoint *c = r->x->c;
    const struct value *params = value_get(group, "params");
    struct value *native;
    if (group->kind != VALUE_DICT || !is_list(params))
        return fail(err, ERR_CORRUPT, "%s: a group of param_groups lacks params", r->t->path);
    TRY(plain_group(r, group, &native, err));
    TRY(torch_groups_add(c, native, NULL, NULL, err));
    for (uint32_t i = 0; i < params->count; i++) {
        const char *name;
        size_t at;
        TRY(param_name(r, params->items[i], &name, err));
        if (!map_add(&r->grouped, name, 0, NULL))
            return fail(err, ERR_CORRUPT, "%s: the groups list %s twice", r->t->path, name);
        torch_groups_add_param(c, name,
                               map_get(&r->steps.names, name, &at) ? r->steps.values[at] : NAN);
    }
    return OK;
}

static enum status read_groups(struct reader *r, const struct value *groups, struct error *err)
{
    if (!groups) return OK;
    if (!is_list(groups))
        return fail(err, ERR_CORRUPT, "%s: param_groups is not a list", r->t->path);
    for (uint32_t i = 0; i < groups->count; i++)
        TRY(read_group(r, groups->items[i], err));
    return OK;
}

/* ---- files ---- */

static enum status read_optimizer_file(struct reader *r, bool is_last, struct error *err)
{
    int64_t number;
    const struct value *optimizer = fsdp_find_optimizer(r->t->root);
    r->compared = false;
    if (!optimizer)
        return fail(err, ERR_UNSUPPORTED, "%s: it has no optimizer state dict", r->t->path);
    const struct value *state = value_get(optimizer, "state"),
                       *groups = value_get(optimizer, "param_groups");
    if (!r->numbered && state->count && value_as_int(state->items[0], &number))
        TRY(number_params(r, state, groups, err));
    for (uint32_t i = 0; i < state->count; i++) {
        const char *name;
        TRY(param_name(r, state->items[2 * i], &name, err));
        TRY(read_param(r, name, state->items[2 * i + 1], err));
    }
    TRY(read_steps(r, err));
    return is_last ? read_groups(r, groups, err) : OK;
}

/* Reads all files; groups from the last, when all steps are known. */
static enum status read_files(struct reader *r, const struct fsdp_set *set, struct error *err)
{
    size_t last = set->count;
    while (last && !set->paths[last - 1])
        last--;
    for (r->rank = 0; r->rank < last; r->rank++) {
        struct torch_file t;
        if (!set->paths[r->rank]) continue;
        TRY(torch_open(&t, &r->x->c->catalog.stored, set->paths[r->rank], 0, UINT64_MAX, err));
        r->t = &t;
        enum status st = torch_check_name(&t, err);
        if (!st) st = read_optimizer_file(r, r->rank + 1 == last, err);
        torch_close(&t);
        if (st) return st;
    }
    return OK;
}

void fsdp_states_read(struct fsdp_source *x)
{
    struct reader r = {.x = x};
    struct error why;
    struct optimizer_info *o = &x->c->training.optimizer;
    if (!x->files.optimizer.count && x->combined) x->files.optimizer = x->files.weights;
    if (!x->files.optimizer.count) return;
    o->present = true;
    o->kind = x->files.by_rank ? "FSDP, one file per rank" : "FSDP, full";
    if (read_files(&r, &x->files.optimizer, &why)) states_unread(x->c, "%s", why.text);
    o->size_bytes = x->join.state_bytes;
    map_release(&r.steps.names);
    map_release(&r.grouped);
}
