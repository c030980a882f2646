#include "convert/megatron/legacy/rank_states.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/text.h"
#include "convert/states.h"

/* Bounds on walks, since a short pickle may have one list or dict in many
 * places. */
enum { MAX_CHAINED = 16, MAX_GROUPS = 1000, MAX_PARAMS = 1 << 20 };

/* The states of a number. */
struct numbered {
    int64_t number;
    const struct value *states;
    bool used; /* by a parameter of a group */
};

/* An optimizer of a file. */
struct walking {
    struct rank_states *s;
    struct checkpoint *c;
    struct torch_file *file;
    const char *prefix;
    struct rank_state at;
    struct numbered *numbered; /* sorted by number; in scratch */
    size_t num_numbered;
    uint64_t num_params; /* of all groups so far */
    size_t first_group;  /* of this optimizer, in s->groups */
    struct steps {       /* of parameters: those that are tensors, */
        const struct value **tensors;
        size_t count, capacity;
        double first; /* the first step; NaN: none yet */
        size_t differ;
        double other; /* the first that differs */
    } steps;
    struct arena scratch;
};

/* ---- the dicts of an optimizer ---- */

/* The dict {state, param_groups} of an optimizer. */
static const struct value *inner_of(const struct value *v)
{
    const struct value *inner = value_get(v, "optimizer");
    if (!inner) inner = value_get(v, "optimizer_state_dict");
    return inner ? inner : v;
}

static const struct value *masters_of(const struct value *v)
{
    const struct value *masters = value_get(v, "fp32_from_fp16_params");
    return masters ? masters : value_get(v, "fp32_from_fp16");
}

/* A chain is a list, or a dict by 0, 1, ... */
static bool is_chain_dict(const struct value *optimizer)
{
    int64_t number;
    return optimizer->kind == VALUE_DICT && optimizer->count &&
           value_as_int(optimizer->items[0], &number);
}

static struct value *chained_item(const struct value *optimizer, unsigned i)
{
    if (optimizer->kind == VALUE_LIST) return optimizer->items[i];
    return is_chain_dict(optimizer) ? optimizer->items[2 * (size_t)i + 1]
                                    : (struct value *)optimizer;
}

static unsigned count_chained(const struct value *optimizer)
{
    return optimizer->kind == VALUE_LIST || is_chain_dict(optimizer) ? (unsigned)optimizer->count
                                                                     : 1;
}

/* ---- the states by number ---- */

static int by_param_number(const void *a, const void *b)
{
    const int64_t x = ((const struct numbered *)a)->number,
                  y = ((const struct numbered *)b)->number;
    return (x > y) - (x < y);
}

static void sort_by_number(struct walking *w, const struct value *dict)
{
    w->num_numbered = 0;
    if (!dict || dict->kind != VALUE_DICT || !dict->count) return;
    w->numbered = arena_array(&w->scratch, dict->count, sizeof *w->numbered);
    for (size_t i = 0; i < dict->count; i++) {
        struct numbered *n = &w->numbered[w->num_numbered];
        *n = (struct numbered){.states = dict->items[2 * i + 1]};
        w->num_numbered += value_as_int(dict->items[2 * i], &n->number);
    }
    qsort(w->numbered, w->num_numbered, sizeof *w->numbered, by_param_number);
}

/* The states of a number; NULL: none. */
static struct numbered *find_number(const struct walking *w, int64_t number)
{
    const struct numbered key = {.number = number};
    return w->num_numbered
               ? bsearch(&key, w->numbered, w->num_numbered, sizeof *w->numbered, by_param_number)
               : NULL;
}

/* ---- collecting ---- */

static enum status add_rank_tensor(const struct walking *w, uint64_t number, const char *state,
                                   const struct value *tensor, bool of_low_precision,
                                   struct error *err)
{
    struct checkpoint *c = w->c;
    const char *name = arena_printf(&c->arena, "%s.%u.%u.%" PRIu64 ".%s", w->prefix,
                                    w->at.optimizer, w->at.group, number, state);
    struct rank_state s = w->at;
    TRY(torch_add_tensor(w->file, &c->catalog.stored, name, tensor, err));
    s.number = number;
    s.state = state;
    s.of_low_precision = of_low_precision;
    s.stored = c->catalog.stored.num_tensors - 1;
    *ARENA_PUSH(&c->arena, w->s->items, w->s->count, w->s->capacity) = s;
    return OK;
}

/* ---- steps ---- */

static void compare_step(struct steps *s, double step)
{
    if (isnan(s->first)) s->first = step;
    if (step >= s->first && step <= s->first) return;
    if (!s->differ++) s->other = step;
}

static void take_step(struct walking *w, const struct value *step)
{
    struct steps *s = &w->steps;
    double number;
    if (step->kind == VALUE_TENSOR)
        *ARENA_PUSH(&w->scratch, s->tensors, s->count, s->capacity) = step;
    else if (value_as_float(step, &number))
        compare_step(s, number);
}

/* Notes differing steps of parameters, for which Megatron's other formats have
 * one number. */
static void name_steps(struct walking *w)
{
    struct steps *s = &w->steps;
    struct error why;
    double *numbers = arena_array(&w->scratch, s->count, sizeof *numbers);
    if (s->count &&
        torch_numbers(w->file->path, 0, UINT64_MAX, s->tensors, s->count, numbers, &why)) {
        states_unread(w->c, "%s", why.text);
        return;
    }
    for (size_t i = 0; i < s->count; i++)
        compare_step(s, numbers[i]);
    if (s->differ)
        checkpoint_note(w->c,
                        "%s: %zu parameter%s made a different number of steps than the first, such "
                        "as %g instead of %g; one number is kept for all",
                        w->file->path, s->differ, s->differ == 1 ? " has" : "s have", s->other,
                        s->first);
}

/* ---- states ---- */

/* Adds one state of a parameter. */
static enum status add_rank_state(struct walking *w, uint64_t number, const struct value *key,
                                  const struct value *tensor, struct error *err)
{
    const char *state = value_as_text(key);
    if (!state || tensor->kind == VALUE_NONE) return OK;
    if (strcmp(state, "step") == 0) {
        take_step(w, tensor);
        return OK;
    }
    if (strcmp(state, "master_param") == 0) state = master_state;
    if (tensor->kind == VALUE_TENSOR && state_is_valid(state))
        return add_rank_tensor(w, number, arena_copy_text(&w->c->arena, state), tensor, false, err);
    states_unread(w->c, "%s: %.64s of a parameter is not a valid %s", w->file->path, state,
                  tensor->kind == VALUE_TENSOR ? "state name" : "tensor");
    return OK;
}

/* Adds a parameter's states: {STATE: tensor}. */
static enum status add_numbered_states(struct walking *w, uint64_t number, struct numbered *of,
                                       struct error *err)
{
    if (!of) return OK;
    const bool is_dict = of->states->kind == VALUE_DICT;
    if (of->used || !is_dict || of->states->count > MAX_STATES) {
        states_unread(w->c, "%s: parameter %" PRId64 " %s", w->file->path, of->number,
                      of->used   ? "is in the groups twice"
                      : !is_dict ? "has no dict of states"
                                 : "has too many states");
        return OK;
    }
    of->used = true;
    for (uint32_t i = 0; i < of->states->count; i++)
        TRY(add_rank_state(w, number, of->states->items[2 * i], of->states->items[2 * i + 1], err));
    return OK;
}

struct group_rule group_rule_of(const struct value *group)
{
    double decay = 1;
    bool is_default = true;
    struct group_rule rule = {.has_eps = value_get(group, "eps") != NULL,
                              .has_momentum = value_get(group, "momentum") != NULL};
    (void)(value_as_float(value_get(group, "wd_mult"), &decay) ||
           value_as_float(value_get(group, "pre_wd_mult"), &decay) ||
           value_as_float(value_get(group, "weight_decay"), &decay));
    rule.without_decay = !(decay > 0);
    (void)value_as_bool(value_get(group, "is_decoupled_lr"), &rule.decoupled_lr);
    (void)value_as_bool(value_get(group, "default_config"), &is_default);
    rule.decoupled_lr |= !is_default;
    (void)value_as_bool(value_get(group, "is_expert_parallel"), &rule.of_experts);
    return rule;
}

struct group_rule group_rule_for(const char *name, unsigned num_dims, bool decays_qk_norms)
{
    const bool is_qk_norm = strstr(name, "q_layernorm.") || strstr(name, "k_layernorm.");
    return (struct group_rule){
        .without_decay =
            (num_dims == 1 || text_ends_with(name, ".bias")) && !(decays_qk_norms && is_qk_norm),
        .decoupled_lr = strstr(name, "word_embeddings") || strstr(name, "output_layer."),
    };
}

static void add_rank_group(const struct walking *w, const struct value *group, uint64_t count)
{
    *ARENA_PUSH(&w->c->arena, w->s->groups, w->s->num_groups, w->s->groups_capacity) =
        (struct rank_group){.rank = w->at.rank,
                            .dp = w->at.dp,
                            .optimizer = w->at.optimizer,
                            .group = w->at.group,
                            .rule = group_rule_of(group),
                            .count = count};
}

/* Adds the states of a group's parameters. */
static enum status add_params(struct walking *w, const struct value *group, struct error *err)
{
    const struct value *params = value_get(group, "params");
    int64_t number;
    if (!params || params->kind != VALUE_LIST) {
        states_unread(w->c,
                      "%s: its optimizer lists no parameters, like a distributed one, but there is "
                      "no distrib_optim.pt beside it",
                      w->file->path);
        return OK;
    }
    w->num_params += params->count;
    if (w->num_params > MAX_PARAMS) {
        states_unread(w->c, "%s: %" PRIu64 " parameters in the groups, too many", w->file->path,
                      w->num_params);
        return OK;
    }
    add_rank_group(w, group, params->count);
    for (uint32_t i = 0; i < params->count; i++)
        if (value_as_int(params->items[i], &number))
            TRY(add_numbered_states(w, i, find_number(w, number), err));
    return OK;
}

/* Adds a group's master weights. */
static enum status add_masters(struct walking *w, const struct value *group,
                               const struct value *list, struct error *err)
{
    const struct value *params = value_get(group, "params");
    if (list->kind != VALUE_LIST) return OK;
    if (list->count > params->count) {
        states_unread(w->c, "%s: %" PRIu32 " master weights for a group of %" PRIu32 " parameters",
                      w->file->path, list->count, params->count);
        return OK;
    }
    w->s->groups[w->first_group + w->at.group].masters = list->count;
    for (uint32_t i = 0; i < list->count; i++)
        if (list->items[i]->kind == VALUE_TENSOR)
            TRY(add_rank_tensor(w, i, master_state, list->items[i], true, err));
    return OK;
}

/* Refuses states without a parameter in a group. */
static void name_unused(const struct walking *w, const struct value *dict)
{
    const size_t count = dict && dict->kind == VALUE_DICT ? dict->count : 0;
    if (w->num_numbered < count)
        states_unread(w->c, "%s: states without a parameter number: %zu", w->file->path,
                      count - w->num_numbered);
    for (size_t i = 0; i < w->num_numbered; i++)
        if (!w->numbered[i].used) {
            states_unread(w->c, "%s: the groups lack parameter %" PRId64 ", which has states",
                          w->file->path, w->numbered[i].number);
            return;
        }
}

static enum status add_optimizer(struct walking *w, const struct value *v, struct error *err)
{
    const struct value *inner = inner_of(v), *groups = value_get(inner, "param_groups");
    const struct value *masters = masters_of(v);
    if (!groups || groups->kind != VALUE_LIST || groups->count > MAX_GROUPS) {
        states_unread(w->c, "%s: the optimizer lacks a list of parameter groups", w->file->path);
        return OK;
    }
    if (masters && (masters->kind != VALUE_LIST || masters->count != groups->count)) {
        states_unread(w->c, "%s: master weights of %u groups, but the optimizer has %u",
                      w->file->path, masters->kind == VALUE_LIST ? (unsigned)masters->count : 0,
                      (unsigned)groups->count);
        return OK;
    }
    w->num_params = 0;
    w->steps = (struct steps){.first = NAN};
    w->first_group = w->s->num_groups;
    sort_by_number(w, value_get(inner, "state"));
    for (w->at.group = 0; w->at.group < groups->count; w->at.group++)
        TRY(add_params(w, groups->items[w->at.group], err));
    name_unused(w, value_get(inner, "state"));
    name_steps(w);
    if (!masters || w->c->training.optimizer.unread) return OK;
    for (w->at.group = 0; w->at.group < groups->count; w->at.group++)
        TRY(add_masters(w, groups->items[w->at.group], masters->items[w->at.group], err));
    return OK;
}

enum status rank_states_add(struct rank_states *s, struct checkpoint *c, struct torch_file *t,
                            const struct value *optimizer, size_t rank, unsigned dp,
                            const char *prefix, struct error *err)
{
    struct walking w = {.s = s, .c = c, .file = t, .prefix = prefix};
    const unsigned chained = count_chained(optimizer);
    enum status st = OK;
    if (c->training.optimizer.unread) return OK;
    if (chained > MAX_CHAINED) {
        states_unread(c, "%s: %u optimizers, too many", t->path, chained);
        return OK;
    }
    arena_init(&w.scratch);
    for (unsigned k = 0; k < chained && !st; k++) {
        w.at = (struct rank_state){.rank = rank, .dp = dp, .optimizer = k, .chained = chained};
        if (chained_item(optimizer, k)->kind != VALUE_NONE)
            st = add_optimizer(&w, chained_item(optimizer, k), err);
    }
    arena_release(&w.scratch);
    return st;
}

/* ---- the outline ---- */

/* The step of the first parameter with one. */
static const struct value *first_step(const struct value *state)
{
    for (uint32_t i = 0; state && state->kind == VALUE_DICT && i < state->count; i++) {
        const struct value *states = state->items[2 * i + 1];
        const struct value *step = states->kind == VALUE_DICT && states->count <= MAX_STATES
                                       ? value_get(states, "step")
                                       : NULL;
        if (step) return step;
    }
    return NULL;
}

static struct value *outline_of(const struct value *v, struct arena *a)
{
    const struct value *inner = inner_of(v);
    struct value *out = value_dict(a), *brief = value_dict(a), *state = value_dict(a);
    struct value *groups = value_get(inner, "param_groups"), *scaler = value_get(v, "grad_scaler");
    const struct value *step = first_step(value_get(inner, "state"));
    if (step) value_dict_set(a, state, "common_step", (struct value *)step);
    if (step) value_dict_set(a, brief, "state", state);
    if (groups) value_dict_set(a, brief, "param_groups", groups);
    if (inner == v) return brief;
    value_dict_set(a, out, "optimizer", brief);
    if (scaler) value_dict_set(a, out, "grad_scaler", scaler);
    return out;
}

struct value *rank_states_outline(const struct value *optimizer, struct arena *a)
{
    struct value *items[MAX_CHAINED];
    unsigned count = count_chained(optimizer);
    if (optimizer->kind != VALUE_LIST && !is_chain_dict(optimizer)) return outline_of(optimizer, a);
    if (count > MAX_CHAINED) count = MAX_CHAINED; /* more are unread */
    for (unsigned i = 0; i < count; i++)
        items[i] = outline_of(chained_item(optimizer, i), a);
    return value_list(a, VALUE_LIST, count, items);
}

/* ---- which parameter is which ---- */

/* A group of a rank's optimizer, and its members. */
struct resolving {
    const struct rank_states *s;
    const struct rank_param *params;
    size_t num_params;
    struct arena *arena;
    const struct rank_group *first, *end; /* the groups beside the group, of its file */
    const struct rank_group *group;       /* NULL: none yet */
    size_t *members, *low_members;        /* [num_params] indices; of low precision only */
    size_t num_members, num_low_members;
    struct dealt *dealt; /* [num_dealt] all members of all groups; NULL: not dealt */
    size_t num_dealt;
    unsigned dealt_to; /* the data parallel rank for whose groups they are */
};

/* A parameter that is dealt to a data parallel rank. */
struct dealt {
    size_t param; /* index */
    uint64_t numel;
    const struct rank_group *group;
    unsigned dp;
};

/* Groups of an optimizer may differ in weight decay, and in having the learning
 * rate of embeddings. */
struct differences {
    bool decay, rate;
};

static struct differences differences_beside(const struct resolving *x,
                                             const struct rank_group *group)
{
    struct differences d = {false, false};
    for (const struct rank_group *g = x->first; g < x->end; g++) {
        if (g->optimizer != group->optimizer) continue;
        d.decay |= g->rule.without_decay != group->rule.without_decay;
        d.rate |= g->rule.decoupled_lr != group->rule.decoupled_lr;
    }
    return d;
}

/* Whether a chain's optimizer has the parameter. Split: a group is of the kind
 * of the first, or of the rest. */
static bool optimizer_has(const struct resolving *x, const struct rank_group *group,
                          unsigned chained, const struct rank_param *p)
{
    const struct group_rule r = group_rule_for(p->name, p->num_dims, false),
                            *first = &x->first->rule;
    const bool of_first =
        group->rule.has_eps == first->has_eps && group->rule.has_momentum == first->has_momentum;
    if (x->s->is_split)
        return p->of_experts == group->rule.of_experts &&
               of_first == (!r.without_decay && !r.decoupled_lr);
    return chained < 2 || p->of_experts == (group->optimizer + 1 == chained);
}

static bool group_has(const struct resolving *x, const struct rank_group *group, unsigned chained,
                      const struct rank_param *p)
{
    const struct differences d = differences_beside(x, group);
    const struct group_rule r = group_rule_for(p->name, p->num_dims, x->s->decays_qk_norms);
    return optimizer_has(x, group, chained, p) &&
           !(d.decay && group->rule.without_decay != r.without_decay) &&
           !(d.rate && group->rule.decoupled_lr != r.decoupled_lr);
}

static void add_to_members(struct resolving *x, size_t i)
{
    x->members[x->num_members++] = i;
    if (dtype_bytes(x->params[i].dtype) < dtype_bytes(DT_F32))
        x->low_members[x->num_low_members++] = i;
}

/* By size, then in the order of groups and parameters. */
static int by_size(const void *a, const void *b)
{
    const struct dealt *x = a, *y = b;
    if (x->numel != y->numel) return x->numel < y->numel ? -1 : 1;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    return x->param < y->param ? -1 : x->param > y->param;
}

/* Deals parameters to data parallel ranks.
 *
 * All have the same groups. */
static void deal(struct resolving *x, unsigned dp, unsigned chained)
{
    const unsigned n = x->s->num_dp;
    if (!x->dealt) x->dealt = arena_array(x->arena, x->num_params, sizeof *x->dealt);
    x->num_dealt = 0;
    x->dealt_to = dp;
    for (size_t i = 0; i < x->num_params; i++) {
        const struct rank_group *group = x->first;
        uint64_t numel = 1;
        while (group < x->end && !group_has(x, group, chained, &x->params[i]))
            group++;
        (void)shape_numel(x->params[i].shape, x->params[i].num_dims, &numel);
        if (group < x->end) x->dealt[x->num_dealt++] = (struct dealt){i, numel, group, 0};
    }
    if (x->num_dealt) qsort(x->dealt, x->num_dealt, sizeof *x->dealt, by_size);
    for (size_t i = 0; i < x->num_dealt; i++) {
        const unsigned at = (unsigned)(i % (2 * (size_t)n));
        x->dealt[i].dp = at < n ? at : 2 * n - 1 - at;
    }
}

/* Lists the members of a chain optimizer's group. */
static void list_members(struct resolving *x, const struct rank_group *group, unsigned chained)
{
    x->group = group;
    x->num_members = x->num_low_members = 0;
    if (x->s->num_dp) {
        if (!x->dealt || x->dealt_to != group->dp) deal(x, group->dp, chained);
        for (size_t i = 0; i < x->num_dealt; i++)
            if (x->dealt[i].dp == group->dp && x->dealt[i].group == group)
                add_to_members(x, x->dealt[i].param);
        return;
    }
    for (size_t i = 0; i < x->num_params; i++)
        if (group_has(x, group, chained, &x->params[i])) add_to_members(x, i);
}

static bool same_file(const struct rank_group *g, const struct rank_state *state)
{
    return g->rank == state->rank && g->dp == state->dp;
}

/* Finds the group of a state, and those beside it: a file's groups follow one
 * another, and files have the order of states. NULL: none. */
static const struct rank_group *find_group(struct resolving *x, const struct rank_state *state)
{
    const struct rank_group *all = x->s->groups, *end = all + x->s->num_groups;
    if (!x->first || x->first == x->end || !same_file(x->first, state)) {
        for (x->first = x->end ? x->end : all; x->first < end && !same_file(x->first, state);)
            x->first++;
        for (x->end = x->first; x->end < end && same_file(x->end, state);)
            x->end++;
    }
    for (const struct rank_group *g = x->first; g < x->end; g++)
        if (g->optimizer == state->optimizer && g->group == state->group) return g;
    return NULL;
}

static bool has_param_shape(const struct stored_tensor *t, const struct rank_param *p)
{
    return t->num_dims == p->num_dims &&
           memcmp(t->shape, p->shape, t->num_dims * sizeof *t->shape) == 0;
}

static const char *resolve_state(struct resolving *x, const struct checkpoint *c,
                                 const struct rank_state *s, size_t *number)
{
    const struct stored_tensor *t = &c->catalog.stored.tensors[s->stored];
    const struct rank_group *g = x->group;
    const size_t *list = s->of_low_precision ? x->low_members : x->members;
    if (!g || s->number >= (s->of_low_precision ? x->num_low_members : x->num_members) ||
        g->count != x->num_members)
        return arena_printf(
            x->arena,
            "%s: its group has %" PRIu64
            " parameters, but Megatron's rule gives %zu, %zu of low precision (optimizers with "
            "frozen parameters cannot be read, since rank files do not name them)",
            t->name, g ? g->count : 0, x->num_members, x->num_low_members);
    if (s->of_low_precision && g->masters != x->num_low_members)
        return arena_printf(x->arena,
                            "%s: its group has %" PRIu64
                            " master weights, but %zu parameters of low precision",
                            t->name, g->masters, x->num_low_members);
    *number = list[s->number];
    if (has_param_shape(t, &x->params[*number])) return NULL;
    return arena_printf(
        x->arena, "%s has shape %s, but by Megatron's order it belongs to %s of shape %s", t->name,
        shape_text(x->arena, t->num_dims, t->shape), x->params[*number].name,
        shape_text(x->arena, x->params[*number].num_dims, x->params[*number].shape));
}

const char *rank_states_resolve(const struct rank_states *s, const struct checkpoint *c,
                                size_t rank, const struct rank_param *params, size_t num_params,
                                size_t *numbers, struct arena *a)
{
    struct resolving x = {.s = s, .params = params, .num_params = num_params, .arena = a};
    const char *why = NULL;
    x.members = arena_array(a, num_params, sizeof *x.members);
    x.low_members = arena_array(a, num_params, sizeof *x.low_members);
    for (size_t i = 0; i < s->count && !why; i++) {
        const struct rank_state *state = &s->items[i];
        if (state->rank != rank) continue;
        const struct rank_group *g = x.group;
        if (!g || g->dp != state->dp || g->optimizer != state->optimizer ||
            g->group != state->group) {
            g = find_group(&x, state);
            if (g) list_members(&x, g, state->chained);
        }
        why = resolve_state(&x, c, state, &numbers[i]);
    }
    return why;
}
