#include "validate/compare/compare.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/encoding.h"
#include "ckpt/scan.h"
#include "common/checked.h"
#include "common/memory.h"
#include "validate/compare/optimizer.h"
#include "validate/compare/parts.h"

// clang-format off
#define OUTCOMES(X)                                      \
    X(IDENTICAL,     "identical",   "identical")         \
    X(WITHIN,        "within",      "within tolerance")  \
    X(VALUES_DIFFER, "values",      "values differ")     \
    X(DTYPE_DIFFERS, "dtype",       "dtype differs")     \
    X(SHAPE_DIFFERS, "shape",       "shape differs")     \
    X(ONLY_IN_A,     "only_in_a",   "only in A")         \
    X(ONLY_IN_B,     "only_in_b",   "only in B")
// clang-format on

const char *const outcome_ids[NUM_OUTCOMES] = {
#define X(outcome, id, name) [outcome] = id,
    OUTCOMES(X)
#undef X
};

const char *const outcome_names[NUM_OUTCOMES] = {
#define X(outcome, id, name) [outcome] = name,
    OUTCOMES(X)
#undef X
};

void compare_note(struct comparison *c, const char *text)
{
    *ARENA_PUSH(&c->arena, c->notes, c->num_notes, c->notes_capacity) = text;
}

/* ---- pairs of tensors ---- */

/* Number of matching stored tensors of t. */
static size_t num_parts_matched(const struct arg_list *globs, const struct tensor *t)
{
    size_t n = 0;
    for (size_t i = 0; t && i < t->num_stored_names; i++)
        n += globs_match(globs, t->stored_names[i]);
    return n;
}

static bool any_part_matches(const struct arg_list *globs, const struct compared *t)
{
    return num_parts_matched(globs, t->tensors[0]) || num_parts_matched(globs, t->tensors[1]);
}

static bool all_parts_match(const struct arg_list *globs, const struct tensor *t)
{
    return t && t->num_stored_names && num_parts_matched(globs, t) == t->num_stored_names;
}

/* --only selects a tensor if one stored part matches; --ignore leaves it out
 * only if all stored parts of a side match, since the others would be left out
 * too. */
static bool pair_is_wanted(const struct compare_options *o, const struct compared *t)
{
    if (o->only && o->only->count && !globs_match(o->only, t->name) &&
        !any_part_matches(o->only, t))
        return false;
    return !globs_match(o->ignore, t->name) && !all_parts_match(o->ignore, t->tensors[0]) &&
           !all_parts_match(o->ignore, t->tensors[1]);
}

static bool shapes_equal(const struct tensor *a, const struct tensor *b)
{
    return a->num_dims == b->num_dims &&
           memcmp(a->shape, b->shape, a->num_dims * sizeof *a->shape) == 0;
}

uint64_t stored_dtypes(const struct tensor *t)
{
    uint64_t dtypes = 0;
    for (size_t i = 0; i < t->num_pieces; i++) {
        const enum dtype piece = t->pieces[i].dtype;
        /* elements of a wider dtype are read as the tensor's (a master as the
         * weight), and so are sums */
        const bool as_tensor = dtype_bytes(piece) > dtype_bytes(t->dtype) || t->pieces[i].add != 0;
        if (piece_origin(&t->pieces[i])->is_stored)
            dtypes |= UINT64_C(1) << (as_tensor ? t->dtype : piece);
    }
    return dtypes ? dtypes : UINT64_C(1) << t->dtype;
}

/* Whether a tensor is a master weight that a conversion made of its weight
 * (states_widen). */
static bool is_widened(const struct tensor *t)
{
    return t->same_as && stored_dtypes(t) != UINT64_C(1) << t->dtype;
}

/* Whether each element is stored in the same dtype on both sides. */
static bool same_dtypes(const struct tensor *a, const struct tensor *b)
{
    uint64_t dtypes = stored_dtypes(a);
    if (a->dtype != b->dtype) return false;
    if (is_widened(a) || is_widened(b)) return true;
    if (dtypes != stored_dtypes(b)) return false;
    if ((dtypes & (dtypes - 1)) == 0) return true;
    for (size_t i = 0; i < a->num_pieces; i++) {
        const struct pair pair = pair_unpack(&a->pieces[i].pair);
        for (size_t k = 0; k < b->num_pieces; k++) {
            const struct pair other = pair_unpack(&b->pieces[k].pair);
            if (a->pieces[i].dtype != b->pieces[k].dtype && pair_overlap(&pair, &other))
                return false;
        }
    }
    return true;
}

static enum outcome first_outcome(const struct compared *t)
{
    const struct tensor *a = t->tensors[0], *b = t->tensors[1];
    if (!b) return ONLY_IN_A;
    if (!a) return ONLY_IN_B;
    if (!shapes_equal(a, b)) return SHAPE_DIFFERS;
    return same_dtypes(a, b) ? IDENTICAL : DTYPE_DIFFERS;
}

static enum status add_pair(struct comparison *c, const struct tensor *a, const struct tensor *b,
                            struct error *err)
{
    struct compared t = {.name = a ? a->name : b->name, .tensors = {a, b}};
    if (name_is_of_encoding(t.name) && (!a || !b)) { /* the other side may be decoded */
        c->num_of_encoding[a ? 0 : 1]++;
        return OK;
    }
    if (!pair_is_wanted(&c->options, &t)) {
        c->num_left_out++;
        return OK;
    }
    t.outcome = first_outcome(&t);
    t.place = place_of_name(&c->arena, t.name);
    if (t.place.stack && !c->main_stack) c->main_stack = t.place.stack;
    statistics_init(&t.statistics);
    for (unsigned side = 0; side < 2; side++) {
        uint64_t bytes = 0;
        if (!t.tensors[side]) continue;
        t.read[side] = tensor_in_bytes(&c->arena, t.tensors[side]);
        if (!t.read[side])
            return fail(err, ERR_UNSUPPORTED, "%s: its elements are not stored in whole bytes",
                        t.name);
        (void)dtype_size_bytes(t.tensors[side]->dtype, t.tensors[side]->numel, &bytes);
        c->bytes[side] += bytes;
    }
    *ARENA_PUSH(&c->arena, c->tensors, c->num_tensors, c->capacity) = t;
    return OK;
}

static enum status add_pairs(struct comparison *c, const struct map *names_of_b, bool *in_both,
                             struct error *err)
{
    const struct side *a = &c->sides[0], *b = &c->sides[1];
    for (size_t i = 0, k; i < a->num_tensors; i++) {
        bool paired = map_get(names_of_b, a->tensors[i]->name, &k);
        if (paired) in_both[k] = true;
        TRY(add_pair(c, a->tensors[i], paired ? b->tensors[k] : NULL, err));
    }
    for (size_t k = 0; k < b->num_tensors; k++)
        if (!in_both[k]) TRY(add_pair(c, NULL, b->tensors[k], err));
    return OK;
}

static enum status pair_tensors(struct comparison *c, struct error *err)
{
    const struct side *b = &c->sides[1];
    struct map names = {0};
    bool *in_both = arena_array(&c->arena, b->num_tensors, sizeof *in_both);
    for (size_t k = 0; k < b->num_tensors; k++)
        (void)map_add(&names, b->tensors[k]->name, k, NULL);
    enum status st = add_pairs(c, &names, in_both, err);
    map_release(&names);
    if (!st && c->num_tensors == 0 && c->num_left_out)
        st = fail(err, ERR_USAGE, "--only and --ignore leave out all %zu tensors", c->num_left_out);
    return st;
}

/* ---- scans ---- */

/* Statistics of one task, joined later in the order of elements. */
struct partial {
    struct partial *next;
    size_t item;
    uint64_t low;
    struct statistics statistics;
};

struct comparing {
    struct comparison *c;
    struct scan scan;
    struct scan_item *items;
    struct compared **of;     /* items[i] belongs to of[i] */
    atomic_bool *differs;     /* [items] */
    struct partial **current; /* [workers] */
    struct parts *parts;      /* [2 * items]: of A and of B; tensor NULL: not compared */
    struct partial *partials; /* behind lock */
    size_t num_partials;
    pthread_mutex_t lock;
    struct progress *progress;
};

static uint64_t element_bytes(const struct scan_item *item)
{
    return dtype_bytes(item->tensors[0]->dtype) + dtype_bytes(item->tensors[1]->dtype);
}

static void show_progress(struct comparing *x, size_t item, uint64_t count)
{
    progress_add(x->progress, count * element_bytes(&x->items[item]));
}

/* Adds the wanted tensors to the scan; returns their bytes on both sides. */
static uint64_t comparing_init(struct comparing *x, struct comparison *c,
                               bool (*wanted)(const struct compared *t))
{
    uint64_t bytes = 0;
    *x = (struct comparing){.c = c};
    pthread_mutex_init(&x->lock, NULL);
    x->items = must_calloc(c->num_tensors + 1, sizeof *x->items);
    x->of = must_calloc(c->num_tensors + 1, sizeof(struct compared *));
    x->differs = must_calloc(c->num_tensors + 1, sizeof *x->differs);
    x->scan = (struct scan){
        .catalogs = {&c->sides[0].checkpoint.catalog, &c->sides[1].checkpoint.catalog},
        .items = x->items,
        .threads = c->options.threads,
        .max_memory = c->options.max_memory,
        .direct_io = c->options.direct_io,
        .context = x};
    for (size_t i = 0; i < c->num_tensors; i++) {
        struct compared *t = &c->tensors[i];
        if (!wanted(t)) continue;
        struct scan_item *item = &x->items[x->scan.num_items];
        *item = (struct scan_item){.tensors = {t->read[0], t->read[1]}};
        x->of[x->scan.num_items++] = t;
        bytes += t->read[0]->numel * element_bytes(item);
    }
    x->current = must_calloc(scan_threads(&x->scan), sizeof(struct partial *));
    return bytes;
}

static void comparing_release(struct comparing *x)
{
    for (struct partial *p = x->partials, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    for (unsigned i = 0; i < scan_threads(&x->scan); i++)
        free(x->current[i]);
    free(x->current);
    free(x->items);
    free(x->of);
    free((void *)x->differs);
    free(x->parts);
    pthread_mutex_destroy(&x->lock);
}

static enum status scan_all(struct comparing *x, const char *what, uint64_t bytes,
                            struct error *err)
{
    struct scan_result result;
    if (!x->scan.num_items) return OK;
    x->progress = progress_start(x->c->options.progress, what, bytes);
    enum status st = scan_run(&x->scan, &result, err);
    progress_finish(x->progress, st == OK);
    x->c->read_bytes += result.read_bytes;
    return st;
}

/* ---- the first scan: bytes ---- */

static bool can_be_identical(const struct compared *t)
{
    return t->outcome == IDENTICAL && t->read[0]->numel > 0;
}

static bool is_digested(const struct comparison *c, const struct compared *t)
{
    return c->options.digests && t->read[0]->dtype == c->options.digests_of;
}

static enum status skip_known(void *context, const struct scan_task *t, bool *skip,
                              struct error *err)
{
    struct comparing *x = context;
    (void)err;
    *skip = atomic_load_explicit(&x->differs[t->item], memory_order_relaxed);
    if (*skip) show_progress(x, t->item, t->high - t->low);
    return OK;
}

static void digest_panel(struct comparing *x, const struct scan_panel *p)
{
    struct compared *t = x->of[p->task->item];
    struct digest part = {{0}};
    digest_add_elements(&part, t->read[0]->dtype, p->elements[0], p->count, p->low);
    pthread_mutex_lock(&x->lock);
    digest_join(&t->digest, &part);
    pthread_mutex_unlock(&x->lock);
}

static enum status compare_bytes(void *context, const struct scan_panel *p, struct error *err)
{
    struct comparing *x = context;
    size_t item = p->task->item, bytes = dtype_bytes(x->of[item]->read[0]->dtype);
    (void)err;
    if (memcmp(p->elements[0], p->elements[1], p->count * bytes))
        atomic_store_explicit(&x->differs[item], true, memory_order_relaxed);
    else if (is_digested(x->c, x->of[item]))
        digest_panel(x, p);
    show_progress(x, item, p->count);
    return OK;
}

static enum status find_differing(struct comparison *c, struct error *err)
{
    struct comparing x;
    uint64_t bytes = comparing_init(&x, c, can_be_identical);
    x.scan.begin = skip_known;
    x.scan.visit = compare_bytes;
    enum status st = scan_all(&x, "comparing", bytes, err);
    for (size_t i = 0; i < x.scan.num_items; i++)
        if (x.differs[i])
            x.of[i]->outcome = VALUES_DIFFER;
        else
            x.of[i]->digested = !st && is_digested(c, x.of[i]);
    comparing_release(&x);
    return st;
}

/* ---- the second scan: distances ---- */

/* Whether elements can be counted. For tensors of different shapes with equal
 * element counts, only the bits are summed: statistics.bits. */
static bool can_be_counted(const struct compared *t)
{
    const struct tensor *a = t->read[0], *b = t->read[1];
    return t->outcome != IDENTICAL && a && b && a->numel == b->numel && a->numel > 0 &&
           statistics_exist(a->dtype, b->dtype);
}

/* max_ulp applies only to equal dtypes; atol and rtol apply to all. */
static struct tolerance tolerance_for(const struct comparison *c, const struct compared *t)
{
    struct tolerance out = c->options.tolerance;
    if (t->outcome == DTYPE_DIFFERS) out.by_ulps = false;
    return out;
}

static enum status begin_partial(void *context, const struct scan_task *t, bool *skip,
                                 struct error *err)
{
    struct comparing *x = context;
    struct partial *p = must_malloc(sizeof *p);
    (void)skip, (void)err;
    p->item = t->item;
    p->low = t->low;
    statistics_init(&p->statistics);
    x->current[t->worker] = p;
    return OK;
}

static enum status count_panel(void *context, const struct scan_panel *p, struct error *err)
{
    struct comparing *x = context;
    size_t item = p->task->item;
    const struct compared *t = x->of[item];
    struct elements a = {t->read[0]->dtype, p->elements[0]},
                    b = {t->read[1]->dtype, p->elements[1]};
    (void)err;
    struct tolerance tolerance = tolerance_for(x->c, t);
    struct statistics *s = &x->current[p->task->worker]->statistics;
    statistics_add(s, a, b, p->low, p->count, &tolerance);
    if (t->has_steps) statistics_add_steps(s, a, b, p->elements[2], p->count);
    for (unsigned side = 0; side < 2; side++)
        if (x->parts[2 * item + side].tensor)
            parts_add(&x->parts[2 * item + side], a.at, b.at, dtype_bytes(a.dtype), p->low,
                      p->count);
    show_progress(x, item, p->count);
    return OK;
}

static enum status end_partial(void *context, const struct scan_task *t, struct error *err)
{
    struct comparing *x = context;
    struct partial *p = x->current[t->worker];
    (void)err;
    x->current[t->worker] = NULL;
    pthread_mutex_lock(&x->lock);
    p->next = x->partials;
    x->partials = p;
    x->num_partials++;
    pthread_mutex_unlock(&x->lock);
    return OK;
}

static int by_item_and_low(const void *a, const void *b)
{
    const struct partial *x = *(const struct partial *const *)a,
                         *y = *(const struct partial *const *)b;
    if (x->item != y->item) return x->item < y->item ? -1 : 1;
    return x->low < y->low ? -1 : x->low > y->low;
}

static void join_partials(struct comparing *x)
{
    struct partial **sorted = must_calloc(x->num_partials + 1, sizeof(struct partial *));
    size_t n = 0;
    for (struct partial *p = x->partials; p; p = p->next)
        sorted[n++] = p;
    qsort(sorted, n, sizeof *sorted, by_item_and_low);
    for (size_t i = 0; i < n; i++)
        statistics_join(&x->of[sorted[i]->item]->statistics, &sorted[i]->statistics);
    free(sorted);
}

/* Prepares to find the differing parts of fused tensors. Tensors of two dtypes
 * are left out, since their bytes cannot be compared. */
static void comparing_init_parts(struct comparing *x)
{
    x->parts = must_calloc(2 * x->scan.num_items + 1, sizeof *x->parts);
    for (size_t i = 0; i < x->scan.num_items; i++)
        for (unsigned side = 0; side < 2; side++) {
            const struct compared *t = x->of[i];
            if (t->outcome != SHAPE_DIFFERS && t->read[side] == t->tensors[side] &&
                t->read[0]->dtype == t->read[1]->dtype && t->tensors[side]->num_stored_names > 1)
                parts_init(&x->parts[2 * i + side], &x->c->arena, &x->c->sides[side].checkpoint,
                           t->tensors[side]);
        }
}

static void conclude_parts(struct comparing *x, size_t item)
{
    struct compared *t = x->of[item];
    const struct statistics *s = &t->statistics;
    for (unsigned side = 0; side < 2; side++) {
        struct parts *p = &x->parts[2 * item + side];
        size_t n = t->tensors[side]->num_stored_names;
        bool known = p->tensor ? !p->lost : n == 1 && t->read[side] == t->tensors[side];
        if (!t->counted || !known || s->first > s->last) continue;
        uint64_t *first = arena_array(&x->c->arena, n, sizeof *first);
        for (size_t i = 0; i < n; i++)
            first[i] = p->tensor ? atomic_load(&p->first[i]) : s->first;
        t->first_in[side] = first;
    }
}

static void judge_tensor(const struct comparison *c, struct compared *t)
{
    struct tolerance tolerance = tolerance_for(c, t);
    bool tolerant = tolerance.by_bounds || tolerance.by_ulps;
    t->summed = t->read[0]->dtype == t->read[1]->dtype;
    t->counted = t->outcome != SHAPE_DIFFERS;
    if (tolerant && t->counted && t->statistics.outside == 0) t->outcome = WITHIN;
}

/* Adds steps of encodings to the items that have them, of one side. */
static void comparing_init_steps(struct comparing *x)
{
    struct comparison *c = x->c;
    for (size_t i = 0; i < x->scan.num_items; i++)
        if (tensor_is_decoded(x->of[i]->read[1])) c->steps_side = 1;
    for (size_t i = 0; i < x->scan.num_items; i++) {
        struct compared *t = x->of[i];
        const struct tensor *read = t->read[c->steps_side];
        const bool can = t->outcome != SHAPE_DIFFERS &&
                         statistics_have_distances(t->read[0]->dtype, t->read[1]->dtype);
        x->items[i].tensors[2] =
            can && tensor_is_decoded(read) ? tensor_steps(read, &c->arena) : NULL;
        t->has_steps = x->items[i].tensors[2] != NULL;
        c->in_steps |= t->has_steps;
    }
    if (c->in_steps) x->scan.catalogs[2] = x->scan.catalogs[c->steps_side];
}

static enum status count_differing(struct comparison *c, struct error *err)
{
    struct comparing x;
    uint64_t bytes = comparing_init(&x, c, can_be_counted);
    comparing_init_steps(&x);
    x.scan.begin = begin_partial;
    x.scan.visit = count_panel;
    comparing_init_parts(&x);
    x.scan.end = end_partial;
    x.scan.kept_bytes = (bytes / (32 << 20) + x.scan.num_items) * sizeof(struct partial);
    enum status st = scan_all(&x, "measuring differences", bytes, err);
    join_partials(&x);
    for (size_t i = 0; i < x.scan.num_items; i++) {
        judge_tensor(c, x.of[i]);
        conclude_parts(&x, i);
    }
    if (c->in_steps)
        compare_note(c,
                     arena_printf(&c->arena,
                                  "max steps: distances in steps between codes of %c's encoding; "
                                  "0.5 is what rounding to the nearest code leaves",
                                  side_letter(c->steps_side)));
    comparing_release(&x);
    return st;
}

/* ---- the whole ---- */

static void note_configs(struct comparison *c)
{
    for (size_t i = c->configs.num_computing; i < c->configs.count; i++)
        compare_note(c, configs_note_text(&c->arena, &c->configs.differences[i]));
}

/* Notes unknown fields, even if both sides have the same. */
static void note_unknown(struct comparison *c)
{
    const char *texts[2];
    for (unsigned i = 0; i < 2; i++)
        texts[i] = unknown_fields_text(&c->sides[i].checkpoint.unknown, true, &c->arena);
    bool same = texts[0] && texts[1] && strcmp(texts[0], texts[1]) == 0;
    for (unsigned i = 0; i < (same ? 1 : 2); i++)
        if (texts[i])
            compare_note(c,
                         arena_printf(&c->arena,
                                      "unknown fields in %s may change what the model computes: %s",
                                      same ? "A and B"
                                      : i  ? "B"
                                           : "A",
                                      texts[i]));
}

static void note_optimizer(struct comparison *c, unsigned side)
{
    const struct side *s = &c->sides[side];
    const struct optimizer_info *o = &s->checkpoint.training.optimizer;
    const char *why = c->options.no_optim ? "by --no-optim" : "the other side has none";
    if (s->num_optimizer)
        compare_note(c, arena_printf(&c->arena,
                                     "%zu tensor%s of the optimizer in %c %s not compared: %s",
                                     s->num_optimizer, plural(s->num_optimizer), side_letter(side),
                                     is_or_are(s->num_optimizer), why));
    else if (o->present && !optimizer_has_tensors(&s->checkpoint))
        compare_note(c, arena_printf(&c->arena, "the optimizer in %c (%s) is not compared: %s",
                                     side_letter(side), o->kind, why));
}

/* Notes missing and unexpected tensors, even if both sides have the same. */
static void note_names(struct comparison *c, unsigned side)
{
    const struct checkpoint *k = &c->sides[side].checkpoint;
    char letter = side_letter(side);
    const char *missing = arena_printf(&c->arena, "missing in %c", letter);
    const char *unexpected =
        arena_printf(&c->arena, "in %c that the model map does not know", letter);
    if (k->gaps.num_missing)
        compare_note(c, count_names_text(&c->arena, missing, k->gaps.missing, k->gaps.num_missing));
    if (k->gaps.num_unexpected)
        compare_note(
            c, count_names_text(&c->arena, unexpected, k->gaps.unexpected, k->gaps.num_unexpected));
}

/* Notes tensors that --ignore keeps, since its glob matches only some of their
 * parts. */
static void note_parts(struct comparison *c, const char *glob)
{
    const struct arg_list alone = {&glob, 1};
    const char *first = NULL, *others = "";
    size_t count = 0;
    for (size_t i = 0; i < c->num_tensors; i++) {
        if (!any_part_matches(&alone, &c->tensors[i])) continue;
        if (!count++) first = c->tensors[i].name;
    }
    if (!count) return;
    if (count > 1) others = arena_printf(&c->arena, " and %zu more", count - 1);
    compare_note(c, arena_printf(&c->arena,
                                 "--ignore '%s' matches only a part of %s%s, which %s compared",
                                 glob, first, others, is_or_are(count)));
}

static void note_left_out(struct comparison *c)
{
    for (unsigned i = 0; i < 2; i++) {
        const struct side *s = &c->sides[i];
        if (s->num_padding)
            compare_note(c, arena_printf(&c->arena,
                                         "%zu tensor%s of vocabulary padding in %c %s not compared",
                                         s->num_padding, plural(s->num_padding), side_letter(i),
                                         is_or_are(s->num_padding)));
        if (c->num_of_encoding[i])
            compare_note(c, arena_printf(&c->arena,
                                         "%zu tensor%s that came with encoded weights %s only in "
                                         "%c: weights are compared as decoded",
                                         c->num_of_encoding[i], plural(c->num_of_encoding[i]),
                                         is_or_are(c->num_of_encoding[i]), side_letter(i)));
        note_optimizer(c, i);
        note_names(c, i);
    }
    if (c->num_left_out)
        compare_note(c, arena_printf(&c->arena, "%zu tensor%s %s left out by --only and --ignore",
                                     c->num_left_out, plural(c->num_left_out),
                                     is_or_are(c->num_left_out)));
    for (size_t i = 0; c->options.ignore && i < c->options.ignore->count; i++)
        note_parts(c, c->options.ignore->items[i]);
}

/* Whether optimizer tensors of both sides are compared. */
static bool states_are_compared(const struct comparison *c)
{
    bool has[2] = {false, false};
    for (size_t i = 0; i < c->num_tensors; i++)
        for (unsigned side = 0; side < 2; side++)
            has[side] |= c->tensors[i].tensors[side] && name_is_optimizer(c->tensors[i].name);
    return has[0] && has[1] && !c->sides[0].stored_only && !c->sides[1].stored_only;
}

static void note_ignored_training(struct comparison *c)
{
    enum { SHOWN = 5 };
    const size_t count = c->training.num_ignored;
    const char *text = arena_printf(&c->arena,
                                    "%zu difference%s of the training states left out by "
                                    "--ignore-training",
                                    count, plural(count));
    if (!count) return;
    for (size_t i = 0; i < count && i < SHOWN; i++) {
        const struct training_difference *d = &c->training.ignored[i];
        text = arena_printf(&c->arena, "%s%s %s (%.60s in A, %.60s in B)", text, i ? "," : ":",
                            d->field, d->values[0], d->values[1]);
    }
    if (count > SHOWN) text = arena_printf(&c->arena, "%s and %zu more", text, count - SHOWN);
    compare_note(c, text);
}

static void compare_training(struct comparison *c)
{
    if (!states_are_compared(c)) return;
    c->training = training_states_compare(c->sides, c->options.ignore_training, &c->arena);
    if (c->training.iterations) compare_note(c, c->training.iterations);
    note_ignored_training(c);
}

static void count_outcomes(struct comparison *c)
{
    for (size_t i = 0; i < c->num_tensors; i++)
        c->counts[c->tensors[i].outcome]++;
}

enum status compare_run(struct comparison *c, const struct side sides[2],
                        const struct compare_options *o, struct error *err)
{
    *c = (struct comparison){.sides = sides, .options = *o};
    arena_init(&c->arena);
    TRY(configs_check_ignored(o->ignore_config, sides, &c->arena, err));
    TRY(training_check_ignored(o->ignore_training, sides, &c->arena, err));
    TRY(pair_tensors(c, err));
    c->configs = configs_compare(sides, o->ignore_config, &c->arena);
    note_configs(c);
    note_unknown(c);
    note_left_out(c);
    compare_training(c);
    TRY(find_differing(c, err));
    TRY(count_differing(c, err));
    count_outcomes(c);
    return OK;
}

void compare_release(struct comparison *c)
{
    arena_release(&c->arena);
}

bool compare_tensors_pass(const struct comparison *c)
{
    return compare_num_different(c) == 0;
}

bool compare_configs_pass(const struct comparison *c)
{
    return c->configs.num_computing == 0;
}

bool compare_settings_pass(const struct comparison *c)
{
    return compare_configs_pass(c) && c->training.count == 0;
}

size_t compare_num_different(const struct comparison *c)
{
    return c->num_tensors - c->counts[IDENTICAL] - c->counts[WITHIN];
}

/* ---- the worst ---- */

double compared_badness(const struct compared *t)
{
    if (!t->tensors[0] || !t->tensors[1]) return 4e300;
    if (t->outcome == SHAPE_DIFFERS) return 3e300;
    if (!t->counted) return 2e300;
    if (t->statistics.unpaired) return 1e300;
    double error = statistics_relative_error(&t->statistics);
    return isfinite(error) ? error : 1e299;
}

static int by_badness(const void *a, const void *b)
{
    const struct compared *x = *(const struct compared *const *)a,
                          *y = *(const struct compared *const *)b;
    double n = compared_badness(x), m = compared_badness(y);
    if (n != m) return n > m ? -1 : 1;
    return x < y ? -1 : x > y;
}

const struct compared **compare_worst(struct comparison *c, size_t *count)
{
    const struct compared **out = arena_array(&c->arena, c->num_tensors, sizeof *out);
    *count = 0;
    for (size_t i = 0; i < c->num_tensors; i++)
        if (!outcome_passes(c->tensors[i].outcome)) out[(*count)++] = &c->tensors[i];
    qsort(out, *count, sizeof *out, by_badness);
    return out;
}
