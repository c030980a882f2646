#include "convert/numbered.h"

#include <stdbool.h>

#include "ckpt/catalog.h"

size_t shape_kind(struct shape_kinds *k, unsigned num_dims, const uint64_t *shape)
{
    const char *text = shape_text(k->arena, num_dims, shape);
    size_t kind = k->by_text.count + 1;
    if (!map_add(&k->by_text, text, kind, NULL)) (void)map_get(&k->by_text, text, &kind);
    return kind;
}

void shape_kinds_release(struct shape_kinds *k)
{
    map_release(&k->by_text);
}

/* The numbers and parameters of a kind. */
struct kind {
    size_t group, numbers, params;
    size_t next; /* parameter after the last assigned one */
};

static size_t most(const size_t *kinds, size_t num_params, const struct numbered *numbers,
                   size_t count)
{
    size_t n = 0;
    for (size_t i = 0; i < num_params; i++)
        if (kinds[i] > n) n = kinds[i];
    for (size_t i = 0; i < count; i++)
        if (numbers[i].kind > n) n = numbers[i].kind;
    return n;
}

/* Whether one group lists all parameters, in the model's order. */
static bool lists_all(const size_t *kinds, size_t num_params, const struct numbered *numbers,
                      size_t count)
{
    if (count != num_params) return false;
    for (size_t i = 0; i < count; i++)
        if (numbers[i].group != numbers[0].group ||
            (numbers[i].kind && kinds[i] && numbers[i].kind != kinds[i]))
            return false;
    return true;
}

/* Counts numbers of each kind; returns why that does not tell them apart. */
static const char *count_kinds(struct arena *a, struct kind *all, const struct numbered *numbers,
                               size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct kind *k = &all[numbers[i].kind];
        if (!numbers[i].kind)
            return arena_printf(a, "parameter number %zu has no state that shows its shape", i);
        if (k->numbers++ && k->group != numbers[i].group)
            return arena_printf(a,
                                "parameters of one shape are in groups %zu and %zu, and nothing "
                                "tells which is which",
                                k->group, numbers[i].group);
        k->group = numbers[i].group;
    }
    return NULL;
}

const char *numbered_assign(struct arena *a, const size_t *kinds, size_t num_params,
                            const struct numbered *numbers, size_t count, size_t *param_of)
{
    const size_t num_kinds = most(kinds, num_params, numbers, count);
    struct kind *all = arena_array(a, num_kinds + 1, sizeof *all);
    if (lists_all(kinds, num_params, numbers, count)) {
        for (size_t i = 0; i < count; i++)
            param_of[i] = i;
        return NULL;
    }
    const char *why = count_kinds(a, all, numbers, count);
    if (why) return why;
    for (size_t i = 0; i < num_params; i++)
        all[kinds[i]].params++;
    for (size_t i = 0; i < count; i++) {
        struct kind *k = &all[numbers[i].kind];
        if (k->numbers != k->params)
            return arena_printf(a,
                                "%zu parameters of number %zu's shape are listed, but the model "
                                "has %zu, and nothing tells which are left out",
                                k->numbers, i, k->params);
        while (kinds[k->next] != numbers[i].kind)
            k->next++;
        param_of[i] = k->next++;
        if (i && numbers[i].group == numbers[i - 1].group && param_of[i] < param_of[i - 1])
            return arena_printf(a, "group %zu has another order than the model", numbers[i].group);
    }
    return NULL;
}
