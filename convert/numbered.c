#include "convert/numbered.h"

#include <inttypes.h>
#include <string.h>

#include "ckpt/catalog.h"
#include "common/map.h"
#include "convert/states.h"
#include "formats/dtensor.h"

/* ---- the rule ---- */

/* The items and parameters of a kind. */
struct kind {
    size_t group, items, params;
    size_t next; /* parameter after the last assigned one */
};

static size_t most(const size_t *kinds, size_t num_params, const struct numbered *items,
                   size_t count)
{
    size_t n = 0;
    for (size_t i = 0; i < num_params; i++)
        if (kinds[i] > n) n = kinds[i];
    for (size_t i = 0; i < count; i++)
        if (items[i].kind > n) n = items[i].kind;
    return n;
}

/* Whether one group lists all parameters, in the model's order. */
static bool lists_all(const size_t *kinds, size_t num_params, const struct numbered *items,
                      size_t count)
{
    if (count != num_params) return false;
    for (size_t i = 0; i < count; i++)
        if (items[i].group != items[0].group ||
            (items[i].kind && kinds[i] && items[i].kind != kinds[i]))
            return false;
    return true;
}

/* Counts items of each kind; returns why that does not tell them apart. */
static const char *count_kinds(struct arena *a, struct kind *all, const struct numbered *items,
                               size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct kind *k = &all[items[i].kind];
        if (!items[i].kind)
            return arena_printf(a, "parameter number %zu has no state that shows its shape", i);
        if (k->items++ && k->group != items[i].group)
            return arena_printf(a,
                                "parameters of one shape are in groups %zu and %zu, and nothing "
                                "tells which is which",
                                k->group, items[i].group);
        k->group = items[i].group;
    }
    return NULL;
}

const char *numbered_assign(struct arena *a, const size_t *kinds, size_t num_params,
                            const struct numbered *items, size_t count, size_t *param_of)
{
    const size_t num_kinds = most(kinds, num_params, items, count);
    struct kind *all = arena_array(a, num_kinds + 1, sizeof *all);
    if (lists_all(kinds, num_params, items, count)) {
        for (size_t i = 0; i < count; i++)
            param_of[i] = i;
        return NULL;
    }
    const char *why = count_kinds(a, all, items, count);
    if (why) return why;
    for (size_t i = 0; i < num_params; i++)
        all[kinds[i]].params++;
    for (size_t i = 0; i < count; i++) {
        struct kind *k = &all[items[i].kind];
        if (k->items != k->params)
            return arena_printf(a,
                                "%zu parameters of number %zu's shape are listed, but the model "
                                "has %zu, and nothing tells which are left out",
                                k->items, i, k->params);
        while (kinds[k->next] != items[i].kind)
            k->next++;
        param_of[i] = k->next++;
        if (i && items[i].group == items[i - 1].group && param_of[i] < param_of[i - 1])
            return arena_printf(a, "group %zu has another order than the model", items[i].group);
    }
    return NULL;
}

/* ---- files ---- */

/* Numbers of shapes: equal ones have equal numbers, from 1. */
struct shape_kinds {
    struct map by_text;
    struct arena *arena;
};

/* values: of the parameter; NULL: not known. */
static size_t shape_kind(struct shape_kinds *k, unsigned num_dims, const uint64_t *shape,
                         const char *values)
{
    const char *text = shape_text(k->arena, num_dims, shape);
    if (values) text = arena_printf(k->arena, "%s %s", text, values);
    size_t kind = k->by_text.count + 1;
    if (!map_add(&k->by_text, text, kind, NULL)) (void)map_get(&k->by_text, text, &kind);
    return kind;
}

/* A number's kind by the shape of a state; 0: it has none. */
static size_t kind_of_states(struct shape_kinds *kinds, const struct value *states,
                             const char *master)
{
    enum { MOST_STATES = 2 * MAX_STATES }; /* values of a pickle are shared: a large dict is free */
    if (!states || states->kind != VALUE_DICT || states->count > MOST_STATES) return 0;
    for (uint32_t i = 0; i < states->count; i++) {
        const char *name = value_as_text(states->items[2 * i]);
        struct dtensor d;
        if (name && strcmp(name, "step") == 0) continue;
        if (!dtensor_read(&d, kinds->arena, states->items[2 * i + 1], NULL) && d.num_dims)
            return shape_kind(kinds, d.num_dims, d.shape, master);
    }
    return 0;
}

/* The numbers that groups list, in their order. */
struct listed {
    struct numbered *items;
    int64_t *numbers;
    size_t count;
};

static const struct value *params_of(const struct value *groups, uint32_t g)
{
    const struct value *params = value_get(groups->items[g], "params");
    return params && (params->kind == VALUE_LIST || params->kind == VALUE_TUPLE) ? params : NULL;
}

/* Lists the groups' numbers; returns why they are not 0 to count - 1, each
 * once. Groups may share a long list, so they are counted first. */
static const char *list_numbers(struct arena *a, const struct value *groups, size_t num_params,
                                struct listed *out)
{
    uint64_t total = 0;
    for (uint32_t g = 0; g < groups->count; g++) {
        const struct value *params = params_of(groups, g);
        total += params ? params->count : 0;
    }
    if (total > num_params)
        return arena_printf(a, "groups list %" PRIu64 " parameters, but the model has %zu", total,
                            num_params);
    *out = (struct listed){.items = arena_array(a, total + 1, sizeof *out->items),
                           .numbers = arena_array(a, total + 1, sizeof *out->numbers)};
    bool *seen = arena_array(a, total + 1, sizeof *seen);
    for (uint32_t g = 0; g < groups->count; g++) {
        const struct value *params = params_of(groups, g);
        for (uint32_t i = 0; params && i < params->count; i++) {
            int64_t number;
            if (!value_as_int(params->items[i], &number) || number < 0 ||
                (uint64_t)number >= total || seen[number])
                return arena_printf(a, "groups do not list 0 to %" PRIu64 ", each once",
                                    total ? total - 1 : 0);
            seen[number] = true;
            out->items[out->count].group = g;
            out->numbers[out->count++] = number;
        }
    }
    return NULL;
}

/* Sets the kinds of listed numbers; returns those of the parameters. */
static const size_t *set_kinds(struct shape_kinds *kinds, const struct value *state,
                               const char *const *masters, const struct numbered_param *params,
                               size_t num_params, struct listed *l)
{
    struct arena *a = kinds->arena;
    int64_t number;
    const struct value **states = arena_array(a, l->count + 1, sizeof *states);
    size_t *of_params = arena_array(a, num_params + 1, sizeof *of_params);
    for (uint32_t i = 0; i < state->count; i++)
        if (value_as_int(state->items[2 * i], &number) && number >= 0 &&
            (uint64_t)number < l->count)
            states[number] = state->items[2 * i + 1];
    bool known = true;
    for (size_t i = 0; i < num_params; i++) {
        known &= params[i].shape != NULL;
        if (params[i].shape)
            of_params[i] = shape_kind(kinds, params[i].num_dims, params[i].shape,
                                      masters ? params[i].values : NULL);
    }
    for (size_t i = 0; i < l->count && known; i++)
        l->items[i].kind =
            kind_of_states(kinds, states[l->numbers[i]], masters ? masters[l->numbers[i]] : NULL);
    return of_params;
}

const char *numbered_names(struct arena *a, const struct value *state, const struct value *groups,
                           const char *const *masters, const struct numbered_param *params,
                           size_t num_params, const char ***names)
{
    struct listed l = {.count = 0};
    struct shape_kinds kinds = {.arena = a};
    if (!state || state->kind != VALUE_DICT || !groups ||
        (groups->kind != VALUE_LIST && groups->kind != VALUE_TUPLE))
        return "it has no param_groups";
    const char *why = list_numbers(a, groups, num_params, &l);
    if (why) return why;
    const size_t *of_params = set_kinds(&kinds, state, masters, params, num_params, &l);
    size_t *param_of = arena_array(a, l.count + 1, sizeof *param_of);
    why = numbered_assign(a, of_params, num_params, l.items, l.count, param_of);
    map_release(&kinds.by_text);
    *names = arena_array(a, num_params + 1, sizeof **names);
    for (size_t i = 0; i < l.count && !why; i++)
        (*names)[l.numbers[i]] = params[param_of[i]].name;
    return why;
}
