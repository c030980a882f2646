#include "validate/forward/loaded.h"

#include <string.h>

#include "common/json.h"
#include "common/map.h"
#include "validate/hints/hints.h"

enum { SHOWN_NAMES = 3 };

static const char *const outcome_fields[NUM_LOADED_OUTCOMES] = {
    [LOADED_EQUAL] = "equal",       [LOADED_PASSES] = "differ_as_stored",
    [LOADED_ONE_SIDE] = "one_side", [LOADED_LEFT_OUT] = "left_out",
    [LOADED_DIFFERS] = "different", [LOADED_NOT_STORED] = "not_as_stored",
};

void loaded_init(struct loaded *l)
{
    *l = (struct loaded){0};
    arena_init(&l->arena);
}

void loaded_release(struct loaded *l)
{
    map_release(&l->names);
    arena_release(&l->arena);
}

static const char *digest_text(struct arena *a, const struct tensor_digest *d)
{
    struct strbuf text = {0};
    digest_print(&text, d);
    const char *out = arena_text(a, text.data, text.length);
    strbuf_release(&text);
    return out;
}

void loaded_take(struct loaded *l, unsigned side, const struct tensor_digest *d)
{
    size_t at;
    if (!map_get(&l->names, d->name, &at)) {
        struct loaded_weight *w = ARENA_PUSH(&l->arena, l->items, l->count, l->capacity);
        *w = (struct loaded_weight){.name = arena_copy_text(&l->arena, d->name)};
        at = l->count - 1;
        (void)map_add(&l->names, w->name, at, NULL);
    }
    l->items[at].digests[side] = digest_text(&l->arena, d);
    l->has_b |= side == 1;
}

/* ---- the outcome ---- */

/* Whether the weight in memory has the digest of the tensor in the files. */
static bool is_stored(struct arena *a, const struct compared *t, const char *digest)
{
    const struct tensor *of = t->tensors[0];
    const struct tensor_digest stored = {.name = t->name,
                                         .dtype = of->dtype,
                                         .num_dims = of->num_dims,
                                         .shape = of->shape,
                                         .sums = t->digest};
    return strcmp(digest_text(a, &stored), digest) == 0;
}

/* Whether the files differ in a way allowed in memory too: within the
 * tolerance, or by a cast between two dtypes. */
static bool may_differ(const struct compared *t)
{
    if (t->outcome == WITHIN) return true;
    return t->outcome == DTYPE_DIFFERS && t->hint && strcmp(t->hint->id, "rounding") == 0;
}

static enum loaded_outcome judge_weight(struct loaded *l, const struct loaded_weight *w,
                                        const struct compared *t)
{
    if (!w->digests[0] || !w->digests[1]) return LOADED_ONE_SIDE;
    if (!t) return LOADED_LEFT_OUT;
    for (unsigned side = 0; side < 2 && t->digested; side++)
        if (!is_stored(&l->arena, t, w->digests[side])) return LOADED_NOT_STORED;
    if (t->digested) l->num_stored++;
    if (strcmp(w->digests[0], w->digests[1]) == 0) return LOADED_EQUAL;
    return may_differ(t) ? LOADED_PASSES : LOADED_DIFFERS;
}

void loaded_judge(struct loaded *l, const struct comparison *files)
{
    struct map names = {0};
    for (size_t i = 0; files && i < files->num_tensors; i++) {
        const char *name = files->tensors[i].name;
        size_t at;
        (void)map_add(&names, name, i, NULL);
        if (!map_get(&l->names, name, &at) && !name_is_optimizer(name)) l->num_not_loaded++;
    }
    for (size_t i = 0; i < l->count; i++) {
        struct loaded_weight *w = &l->items[i];
        size_t at;
        bool found = map_get(&names, w->name, &at);
        w->outcome = judge_weight(l, w, found ? &files->tensors[at] : NULL);
        l->counts[w->outcome]++;
    }
    map_release(&names);
}

bool loaded_passes(const struct loaded *l)
{
    return !l->counts[LOADED_DIFFERS] && !l->counts[LOADED_NOT_STORED];
}

/* ---- text and JSON ---- */

static void names_text(struct strbuf *out, const struct loaded *l, enum loaded_outcome outcome)
{
    size_t shown = 0;
    for (size_t i = 0; i < l->count && shown < SHOWN_NAMES; i++) {
        if (l->items[i].outcome != outcome) continue;
        strbuf_add_text(out, shown++ ? ", " : ": ");
        strbuf_add_escaped(out, l->items[i].name, strlen(l->items[i].name));
    }
    if (l->counts[outcome] > shown) strbuf_printf(out, " and %zu more", l->counts[outcome] - shown);
}

/* "; 3 are on one side only", if there are any. */
static void count_text(struct strbuf *out, size_t count, const char *what)
{
    if (count) strbuf_printf(out, "; %zu %s %s", count, count == 1 ? "is" : "are", what);
}

static void difference_text(struct strbuf *out, const struct loaded *l)
{
    size_t compared = l->count - l->counts[LOADED_ONE_SIDE] - l->counts[LOADED_LEFT_OUT];
    size_t differ = l->counts[LOADED_DIFFERS];
    if (l->counts[LOADED_EQUAL] == compared)
        strbuf_printf(out, "%zu tensor%s, equal in A and B", compared, plural(compared));
    else
        strbuf_printf(out, "%zu of %zu tensors equal in A and B", l->counts[LOADED_EQUAL],
                      compared);
    count_text(out, l->counts[LOADED_PASSES], "different as in the files");
    count_text(out, differ, "DIFFERENT");
    if (differ) names_text(out, l, LOADED_DIFFERS);
}

void loaded_text(struct strbuf *out, const struct loaded *l)
{
    strbuf_add_text(out, "in memory: ");
    if (!l->has_b) {
        strbuf_printf(out, "%zu tensor%s of A", l->count, plural(l->count));
        return;
    }
    difference_text(out, l);
    count_text(out, l->counts[LOADED_NOT_STORED], "NOT equal to both files");
    if (l->counts[LOADED_NOT_STORED]) names_text(out, l, LOADED_NOT_STORED);
    count_text(out, l->num_stored, "equal to both files");
    count_text(out, l->counts[LOADED_ONE_SIDE], "on one side only");
    count_text(out, l->counts[LOADED_LEFT_OUT], "left out");
    count_text(out, l->num_not_loaded, "not loaded by any rank");
}

static void names_json(cJSON *o, const struct loaded *l, enum loaded_outcome outcome)
{
    cJSON *names = cJSON_AddArrayToObject(o, outcome_fields[outcome]);
    for (size_t i = 0; i < l->count; i++)
        if (l->items[i].outcome == outcome)
            cJSON_AddItemToArray(names, cJSON_CreateString(l->items[i].name));
}

void loaded_json(cJSON *o, const struct loaded *l)
{
    cJSON *j = cJSON_AddObjectToObject(o, "weights_in_memory");
    json_add_u64(j, "tensors", l->count);
    json_add_u64(j, "as_stored", l->num_stored);
    json_add_u64(j, "not_loaded", l->num_not_loaded);
    for (enum loaded_outcome k = 0; k < LOADED_DIFFERS; k++)
        json_add_u64(j, outcome_fields[k], l->counts[k]);
    names_json(j, l, LOADED_DIFFERS);
    names_json(j, l, LOADED_NOT_STORED);
}
