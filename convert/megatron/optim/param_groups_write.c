/* param_groups_write.c - makes Megatron's Python values of the training
 * state. */
#include <math.h>
#include <string.h>

#include "common/count.h"
#include "common/text.h"
#include "convert/megatron/optim/param_groups_internal.h"

/* Megatron's defaults (--adam-beta1 ...) for unknown values. */
static const double default_beta1 = 0.9, default_beta2 = 0.999, default_eps = 1e-8;

static double or_default(double x, double otherwise)
{
    return isfinite(x) ? x : otherwise;
}

/* ---- fields as values ---- */

/* A number of steps: an int if it is whole. */
static struct value *step_value(struct arena *a, double x)
{
    if (x >= 0 && x < 9e15 && !((double)(int64_t)x < x)) return value_int(a, (int64_t)x);
    return value_float(a, x);
}

static struct value *count_value(struct arena *a, uint64_t n)
{
    return n <= INT64_MAX ? value_int(a, (int64_t)n) : value_float(a, (double)n);
}

static struct value *field_value(struct arena *a, const struct field *f, const void *of)
{
    const struct scalar s = field_get(f, of);
    switch (s.kind) {
    case FIELD_UINT:
        return count_value(a, s.number);
    case FIELD_REAL:
        if (!isfinite(s.real)) return value_none(a);
        return text_ends_with(f->name, "_steps") ? step_value(a, s.real) : value_float(a, s.real);
    case FIELD_BOOL:
        return value_bool(a, s.truth);
    case FIELD_TEXT:
        return s.text ? value_text(a, s.text) : value_none(a);
    }
    return value_none(a);
}

static bool is_real(const struct value *v, double x)
{
    double number;
    return value_as_float(v, &number) && number >= x && number <= x;
}

/* Whether v holds the field's value. */
static bool value_holds(const struct value *v, const struct field *f, const void *of)
{
    const struct scalar s = field_get(f, of);
    int64_t integer;
    bool truth;
    switch (s.kind) {
    case FIELD_UINT:
        if (value_as_int(v, &integer)) return integer >= 0 && (uint64_t)integer == s.number;
        return is_real(v, (double)s.number);
    case FIELD_REAL:
        return is_real(v, s.real);
    case FIELD_BOOL:
        return value_as_bool(v, &truth) && truth == s.truth;
    case FIELD_TEXT:
        return text_equal(value_as_text(v), s.text);
    }
    return false;
}

/* ---- what is kept of a source's dict ---- */

enum { MAX_KEPT_DEPTH = 4, MAX_KEPT_VALUES = 1000 };

/* Whether v is plain data: numbers, texts, lists and dicts of such, and torch's
 * dtypes. Class instances are code for the reader, and a tensor's bytes stay
 * behind. */
static bool is_plain_data(const struct value *v, unsigned depth, unsigned *room)
{
    if (depth > MAX_KEPT_DEPTH || !*room) return false;
    --*room;
    switch (v->kind) {
    case VALUE_NONE:
    case VALUE_BOOL:
    case VALUE_INT:
    case VALUE_FLOAT:
    case VALUE_TEXT:
        return true;
    case VALUE_GLOBAL:
        return text_equal(v->global->module, "torch");
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_DICT:
        for (size_t i = 0, n = v->kind == VALUE_DICT ? 2 * (size_t)v->count : v->count; i < n; i++)
            if (!is_plain_data(v->items[i], depth + 1, room)) return false;
        return true;
    default:
        return false;
    }
}

/* Copies plain data without sharing, which a pickle would show. */
static struct value *deep_copy(const struct value *v, struct arena *a)
{
    if (v->kind == VALUE_TEXT) return value_text(a, v->text);
    struct value *out = arena_copy(a, v, sizeof *v);
    if (v->kind == VALUE_DICT) {
        out = value_dict(a);
        for (size_t i = 0; i < v->count; i++)
            value_dict_put(a, out, deep_copy(v->items[2 * i], a),
                           deep_copy(v->items[2 * i + 1], a));
    } else if (v->kind == VALUE_LIST || v->kind == VALUE_TUPLE) {
        out = value_list(a, v->kind, v->count, v->items);
        for (size_t i = 0; i < v->count; i++)
            out->items[i] = deep_copy(v->items[i], a);
    }
    return out;
}

/* Copies a dict's plain values, except key `without`. */
static struct value *plain_copy(const struct value *native, const char *without, struct arena *a)
{
    struct value *out = value_dict(a);
    for (size_t i = 0; i < native->count; i++) {
        const char *key = value_as_text(native->items[2 * i]);
        unsigned room = MAX_KEPT_VALUES;
        if (!key || strcmp(key, "params") == 0 || text_equal(key, without)) continue;
        if (is_plain_data(native->items[2 * i + 1], 0, &room))
            value_dict_set(a, out, key, deep_copy(native->items[2 * i + 1], a));
    }
    return out;
}

/* Sets a field's key, in the dict's spelling, if its value differs. */
static void set_field(struct value *dict, const struct spelt_field *f, const void *of,
                      struct arena *a)
{
    const char *key = spelt_key(f, dict);
    if (key && value_holds(value_get(dict, key), &f->field, of)) return;
    value_dict_set(a, dict, key ? key : f->keys[0], field_value(a, &f->field, of));
}

/* ---- groups ---- */

/* Context for writing groups. */
struct group_writer {
    const struct training *t;
    const struct optimizer_form *form;
    struct arena *arena;
};

static const struct value *native_group(const struct group_writer *w, size_t i)
{
    return w->form->native && i < w->t->num_groups ? w->form->native[i] : NULL;
}

/* Whether a group's optimizer counts steps: Adam's, of those that share a
 * run. */
static bool counts_steps(const struct param_group *g)
{
    return !g->optimizer || strcmp(g->optimizer, "adam") == 0;
}

static bool is_torch_adam(const struct group_writer *w)
{
    const struct value *native = NULL;
    for (size_t i = 0; i < w->t->num_groups && !native; i++)
        if (counts_steps(&w->t->groups[i])) native = native_group(w, i);
    return native ? !value_get(native, "bias_correction") : w->form->torch_adam;
}

/* Whether groups hold the step. PyTorch's optimizers have it beside each
 * parameter; Megatron puts it into groups only for the distributed
 * optimizer. */
static bool step_in_groups(const struct group_writer *w)
{
    return w->form->wrapper == OPTIMIZER_DISTRIBUTED || !is_torch_adam(w);
}

static struct value *pair_value(struct arena *a, double x, double y)
{
    struct value *both[] = {value_float(a, x), value_float(a, y)};
    return value_list(a, VALUE_TUPLE, 2, both);
}

static void add_real(struct value *dict, const char *key, double x, struct arena *a)
{
    if (isfinite(x)) value_dict_add(a, dict, key, value_float(a, x));
}

/* Adds PyTorch AdamW's settings beside betas, eps and weight_decay. */
static void add_torch_settings(struct value *dict, const struct param_group *g, struct arena *a)
{
    value_dict_add(a, dict, "amsgrad", value_bool(a, g->amsgrad));
    value_dict_add(a, dict, "maximize", value_bool(a, false));
    value_dict_add(a, dict, "foreach", value_none(a));
    value_dict_add(a, dict, "capturable", value_bool(a, false));
    value_dict_add(a, dict, "differentiable", value_bool(a, false));
    value_dict_add(a, dict, "fused", value_none(a));
    value_dict_add(a, dict, "decoupled_weight_decay", value_bool(a, g->decoupled_weight_decay));
}

static void add_adam_settings(struct value *dict, const struct param_group *g, bool torch_adam,
                              struct arena *a)
{
    if (!torch_adam) value_dict_add(a, dict, "bias_correction", value_bool(a, true));
    value_dict_add(
        a, dict, "betas",
        pair_value(a, or_default(g->beta1, default_beta1), or_default(g->beta2, default_beta2)));
    value_dict_add(a, dict, "eps", value_float(a, or_default(g->eps, default_eps)));
    add_real(dict, "weight_decay", g->weight_decay, a);
    if (torch_adam) add_torch_settings(dict, g, a);
}

/* Adds settings of Muon or Lion. The run's optimizer is not named
 * (optimizer/__init__.py: ParamGroupOverride). */
static void add_emerging_settings(struct value *dict, const struct training *t,
                                  const struct param_group *g, struct arena *a)
{
    if (!text_equal(g->optimizer, t->optimizer))
        value_dict_add(a, dict, "optimizer", value_text(a, g->optimizer));
    if (isfinite(g->beta1) && isfinite(g->beta2))
        value_dict_add(a, dict, "betas", pair_value(a, g->beta1, g->beta2));
    add_real(dict, "momentum", g->momentum, a);
    add_real(dict, "weight_decay", g->weight_decay, a);
}

/* A new group, in the order of Megatron's keys. */
static struct value *new_group(const struct group_writer *w, const struct param_group *g)
{
    struct arena *a = w->arena;
    struct value *dict = value_dict(a);
    const bool vectors = g->members && text_starts_with(g->members, "vectors");
    value_dict_add(a, dict, "is_expert_parallel", value_bool(a, g->is_expert_parallel));
    value_dict_add(a, dict, "default_config", value_bool(a, !g->is_decoupled_lr));
    value_dict_add(a, dict, "wd_mult", value_float(a, or_default(g->wd_mult, vectors ? 0 : 1)));
    value_dict_add(a, dict, "lr_mult", value_float(a, or_default(g->lr_mult, 1)));
    value_dict_add(a, dict, "is_decoupled_lr", value_bool(a, g->is_decoupled_lr));
    add_real(dict, "max_lr", g->max_lr, a);
    add_real(dict, "min_lr", g->min_lr, a);
    add_real(dict, "lr", g->lr, a);
    if (!counts_steps(g)) {
        add_emerging_settings(dict, w->t, g, a);
    } else if (!isfinite(g->momentum) || isfinite(g->beta1)) {
        if (g->optimizer) value_dict_add(a, dict, "optimizer", value_text(a, g->optimizer));
        add_adam_settings(dict, g, is_torch_adam(w), a);
    } else {
        value_dict_add(a, dict, "momentum", value_float(a, g->momentum));
        value_dict_add(a, dict, "dampening", value_float(a, 0));
        add_real(dict, "weight_decay", g->weight_decay, a);
        value_dict_add(a, dict, "nesterov", value_bool(a, false));
    }
    return dict;
}

static void set_betas(struct value *dict, const struct param_group *g, struct arena *a)
{
    const struct value *old = value_get(dict, "betas");
    if (!isfinite(g->beta1) || !isfinite(g->beta2)) return;
    const bool pair =
        old && (old->kind == VALUE_TUPLE || old->kind == VALUE_LIST) && old->count == 2;
    if (pair && is_real(old->items[0], g->beta1) && is_real(old->items[1], g->beta2)) return;
    value_dict_set(a, dict, "betas", pair_value(a, g->beta1, g->beta2));
}

/* A group read from Megatron, with changed fields. */
static struct value *changed_group(const struct group_writer *w, const struct param_group *g,
                                   const struct value *native)
{
    struct value *dict = plain_copy(native, step_in_groups(w) ? NULL : "step", w->arena);
    for (size_t i = 0; i < num_group_keys; i++) {
        const struct spelt_field *f = &group_keys[i];
        const bool is_step = strcmp(f->field.name, "step") == 0;
        if (is_step || !training_field_given(&f->field, g)) continue;
        if (i < NUM_IDENTIFYING || value_get(native, f->keys[0]) || f->field.kind == FIELD_REAL)
            set_field(dict, f, g, w->arena);
    }
    set_betas(dict, g, w->arena);
    return dict;
}

/* Sets the step, which Megatron wants equal in all groups, even without
 * parameters. Keeps its type. */
static void set_step(const struct group_writer *w, struct value *dict, const struct param_group *g)
{
    const struct value *old = value_get(dict, "step");
    const uint64_t step = w->t->step ? w->t->step : g->step;
    const bool as_float = old ? old->kind == VALUE_FLOAT : is_torch_adam(w);
    if (old && is_real(old, (double)step)) return;
    value_dict_set(w->arena, dict, "step",
                   as_float ? value_float(w->arena, (double)step) : count_value(w->arena, step));
}

static void append_group(const struct group_writer *w, struct value *list, size_t i, bool experts)
{
    const struct value *native = native_group(w, i);
    struct param_group g = w->t->groups[i];
    g.is_expert_parallel = experts;
    struct value *dict = native ? changed_group(w, &g, native) : new_group(w, &g);
    if (step_in_groups(w) && counts_steps(&g)) set_step(w, dict, &g);
    value_append(w->arena, list, dict);
}

/* ---- which groups ---- */

/* Whether the groups of an optimizer (NULL: the only one) include experts'. */
static bool has_expert_groups(const struct training *t, const char *optimizer)
{
    for (size_t i = 0; i < t->num_groups; i++)
        if (t->groups[i].is_expert_parallel && text_equal(t->groups[i].optimizer, optimizer))
            return true;
    return false;
}

/* Whether newly split experts need a group like this one. */
static bool needs_twin(const struct optimizer_form *form, const struct param_group *g)
{
    if (!g->members) return !(g->wd_mult <= 0) || form->expert_vectors;
    if (text_starts_with(g->members, "vectors")) return form->expert_vectors;
    if (g->optimizer && strcmp(g->members, "hidden_matrices")) return false;
    return !text_equal(g->members, "embeddings");
}

/* Whether two groups differ for Megatron only in is_expert_parallel. */
static bool same_identity(const struct param_group *x, const struct param_group *y)
{
    for (size_t i = 0; i < NUM_IDENTIFYING; i++) {
        const struct field *f = &group_keys[i].field;
        if (strcmp(f->name, "is_expert_parallel") && !field_equal(f, x, y)) return false;
    }
    return text_equal(x->optimizer, y->optimizer);
}

/* Whether group i, of experts no longer split, has a dense equal, or an earlier
 * group of experts that becomes dense. */
static bool has_dense(const struct training *t, size_t i)
{
    for (size_t k = 0; k < t->num_groups; k++)
        if ((!t->groups[k].is_expert_parallel || k < i) &&
            same_identity(&t->groups[k], &t->groups[i]))
            return true;
    return false;
}

static bool is_group_wanted(const struct group_writer *w, size_t i, bool experts)
{
    const struct param_group *g = &w->t->groups[i];
    if (!w->form->experts_split) return !experts && (!g->is_expert_parallel || !has_dense(w->t, i));
    if (experts && !has_expert_groups(w->t, g->optimizer)) return needs_twin(w->form, g);
    return g->is_expert_parallel == experts;
}

struct value *param_groups_value(const struct training *t, const struct optimizer_form *form,
                                 bool experts, struct arena *a)
{
    const struct group_writer w = {t, form, a};
    struct value *list = value_list(a, VALUE_LIST, 0, NULL);
    for (size_t i = 0; i < t->num_groups; i++)
        if (is_group_wanted(&w, i, experts)) append_group(&w, list, i, experts);
    return list;
}

/* The groups of the run's optimizer (first), or of the other: of experts or not. */
static void append_split(const struct group_writer *w, struct value *list, bool first, bool experts)
{
    for (size_t i = 0; i < w->t->num_groups; i++)
        if (text_equal(w->t->groups[i].optimizer, w->t->optimizer) == first &&
            is_group_wanted(w, i, experts))
            append_group(w, list, i, experts);
}

/* ---- optimizers ---- */

/* A tensor of one f32, with its bytes in data. */
static struct value *number_tensor(struct tensor_data *data, float x, unsigned num_dims,
                                   struct arena *a)
{
    static const uint64_t one = 1;
    const char *key = arena_printf(a, "%zu", data->count);
    *ARENA_PUSH(a, data->data, data->count, data->capacity) = arena_copy(a, &x, sizeof x);
    return value_tensor(a, key, DT_F32, num_dims, &one);
}

struct value *grad_scaler_value(const struct training *t, struct tensor_data *data, struct arena *a)
{
    if (!isfinite(t->loss_scale)) return NULL;
    struct value *dict = value_dict(a);
    value_dict_add(a, dict, "scale", number_tensor(data, (float)t->loss_scale, 1, a));
    value_dict_add(a, dict, "growth_tracker", count_value(a, t->growth_tracker));
    value_dict_add(a, dict, "hysteresis_tracker", count_value(a, t->hysteresis_tracker));
    return dict;
}

/* Values shared by chained optimizers, in order of appearance; NULL: none. */
struct shared_values {
    struct value *common_step, *grad_scaler;
};

/* An optimizer, alone or in a chain. */
struct written_optimizer {
    enum optimizer_wrapper wrapper;
    struct value *groups;
    bool without_state; /* keeps nothing beside its tensors */
};

/* {state, param_groups}; {param_groups} of a distributed optimizer. */
static struct value *inner_value(const struct group_writer *w, const struct shared_values *shared,
                                 const struct written_optimizer *o)
{
    struct value *inner = value_dict(w->arena), *state = value_dict(w->arena);
    const bool has_state = o->wrapper != OPTIMIZER_DISTRIBUTED && !o->without_state;
    if (shared->common_step) value_dict_add(w->arena, state, "common_step", shared->common_step);
    if (has_state) value_dict_add(w->arena, inner, "state", state);
    value_dict_add(w->arena, inner, "param_groups", o->groups);
    return inner;
}

static struct value *single_value(const struct group_writer *w, const struct shared_values *shared,
                                  const struct written_optimizer *o)
{
    struct value *inner = inner_value(w, shared, o);
    if (o->wrapper == OPTIMIZER_FP32) return inner;
    struct value *outer = value_dict(w->arena);
    value_dict_add(w->arena, outer, "optimizer", inner);
    if (shared->grad_scaler) value_dict_add(w->arena, outer, "grad_scaler", shared->grad_scaler);
    if (o->wrapper == OPTIMIZER_DISTRIBUTED && w->form->sharding_type)
        value_dict_add(w->arena, outer, "param_state_sharding_type",
                       value_text(w->arena, w->form->sharding_type));
    return outer;
}

static void add_to_chain(const struct group_writer *w, const struct shared_values *shared,
                         struct value *chain, const struct written_optimizer *o)
{
    value_dict_put(w->arena, chain, value_int(w->arena, chain->count), single_value(w, shared, o));
}

/* The run's optimizer, then the other.
 *
 * Experts that are split over ranks have separate ones, except if distributed
 * (optimizer/__init__.py:_get_megatron_emerging_optimizer). */
static struct value *split_value(const struct group_writer *w, const struct shared_values *shared)
{
    struct arena *a = w->arena;
    const bool distributed = w->form->wrapper == OPTIMIZER_DISTRIBUTED;
    struct value *chain = value_dict(a);
    for (unsigned i = 0; i < 2; i++) {
        struct written_optimizer o = {.wrapper = w->form->wrapper, .without_state = i == 0};
        if (i == 0) o.wrapper = w->form->is_mixed ? OPTIMIZER_MIXED : OPTIMIZER_FP32;
        o.groups = value_list(a, VALUE_LIST, 0, NULL);
        append_split(w, o.groups, i == 0, false);
        if (!distributed) add_to_chain(w, shared, chain, &o);
        if (!distributed) o.groups = value_list(a, VALUE_LIST, 0, NULL);
        append_split(w, o.groups, i == 0, true);
        if (o.groups->count) add_to_chain(w, shared, chain, &o);
    }
    return chain;
}

/* {0: dense, 1: experts} */
static struct value *chained_value(const struct group_writer *w, const struct shared_values *shared)
{
    struct value *chain = value_dict(w->arena);
    for (unsigned i = 0; i < 2; i++) {
        const struct written_optimizer o = {
            .wrapper = w->form->wrapper,
            .groups = param_groups_value(w->t, w->form, i == 1, w->arena)};
        add_to_chain(w, shared, chain, &o);
    }
    return chain;
}

struct value *optimizer_value(const struct training *t, const struct optimizer_form *form,
                              struct tensor_data *data, struct arena *a)
{
    const struct group_writer w = {t, form, a};
    struct shared_values shared = {NULL, NULL};
    if (!step_in_groups(&w) && t->step)
        shared.common_step = number_tensor(data, (float)t->step, 0, a);
    if (form->wrapper != OPTIMIZER_FP32) shared.grad_scaler = grad_scaler_value(t, data, a);
    if (training_is_split(t)) return split_value(&w, &shared);
    if (form->experts_split) return chained_value(&w, &shared);
    const struct written_optimizer o = {.wrapper = form->wrapper,
                                        .groups = param_groups_value(t, form, false, a)};
    return single_value(&w, &shared, &o);
}

/* ---- the schedule ---- */

struct value *schedule_value(const struct training *t, const struct value *native, struct arena *a)
{
    struct value *dict = native ? plain_copy(native, NULL, a) : value_dict(a);
    for (size_t i = 0; i < num_schedule_keys; i++) {
        const struct spelt_field *f = &schedule_keys[i];
        if (training_field_given(&f->field, t) || !spelt_key(f, dict)) set_field(dict, f, t, a);
    }
    return dict;
}
