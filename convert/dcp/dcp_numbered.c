#include "convert/dcp/dcp_numbered.h"

#include <string.h>

#include "ckpt/catalog.h"
#include "common/file.h"
#include "common/map.h"
#include "common/numbers.h"
#include "convert/numbered.h"

/* ---- numbers ---- */

static bool has_number(const struct dcp_entry *e, uint64_t *number)
{
    return e->kind == DCP_STATE && parse_u64(e->name, number);
}

size_t dcp_numbers_count(const struct stored *s, const struct dcp_entry *entries)
{
    uint64_t number, count = 0;
    for (size_t i = 0; i < s->num_tensors; i++) {
        if (entries[i].kind != DCP_STATE) continue;
        if (!has_number(&entries[i], &number) || number >= s->num_tensors) return 0;
        if (number >= count) count = number + 1;
    }
    return (size_t)count;
}

/* ---- where tensors lie ---- */

/* A parameter, or the state of a number that shows where it lies. */
struct place {
    const struct stored_tensor *t;
    const char *rank; /* that of the first piece */
    size_t at;        /* index of the entry, or the number */
};

struct places {
    struct place *items;
    size_t count, capacity;
};

/* The rank that wrote a file: R of __R_K.distcp, else the file's name. */
static const char *rank_of(struct arena *a, const struct stored *s, uint32_t file)
{
    const char *base = path_base(a, s->files[file].path);
    const char *end = strncmp(base, "__", 2) == 0 ? strchr(base + 2, '_') : NULL;
    return end ? arena_text(a, base, (size_t)(end - base)) : base;
}

static void add_place(struct places *p, struct arena *a, const struct stored *s, size_t tensor,
                      size_t at)
{
    const struct stored_tensor *t = &s->tensors[tensor];
    const char *rank = t->num_pieces ? rank_of(a, s, t->pieces[0].file) : "";
    *ARENA_PUSH(a, p->items, p->count, p->capacity) = (struct place){t, rank, at};
}

static void list_params(struct places *p, struct arena *a, const struct stored *s,
                        const struct dcp_entry *entries, const char *below)
{
    for (size_t i = 0; i < s->num_tensors; i++)
        if (entries[i].kind == DCP_PARAMETER && strcmp(entries[i].below, below) == 0)
            add_place(p, a, s, i, i);
}

/* Lists the first state with elements of each number. */
static void list_states(struct places *p, struct arena *a, const struct stored *s,
                        const struct dcp_entry *entries, size_t count)
{
    bool *seen = arena_array(a, count, sizeof *seen);
    for (size_t i = 0; i < s->num_tensors; i++) {
        uint64_t number;
        if (!has_number(&entries[i], &number) || seen[number] || !s->tensors[i].num_dims ||
            strcmp(entries[i].key, "step") == 0)
            continue;
        seen[number] = true;
        add_place(p, a, s, i, (size_t)number);
    }
}

static bool is_on_one_rank(const struct places *p)
{
    for (size_t i = 1; i < p->count; i++)
        if (strcmp(p->items[i].rank, p->items[0].rank)) return false;
    return true;
}

/* ---- the rule of numbers ---- */

static size_t kind_of(struct map *kinds, struct arena *a, const struct stored_tensor *t)
{
    size_t kind = kinds->count + 1;
    (void)map_add(kinds, shape_text(a, t->num_dims, t->shape), kind, &kind);
    return kind;
}

static const char *name_by_shape(struct arena *a, const struct dcp_entry *entries,
                                 const struct places *params, const struct places *states,
                                 const size_t *group_of, struct dcp_numbers *out)
{
    struct map kinds = {0};
    size_t *of_params = arena_array(a, params->count + 1, sizeof *of_params);
    size_t *by_number = arena_array(a, out->count, sizeof *by_number), count = 0;
    struct numbered *items = arena_array(a, states->count + 1, sizeof *items);
    size_t *numbers = arena_array(a, states->count + 1, sizeof *numbers);
    size_t *param_of = arena_array(a, states->count + 1, sizeof *param_of);
    for (size_t i = 0; i < params->count; i++)
        of_params[i] = kind_of(&kinds, a, params->items[i].t);
    for (size_t i = 0; i < states->count; i++)
        by_number[states->items[i].at] = kind_of(&kinds, a, states->items[i].t);
    for (size_t n = 0; n < out->count; n++) {
        if (!by_number[n]) continue;
        numbers[count] = n;
        items[count++] = (struct numbered){group_of ? group_of[n] - 1 : 0, by_number[n]};
    }
    const char *why = numbered_assign(a, of_params, params->count, items, count, param_of);
    for (size_t i = 0; i < count && !why; i++)
        out->names[numbers[i]] = entries[params->items[param_of[i]].at].name;
    map_release(&kinds);
    return why;
}

/* ---- the rule of places ---- */

static bool same_extents(unsigned num_dims, const uint64_t *a, const uint64_t *b)
{
    return a == b || (a && b && memcmp(a, b, num_dims * sizeof *a) == 0);
}

/* Whether tensors have one shape, cut alike, on the same ranks. */
static bool lie_alike(struct arena *a, const struct stored *s, const struct stored_tensor *x,
                      const struct stored_tensor *y)
{
    if (x->num_dims != y->num_dims || x->num_pieces != y->num_pieces ||
        !same_extents(x->num_dims, x->shape, y->shape))
        return false;
    for (size_t i = 0; i < x->num_pieces; i++) {
        const struct stored_piece *p = &x->pieces[i], *q = &y->pieces[i];
        if (!same_extents(x->num_dims, p->start, q->start) ||
            !same_extents(x->num_dims, p->extent, q->extent) ||
            strcmp(rank_of(a, s, p->file), rank_of(a, s, q->file)))
            return false;
    }
    return true;
}

static const char *name_by_place(struct arena *a, const struct stored *s,
                                 const struct dcp_entry *entries, const struct places *params,
                                 const struct places *states, struct dcp_numbers *out)
{
    if (params->count != states->count)
        return arena_printf(a, "%zu parameters lie on several ranks, but %zu numbers have states",
                            params->count, states->count);
    for (size_t i = 0; i < states->count; i++) {
        const struct place *p = &params->items[i], *q = &states->items[i];
        if (!lie_alike(a, s, p->t, q->t) ||
            (i && !strcmp(q->rank, q[-1].rank) && q->at <= q[-1].at))
            return arena_printf(a, "states of number %zu do not lie as %s does", q->at,
                                entries[p->at].name);
        out->names[q->at] = entries[p->at].name;
    }
    return NULL;
}

const char *dcp_numbers_name(struct arena *a, const struct stored *s,
                             const struct dcp_entry *entries, const char *below,
                             const size_t *group_of, size_t count, struct dcp_numbers *out)
{
    struct places params = {0}, states = {0};
    const char *why;
    *out = (struct dcp_numbers){arena_array(a, count, sizeof *out->names), count};
    list_params(&params, a, s, entries, below);
    list_states(&states, a, s, entries, count);
    if (is_on_one_rank(&params))
        why = name_by_shape(a, entries, &params, &states, group_of, out);
    else if (group_of)
        why = "several groups, and no rank has a part of every parameter";
    else
        why = name_by_place(a, s, entries, &params, &states, out);
    if (why) *out = (struct dcp_numbers){0};
    return why;
}

void dcp_numbers_replace(const struct dcp_numbers *n, struct dcp_entry *entries, size_t count)
{
    uint64_t number;
    for (size_t i = 0; i < count; i++)
        if (has_number(&entries[i], &number) && number < n->count && n->names[number])
            entries[i].name = n->names[number];
}
