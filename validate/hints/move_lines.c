/* move_lines.c - reports moved tensors, as moved layers or experts if all their
 * tensors moved. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/strbuf.h"
#include "validate/hints/hints_internal.h"

/* A layer or expert of B whose tensors equal those of another layer or expert
 * of A. */
struct unit {
    size_t first, end; /* in telling.sorted */
    int64_t from_layer, from_expert;
    bool wrong;
};

struct telling {
    struct workshop *w;
    struct comparison *c;
    struct compared **sorted; /* all tensors, by place and expert */
    struct map names;         /* to the index in c->tensors */
    bool *told;               /* of each tensor of c */
    struct unit *units;
    size_t num_units;
    struct claim **claims; /* that a tensor that did not move is equal in both units */
    size_t *unit_of;       /* of each claim */
    size_t num_claims;
};

static const struct place *place_at(const struct telling *t, size_t i)
{
    return &t->sorted[i]->place;
}

static int by_unit(const void *a, const void *b)
{
    const struct compared *x = *(struct compared *const *)a, *y = *(struct compared *const *)b;
    int order = place_compare(&x->place, &y->place);
    if (order) return order;
    if (x->place.expert != y->place.expert) return x->place.expert < y->place.expert ? -1 : 1;
    return x < y ? -1 : x > y;
}

static void telling_init(struct telling *t, struct workshop *w)
{
    struct comparison *c = w->c;
    size_t n = c->num_tensors + 1;
    *t = (struct telling){.w = w, .c = c};
    t->sorted = must_calloc(n, sizeof(struct compared *));
    t->told = must_calloc(n, sizeof *t->told);
    t->units = must_calloc(n, sizeof *t->units);
    t->claims = must_calloc(n, sizeof(struct claim *));
    t->unit_of = must_calloc(n, sizeof *t->unit_of);
    for (size_t i = 0; i < c->num_tensors; i++) {
        t->sorted[i] = &c->tensors[i];
        (void)map_add(&t->names, c->tensors[i].name, i, NULL);
    }
    qsort(t->sorted, c->num_tensors, sizeof *t->sorted, by_unit);
}

static void telling_release(struct telling *t)
{
    map_release(&t->names);
    free(t->sorted);
    free(t->told);
    free(t->units);
    free(t->claims);
    free(t->unit_of);
}

/* ---- units ---- */

static size_t end_of_unit(const struct telling *t, size_t i, bool experts)
{
    size_t end = i + 1;
    while (end < t->c->num_tensors && place_compare(place_at(t, i), place_at(t, end)) == 0 &&
           (!experts || place_at(t, i)->expert == place_at(t, end)->expert))
        end++;
    return end;
}

/* The tensor of A with the stack and kind of p, in the given layer and expert;
 * NULL: none. */
static const struct compared *counterpart(const struct telling *t, const struct place *p,
                                          int64_t layer, int64_t expert)
{
    struct strbuf name = {0};
    const char *star = expert >= 0 ? strchr(p->kind, '*') : NULL;
    strbuf_printf(&name, "%s%s%" PRId64 ".", p->stack, *p->stack ? "." : "", layer);
    if (star)
        strbuf_printf(&name, "%.*s%" PRId64 "%s", (int)(star - p->kind), p->kind, expert, star + 1);
    else
        strbuf_add_text(&name, p->kind);
    size_t i = 0;
    bool found = map_get(&t->names, name.data, &i);
    strbuf_release(&name);
    return found && t->c->tensors[i].tensors[0] ? &t->c->tensors[i] : NULL;
}

/* The first moved tensor without a line; NULL: none. */
static const struct compared *first_moved(const struct telling *t, size_t i, size_t end)
{
    for (; i < end; i++)
        if (t->sorted[i]->moved_from && !t->told[t->sorted[i] - t->c->tensors]) return t->sorted[i];
    return NULL;
}

static bool same_kind_of_tensor(const struct tensor *a, const struct tensor *b)
{
    return a->dtype == b->dtype && a->num_dims == b->num_dims &&
           memcmp(a->shape, b->shape, a->num_dims * sizeof *a->shape) == 0;
}

/* A tensor that did not move with its unit must equal its counterpart in A.
 * Tests a few elements; the claim is proven later with all others. */
static enum status claim_same(struct telling *t, const struct compared *here,
                              const struct compared *there, bool *holds, struct error *err)
{
    const struct tensor *a = there->read[0], *b = here->read[1];
    *holds = same_kind_of_tensor(there->tensors[0], here->tensors[1]);
    if (!*holds || b->numel == 0) return OK;
    struct claim *claim = arena_alloc(&t->w->arenas[0], sizeof *claim);
    struct places places = places_of(b->numel, UINT64_MAX, UINT64_MAX);
    *claim = claim_of(a, b, CAST, 0);
    TRY(claim_try(&t->w->samplers[0], claim, &places, holds, err));
    t->unit_of[t->num_claims] = t->num_units;
    if (*holds) t->claims[t->num_claims++] = claim;
    return OK;
}

/* Whether the tensor may have moved with its unit. */
static enum status may_have_moved(struct telling *t, const struct compared *here,
                                  const struct unit *u, bool *holds, struct error *err)
{
    *holds = true;
    if (!here->tensors[1]) return OK;
    const struct compared *there = counterpart(
        t, &here->place, u->from_layer, u->from_expert >= 0 ? u->from_expert : here->place.expert);
    if (here->moved_from || !there || !outcome_passes(here->outcome)) {
        *holds = there && here->moved_from == there;
        return OK;
    }
    return claim_same(t, here, there, holds, err);
}

static int compare_units(const struct place *x, const struct place *y, bool experts)
{
    int order = place_compare(x, y);
    if (order || !experts || x->expert == y->expert) return order;
    return x->expert < y->expert ? -1 : 1;
}

static size_t num_on_side(const struct telling *t, size_t i, size_t end, unsigned side)
{
    size_t n = 0;
    for (; i < end; i++)
        n += t->sorted[i]->tensors[side] != NULL;
    return n;
}

/* Number of A's tensors in the unit of p. */
static size_t num_in_a(const struct telling *t, const struct place *p, bool experts)
{
    size_t low = 0, high = t->c->num_tensors;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare_units(place_at(t, middle), p, experts) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return num_on_side(t, low, end_of_unit(t, low, experts), 0);
}

/* Adds tensors [i, end) as a unit if they all moved from one other unit. */
static enum status add_unit(struct telling *t, size_t i, size_t end, bool experts,
                            struct error *err)
{
    const struct compared *moved = first_moved(t, i, end);
    if (!moved) return OK;
    const struct place *to = &moved->place, *from = &moved->moved_from->place;
    struct unit u = {i, end, from->layer, experts ? from->expert : -1, false};
    bool elsewhere =
        experts ? from->layer == to->layer && from->expert != to->expert : from->layer != to->layer;
    bool holds = elsewhere && place_same_kind(to, from) &&
                 num_on_side(t, i, end, 1) == num_in_a(t, from, experts);
    size_t claims_before = t->num_claims;
    for (; i < end && holds; i++)
        TRY(may_have_moved(t, t->sorted[i], &u, &holds, err));
    if (holds)
        t->units[t->num_units++] = u;
    else
        t->num_claims = claims_before;
    return OK;
}

static enum status find_units(struct telling *t, bool experts, struct error *err)
{
    t->num_units = t->num_claims = 0;
    for (size_t i = 0, end; i < t->c->num_tensors; i = end) {
        end = end_of_unit(t, i, experts);
        if ((experts ? place_at(t, i)->expert : place_at(t, i)->layer) >= 0)
            TRY(add_unit(t, i, end, experts, err));
    }
    TRY(claims_prove(t->c, t->claims, t->num_claims, err));
    for (size_t i = 0; i < t->num_claims; i++)
        if (!t->claims[i]->proven) t->units[t->unit_of[i]].wrong = true;
    return OK;
}

/* ---- lines ---- */

/* Adds a line for the moved tensors of the units. */
static void tell_units(struct telling *t, const char *id, const char *text,
                       const struct unit *const *units, size_t num_units)
{
    const struct compared **of = must_calloc(t->c->num_tensors, sizeof(struct compared *));
    size_t n = 0;
    for (size_t k = 0; k < num_units; k++)
        for (size_t i = units[k]->first; i < units[k]->end; i++) {
            if (!t->sorted[i]->moved_from) continue;
            t->told[t->sorted[i] - t->c->tensors] = true;
            of[n++] = t->sorted[i];
        }
    hint_line_push(t->c, id, text, of, n);
    free(of);
}

static bool continues(const struct telling *t, const struct unit *u, const struct unit *next)
{
    const struct place *p = place_at(t, u->first), *q = place_at(t, next->first);
    return !next->wrong && strcmp(p->stack, q->stack) == 0 && q->layer == p->layer + 1 &&
           next->from_layer == u->from_layer + 1;
}

/* "layers 8 to 15 of B are layers 16 to 23 of A" */
static void tell_layers(struct telling *t)
{
    const struct unit **run = must_calloc(t->num_units + 1, sizeof(struct unit *));
    for (size_t i = 0, n; i < t->num_units; i += n) {
        const struct unit *u = &t->units[i];
        n = 1;
        if (u->wrong) continue;
        for (; i + n < t->num_units && continues(t, &t->units[i + n - 1], &t->units[i + n]);)
            n++;
        for (size_t k = 0; k < n; k++)
            run[k] = &t->units[i + k];
        const struct place *p = place_at(t, u->first);
        int64_t more = (int64_t)n - 1;
        tell_units(t, "layers-moved",
                   arena_printf(&t->c->arena, "%s of B %s %s of A",
                                layers_range_text(&t->c->arena, p, p->layer, p->layer + more,
                                                  t->c->main_stack),
                                more ? "are" : "is",
                                layers_range_text(&t->c->arena, p, u->from_layer,
                                                  u->from_layer + more, t->c->main_stack)),
                   run, n);
    }
    free(run);
}

/* A line on the experts of one layer, units [first, first + count). */
struct expert_line {
    const char *text;
    size_t first, count;
};

static int by_text(const void *a, const void *b)
{
    const struct expert_line *x = a, *y = b;
    int order = strcmp(x->text, y->text);
    if (order) return order;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* "the experts are permuted: 0 1 2 .. of B are 2 0 1 .. of A", with moved
 * experts only. */
static const char *experts_text(struct telling *t, const struct unit *units, size_t n)
{
    enum { SHOWN = 8 };
    struct strbuf to = {0}, from = {0};
    size_t moved = 0;
    for (size_t i = 0; i < n; i++) {
        if (units[i].wrong || moved++ >= SHOWN) continue;
        strbuf_printf(&to, " %" PRId64, place_at(t, units[i].first)->expert);
        strbuf_printf(&from, " %" PRId64, units[i].from_expert);
    }
    const char *more = moved > SHOWN ? " .." : "";
    const char *text =
        moved ? arena_printf(&t->c->arena, "the experts are permuted:%s%s of B are%s%s of A",
                             to.data, more, from.data, more)
              : NULL;
    strbuf_release(&to);
    strbuf_release(&from);
    return text;
}

/* Adds one line for layers whose experts moved alike. */
static void tell_alike(struct telling *t, const struct expert_line *lines, size_t n)
{
    const struct unit **units = must_calloc(t->num_units, sizeof(struct unit *));
    int64_t *layers = must_calloc(n, sizeof *layers);
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        layers[i] = place_at(t, t->units[lines[i].first].first)->layer;
        for (size_t k = 0; k < lines[i].count; k++) {
            const struct unit *u = &t->units[lines[i].first + k];
            if (!u->wrong) units[count++] = u;
        }
    }
    const char *where = layers_text(t->c, place_at(t, units[0]->first), layers, n);
    tell_units(t, "experts-permuted", arena_printf(&t->c->arena, "%s, %s", where, lines[0].text),
               units, count);
    free(units);
    free(layers);
}

static void tell_experts(struct telling *t)
{
    struct expert_line *lines = must_calloc(t->num_units + 1, sizeof *lines);
    size_t num_lines = 0;
    for (size_t i = 0, n; i < t->num_units; i += n) {
        for (n = 1; i + n < t->num_units && place_compare(place_at(t, t->units[i].first),
                                                          place_at(t, t->units[i + n].first)) == 0;)
            n++;
        const char *text = experts_text(t, &t->units[i], n);
        if (text) lines[num_lines++] = (struct expert_line){text, i, n};
    }
    qsort(lines, num_lines, sizeof *lines, by_text);
    for (size_t i = 0, end; i < num_lines; i = end) {
        for (end = i + 1; end < num_lines && strcmp(lines[i].text, lines[end].text) == 0;)
            end++;
        tell_alike(t, &lines[i], end - i);
    }
    free(lines);
}

/* ---- names ---- */

static int compare_stacks(const struct place *x, const struct place *y)
{
    return strcmp(x->stack ? x->stack : "", y->stack ? y->stack : "");
}

static int by_kinds(const void *a, const void *b)
{
    const struct compared *x = *(const struct compared *const *)a,
                          *y = *(const struct compared *const *)b;
    const struct place *p = &x->place, *q = &y->place, *from_p = &x->moved_from->place,
                       *from_q = &y->moved_from->place;
    int order = compare_stacks(p, q);
    if (!order) order = strcmp(p->kind, q->kind);
    if (!order) order = compare_stacks(from_p, from_q);
    if (!order) order = strcmp(from_p->kind, from_q->kind);
    if (order) return order;
    if (p->layer != q->layer) return p->layer < q->layer ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Whether both have one kind and equal tensors of one other kind, each in its
 * own layer. */
static bool moved_alike(const struct compared *x, const struct compared *y)
{
    const struct compared *both[] = {x, y};
    for (int i = 0; i < 2; i++) {
        const struct place *to = &both[i]->place, *from = &both[i]->moved_from->place;
        if (to->layer < 0 || to->layer != from->layer || to->expert != from->expert) return false;
    }
    return place_same_kind(&x->place, &y->place) &&
           place_same_kind(&x->moved_from->place, &y->moved_from->place);
}

/* "in 3 of 6 layers (0, 2, 4), KIND of B is KIND of A" */
static void tell_kind(struct comparison *c, const struct compared *const *of, size_t n)
{
    int64_t *layers = must_calloc(n, sizeof *layers);
    size_t num_layers = 0;
    for (size_t i = 0; i < n; i++)
        if (!num_layers || layers[num_layers - 1] != of[i]->place.layer)
            layers[num_layers++] = of[i]->place.layer;
    const char *text = arena_printf(
        &c->arena, "%s, %s of B is %s of A", layers_text(c, &of[0]->place, layers, num_layers),
        place_kind_text(&c->arena, &of[0]->place, c->main_stack),
        place_kind_text(&c->arena, &of[0]->moved_from->place, c->main_stack));
    hint_line_push(c, moved_id, text, of, n);
    free(layers);
}

static void tell_names(struct telling *t)
{
    struct comparison *c = t->c;
    const struct compared **rest = must_calloc(c->num_tensors + 1, sizeof(struct compared *));
    size_t n = 0;
    for (size_t i = 0; i < c->num_tensors; i++)
        if (c->tensors[i].moved_from && !t->told[i]) rest[n++] = &c->tensors[i];
    qsort(rest, n, sizeof *rest, by_kinds);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && moved_alike(rest[i], rest[end]);)
            end++;
        if (end - i > 1)
            tell_kind(c, &rest[i], end - i);
        else
            hint_line_push(c, moved_id, rest[i]->hint->text, &rest[i], 1);
    }
    free(rest);
}

/* Sets the hint of tensors only in A that B has under another name. */
static void explain_sources(struct comparison *c)
{
    for (size_t i = 0; i < c->num_tensors; i++) {
        const struct compared *from = c->tensors[i].moved_from;
        if (!from || from->outcome != ONLY_IN_A || from->hint) continue;
        set_hint(c, &c->tensors[from - c->tensors], moved_id, c->tensors[i].hint->text);
    }
}

enum status move_lines_add(struct workshop *w, struct error *err)
{
    struct telling t;
    telling_init(&t, w);
    enum status st = find_units(&t, false, err);
    if (!st) tell_layers(&t);
    if (!st) st = find_units(&t, true, err);
    if (!st) {
        tell_experts(&t);
        tell_names(&t);
        explain_sources(w->c);
    }
    telling_release(&t);
    return st;
}
