/* moves.c - finds tensors of B that equal tensors of A with other names:
 * shifted layers, permuted experts, exchanged names. A tensor's key is a digest
 * of a few elements; pairs with equal keys are compared in full. */
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"
#include "common/threads.h"
#include "kernels/cpu/digest_sums.h"
#include "validate/hints/hints_internal.h"

enum {
    LEAST_ELEMENTS = 16, /* fewer may be the same by chance */
    MAX_SOURCES = 4,     /* candidates of A for one tensor of B */
};

/* A tensor of one side that may have moved. */
struct moving {
    struct compared *of;
    const struct tensor *tensor;
    unsigned side;
    struct digest key;
    bool constant; /* all sampled elements are equal: the key identifies nothing */
};

struct movers {
    struct workshop *w;
    struct moving *all; /* targets, then sources */
    size_t num_targets, num_sources;
};

static int shape_order(const struct tensor *x, const struct tensor *y)
{
    if (x->dtype != y->dtype) return x->dtype < y->dtype ? -1 : 1;
    if (x->num_dims != y->num_dims) return x->num_dims < y->num_dims ? -1 : 1;
    return memcmp(x->shape, y->shape, x->num_dims * sizeof *x->shape);
}

static int by_shape(const void *a, const void *b)
{
    const struct moving *x = a, *y = b;
    return shape_order(x->tensor, y->tensor);
}

static int by_key(const void *a, const void *b)
{
    const struct moving *x = a, *y = b;
    int order = memcmp(&x->key, &y->key, sizeof x->key);
    return order ? order : by_shape(a, b);
}

static bool can_move(const struct compared *t, unsigned side)
{
    return t->read[side] && t->read[side] == t->tensors[side] &&
           t->read[side]->numel >= LEAST_ELEMENTS;
}

static void list_targets(struct movers *m, struct comparison *c)
{
    for (size_t i = 0; i < c->num_tensors; i++) {
        struct compared *t = &c->tensors[i];
        if (outcome_passes(t->outcome) || t->hint || !can_move(t, 1)) continue;
        m->all[m->num_targets++] = (struct moving){.of = t, .tensor = t->read[1], .side = 1};
    }
    qsort(m->all, m->num_targets, sizeof *m->all, by_shape);
}

/* Lists tensors of A with the dtype and shape of a target. */
static void list_sources(struct movers *m, struct comparison *c)
{
    for (size_t i = 0; i < c->num_tensors; i++) {
        struct moving source = {.of = &c->tensors[i], .tensor = c->tensors[i].read[0], .side = 0};
        if (!can_move(source.of, 0) ||
            !bsearch(&source, m->all, m->num_targets, sizeof source, by_shape))
            continue;
        m->all[m->num_targets + m->num_sources++] = source;
    }
}

static bool is_constant(const char *elements, size_t bytes, uint64_t n)
{
    for (uint64_t i = 1; i < n; i++)
        if (memcmp(elements, elements + i * bytes, bytes)) return false;
    return true;
}

static enum status read_key(void *context, size_t index, unsigned worker, struct error *err)
{
    struct movers *m = context;
    struct moving *x = &m->all[index];
    struct sampler *s = &m->w->samplers[worker];
    const struct tensor *t = x->tensor;
    struct places places = places_of(t->numel, UINT64_MAX, UINT64_MAX);
    unsigned bits = dtype_infos[t->dtype].bits, unit = bits < 64 ? bits : 64;
    x->constant = true;
    for (unsigned i = 0; i < places.count; i++) {
        uint64_t n = min_u64(SAMPLE_ELEMENTS, t->numel - places.at[i]);
        enum status st = panel_read(&s->readers[x->side], t, places.at[i], n, s->panels[0], err);
        if (st) return fail_in(err, "%s", t->name);
        x->constant &= is_constant(s->panels[0], dtype_bytes(t->dtype), n);
        digest_add(&x->key, s->panels[0], unit, n * bits / unit, i * SAMPLE_ELEMENTS * 2);
    }
    return OK;
}

/* ---- claims ---- */

/* Orders the sources of a target; a smaller distance is likelier. */
static uint64_t move_distance(const struct compared *target, const struct compared *source)
{
    const struct place *x = &target->place, *y = &source->place;
    uint64_t layers = (uint64_t)llabs((long long)(x->layer - y->layer));
    if (place_same_kind(x, y) && x->expert == y->expert) return layers;
    return (place_same_kind(x, y) ? UINT64_C(1) << 60 : UINT64_C(1) << 61) + layers;
}

/* Inserts a claim in order of distance; keeps the MAX_SOURCES nearest. */
static void add_claim(struct arena *a, struct attempt *at, const struct moving *target,
                      const struct moving *source)
{
    struct claim *claim = arena_alloc(a, sizeof *claim);
    *claim = claim_of(source->tensor, target->tensor, CAST, 0);
    claim->id = moved_id;
    claim->source = source->of;
    claim->text = arena_printf(a, "%s of B is %s of A", target->of->name, source->of->name);
    if (!at->claims) at->claims = arena_array(a, MAX_SOURCES + 1, sizeof(struct claim *));
    size_t i = at->num_claims;
    for (; i > 0 && move_distance(target->of, at->claims[i - 1]->source) >
                        move_distance(target->of, source->of);
         i--)
        at->claims[i] = at->claims[i - 1];
    at->claims[i] = claim;
    if (at->num_claims < MAX_SOURCES) at->num_claims++;
}

/* The first source with the target's key, among sources sorted by key. */
static const struct moving *first_source(const struct moving *sources, size_t n,
                                         const struct moving *target)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (by_key(&sources[middle], target) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return &sources[low];
}

static size_t make_attempts(struct movers *m, struct attempt *attempts)
{
    struct moving *sources = m->all + m->num_targets;
    size_t count = 0;
    qsort(sources, m->num_sources, sizeof *sources, by_key);
    for (size_t i = 0; i < m->num_targets; i++) {
        const struct moving *target = &m->all[i];
        struct attempt at = {.of = target->of};
        const struct moving *s = first_source(sources, m->num_sources, target);
        for (; !target->constant && s < sources + m->num_sources && by_key(s, target) == 0; s++)
            if (s->of != target->of) add_claim(&m->w->arenas[0], &at, target, s);
        if (at.num_claims) attempts[count++] = at;
    }
    return count;
}

/* ---- the whole ---- */

enum status moves_find(struct workshop *w, struct error *err)
{
    struct comparison *c = w->c;
    struct movers m = {.w = w};
    m.all = must_calloc(2 * c->num_tensors + 1, sizeof *m.all);
    list_targets(&m, c);
    list_sources(&m, c);
    struct attempt *attempts = must_calloc(m.num_targets + 1, sizeof *attempts);
    enum status st = OK;
    if (m.num_sources)
        st = threads_run(w->num_workers, m.num_targets + m.num_sources, read_key, &m, err);
    if (!st) st = attempts_prove(c, attempts, make_attempts(&m, attempts), err);
    if (!st) st = move_lines_add(w, err);
    free(attempts);
    free(m.all);
    return st;
}
