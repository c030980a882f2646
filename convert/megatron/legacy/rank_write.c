#include "convert/megatron/legacy/rank_write.h"

#include <stdlib.h>
#include <string.h>

#include "convert/megatron/legacy/rank_states.h"
#include "convert/states.h"

void rank_write_weight(struct rank_write *w, struct target *t, const char *name,
                       const struct megatron_part *p, uint64_t chunk, bool is_tied_head)
{
    struct arena *a = &t->plan.arena;
    const size_t added = w->count;
    *ARENA_PUSH(a, w->items, w->count, w->capacity) =
        (struct rank_written){.name = name,
                              .param = p->param,
                              .dtype = p->native->dtype,
                              .num_dims = p->num_dims,
                              .chunk = chunk,
                              .is_tied_head = is_tied_head,
                              .added = added,
                              .states = arena_array(a, t->num_states, sizeof(struct value *))};
}

void rank_write_state(struct rank_write *w, size_t state, struct value *tensor)
{
    w->items[w->count - 1].is_trained = true;
    w->items[w->count - 1].states[state] = tensor;
}

static int by_model(const void *a, const void *b)
{
    const struct rank_written *x = a, *y = b;
    if (x->chunk != y->chunk) return x->chunk < y->chunk ? -1 : 1;
    if (x->is_tied_head != y->is_tied_head) return x->is_tied_head ? 1 : -1;
    return x->added < y->added ? -1 : x->added > y->added;
}

/* ---- the value ---- */

/* Context for one optimizer of a chain. */
struct making {
    const struct rank_write *w;
    struct target *t;
    struct torch_archive *archive;
    struct arena *a;
    bool experts, experts_split, decays_qk_norms;
    bool steps_are_tensors; /* as PyTorch's AdamW has them */
    int64_t next;           /* number of the next parameter */
    struct value *state, *groups, *masters;
};

/* Whether Megatron's rule puts the parameter in the group, by the groups'
 * differences. */
static bool is_member(const struct making *m, const struct value *group,
                      const struct rank_written *x)
{
    const struct group_rule own = group_rule_of(group),
                            rule = group_rule_for(x->name, x->num_dims, m->decays_qk_norms);
    bool decay = false, rate = false;
    if ((m->experts_split && param_of_expert(x->param.spec)) != m->experts || !x->is_trained)
        return false;
    for (uint32_t i = 0; i < m->groups->count; i++) {
        const struct group_rule other = group_rule_of(m->groups->items[i]);
        decay |= other.without_decay != own.without_decay;
        rate |= other.decoupled_lr != own.decoupled_lr;
    }
    return (!decay || own.without_decay == rule.without_decay) &&
           (!rate || own.decoupled_lr == rule.decoupled_lr);
}

/* A parameter's {step, exp_avg, exp_avg_sq, ...}, without its master. */
static struct value *states_of(const struct making *m, const struct rank_written *x)
{
    const float step = (float)m->t->training.step;
    struct value *d = value_dict(m->a);
    if (m->steps_are_tensors)
        value_dict_add(
            m->a, d, "step",
            archive_bytes(m->archive, DT_F32, 0, NULL, arena_copy(m->a, &step, sizeof step)));
    for (size_t i = 0; i < m->t->num_states; i++)
        if (x->states[i] && strcmp(m->t->states[i], master_state))
            value_dict_add(m->a, d, m->t->states[i], x->states[i]);
    return d;
}

static struct value *master_of(const struct making *m, const struct rank_written *x)
{
    for (size_t i = 0; i < m->t->num_states; i++)
        if (strcmp(m->t->states[i], master_state) == 0) return x->states[i];
    return NULL;
}

/* Copies a group with its parameters' numbers. Adds their states. */
static struct value *number_group(struct making *m, const struct value *group)
{
    struct value *out = value_dict(m->a), *params = value_list(m->a, VALUE_LIST, 0, NULL),
                 *masters = value_list(m->a, VALUE_LIST, 0, NULL);
    for (size_t i = 0; i < m->w->count; i++) {
        const struct rank_written *x = &m->w->items[i];
        if (!is_member(m, group, x)) continue;
        value_dict_put(m->a, m->state, value_int(m->a, m->next), states_of(m, x));
        value_append(m->a, params, value_int(m->a, m->next++));
        if (dtype_bytes(x->dtype) < dtype_bytes(DT_F32) && master_of(m, x))
            value_append(m->a, masters, master_of(m, x));
    }
    for (uint32_t i = 0; i < group->count; i++)
        value_dict_put(m->a, out, group->items[2 * i], group->items[2 * i + 1]);
    value_dict_add(m->a, out, "params", params);
    value_append(m->a, m->masters, masters);
    return out;
}

/* Completes an optimizer's dict, as optim/param_groups.h writes it. */
static struct value *complete_optimizer(struct making *m, const struct value *outline)
{
    struct value *inner = value_get(outline, "optimizer"), *out = value_dict(m->a),
                 *torch = value_dict(m->a), *groups = value_list(m->a, VALUE_LIST, 0, NULL);
    const struct value *from = inner ? inner : outline;
    m->state = value_dict(m->a);
    m->masters = value_list(m->a, VALUE_LIST, 0, NULL);
    m->next = 0;
    m->groups = value_get(from, "param_groups");
    for (uint32_t i = 0; m->groups && i < m->groups->count; i++)
        value_append(m->a, groups, number_group(m, m->groups->items[i]));
    value_dict_add(m->a, torch, "state", m->state);
    value_dict_add(m->a, torch, "param_groups", groups);
    if (!inner) return torch;
    value_dict_add(m->a, out, "optimizer", torch);
    if (value_get(outline, "grad_scaler"))
        value_dict_add(m->a, out, "grad_scaler", value_get(outline, "grad_scaler"));
    value_dict_add(m->a, out, "fp32_from_fp16_params", m->masters);
    return out;
}

struct value *rank_write_chain(struct value *optimizer, struct arena *a)
{
    int64_t number;
    struct value *list = value_list(a, VALUE_LIST, 0, NULL);
    if (optimizer->kind != VALUE_DICT || !optimizer->count ||
        !value_as_int(optimizer->items[0], &number))
        return optimizer;
    for (uint32_t i = 0; i < optimizer->count; i++)
        value_append(a, list, optimizer->items[2 * i + 1]);
    return list;
}

struct value *rank_write_value(struct rank_write *w, struct target *t, struct value *optimizer,
                               struct torch_archive *archive)
{
    struct arena *a = &t->plan.arena;
    const struct value *chain = rank_write_chain(optimizer, a);
    const bool chained = chain->kind == VALUE_LIST;
    struct making m = {.w = w, .t = t, .archive = archive, .a = a, .experts_split = chained};
    const struct value *first = chained ? chain->items[0] : optimizer;
    const struct value *inner = value_get(first, "optimizer");
    const struct value *groups = value_get(inner ? inner : first, "param_groups");
    (void)value_as_bool(
        value_get(value_get(t->source->training.common, "args"), "apply_wd_to_qk_layernorm"),
        &m.decays_qk_norms);
    if (w->count) qsort(w->items, w->count, sizeof *w->items, by_model);
    m.steps_are_tensors = groups && groups->count && value_get(groups->items[0], "foreach") != NULL;
    if (!chained) return complete_optimizer(&m, optimizer);
    struct value *list = value_list(a, VALUE_LIST, 0, NULL);
    for (uint32_t i = 0; i < chain->count; i++) {
        m.experts = i + 1 == chain->count;
        value_append(a, list, complete_optimizer(&m, chain->items[i]));
    }
    return list;
}
