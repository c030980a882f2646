/* hints.c - finds the hints of all differing tensors: first by the counts, then
 * by claims. */
#include "validate/hints/hints.h"

#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/scan.h"
#include "common/checked.h"
#include "common/memory.h"
#include "common/threads.h"
#include "validate/hints/hints_internal.h"

enum {
    LEAST_ELEMENTS = 8, /* fewer may be constant by chance */
    FEW_ELEMENTS = 16,  /* rounding alone seldom changes fewer */
    BATCH = 2048,       /* tensors whose claims are kept at a time */
    OPEN_FILES = 256,
};

/* ---- hints by the counts ---- */

static bool set_hint_constant(struct comparison *c, struct compared *t)
{
    const struct statistics *s = &t->statistics;
    for (unsigned side = 0; side < 2; side++) {
        char name = side_letter(side);
        if (s->elements < LEAST_ELEMENTS || !statistics_constant(s, side) ||
            statistics_constant(s, 1 - side))
            continue;
        const char *text =
            s->value[side] == 0
                ? arena_printf(&c->arena, "%c is zero everywhere", name)
                : arena_printf(&c->arena, "%c is %.9g everywhere", name, s->value[side]);
        set_hint(c, t, "constant", text);
        return true;
    }
    return false;
}

/* "first in row 640, last in row 6143", of the first dimension; rows between
 * may be equal. */
static const char *rows_text(struct arena *a, const struct compared *t)
{
    const struct tensor *x = t->tensors[0];
    uint64_t row = x->num_dims && x->shape[0] ? x->numel / x->shape[0] : 1;
    uint64_t first = t->statistics.first / row, last = t->statistics.last / row;
    if (first == last) return arena_printf(a, "in row %" PRIu64, first);
    return arena_printf(a, "first in row %" PRIu64 ", last in row %" PRIu64, first, last);
}

static bool set_hint_zero(struct comparison *c, struct compared *t)
{
    const struct statistics *s = &t->statistics;
    uint64_t different = statistics_different(s);
    for (unsigned side = 0; side < 2; side++) {
        if (different < LEAST_ELEMENTS || s->zeros[side] != different) continue;
        set_hint(c, t, "zero",
                 arena_printf(&c->arena, "%c is zero wherever they differ, %s", side_letter(side),
                              rows_text(&c->arena, t)));
        return true;
    }
    return false;
}

/* Only bits differ, not values: +0 and -0, or two NaN. */
static bool set_hint_same_number(struct comparison *c, struct compared *t)
{
    const struct statistics *s = &t->statistics;
    uint64_t same = s->zero_signs + s->nan_bits;
    const char *text;
    if (!same || same != statistics_different(s)) return false;
    if (!s->nan_bits)
        text = "only the sign of zero differs";
    else if (!s->zero_signs)
        text = "wherever they differ both are NaN, with other bits";
    else
        text = "only the sign of zero and the bits of NaN differ";
    set_hint(c, t, "same-number", text);
    return true;
}

static void set_hints_of_counts(struct comparison *c)
{
    for (size_t i = 0; i < c->num_tensors; i++) {
        struct compared *t = &c->tensors[i];
        if (outcome_passes(t->outcome) || !t->counted) continue;
        if (!statistics_have_distances(t->read[0]->dtype, t->read[1]->dtype)) continue;
        if (!set_hint_same_number(c, t) && !set_hint_constant(c, t)) (void)set_hint_zero(c, t);
    }
}

/* Neighbouring values may be two roundings of one number that is stored on
 * neither side. */
static void set_hint_last_bit(struct comparison *c)
{
    for (size_t i = 0; i < c->num_tensors; i++) {
        struct compared *t = &c->tensors[i];
        if (t->hint || t->outcome != VALUES_DIFFER || !t->counted) continue;
        if (!dtype_is_float(t->read[0]->dtype) || t->statistics.unpaired) continue;
        if (t->statistics.max_ulp == 1)
            set_hint(c, t, "last-bit",
                     statistics_different(&t->statistics) < FEW_ELEMENTS
                         ? "no two elements differ by more than 1 ulp, and only few do: rounding, "
                           "or flipped bits"
                         : "no two elements differ by more than 1 ulp: rounding");
    }
}

/* ---- the vocabulary ---- */

/* Whether only the last rows of an embedding or head differ, as with vocabulary
 * padding. */
static bool may_be_padding(const struct compared *t)
{
    if (t->place.region != REGION_EMBEDDINGS && t->place.region != REGION_HEAD) return false;
    if (t->outcome == SHAPE_DIFFERS) return true;
    return t->outcome == VALUES_DIFFER && t->counted &&
           t->statistics.first >= t->statistics.elements / 2;
}

/* Without a vocabulary size on either side, padding rows look like others. */
static void add_vocabulary_line(struct comparison *c)
{
    const struct side *a = &c->sides[0], *b = &c->sides[1];
    const struct compared **padded = arena_array(&c->arena, c->num_tensors + 1, sizeof *padded);
    size_t n = 0;
    if (a->stored_only || b->stored_only || a->checkpoint.config.vocab_size) return;
    for (size_t i = 0; i < c->num_tensors; i++)
        if (may_be_padding(&c->tensors[i])) padded[n++] = &c->tensors[i];
    if (n)
        hint_line_push(c, "vocabulary",
                       "the vocabulary size is not known, so rows of padding are compared, too: "
                       "--true-vocab-size N leaves out the rows from N on",
                       padded, n);
}

/* ---- attempts ---- */

static bool is_worth_trying(const struct compared *t)
{
    bool whole_bytes = t->read[0] == t->tensors[0] && t->read[1] == t->tensors[1];
    return !outcome_passes(t->outcome) && !t->hint && t->read[0] && t->read[1] && whole_bytes &&
           t->read[0]->numel > 0 && t->read[1]->numel > 0;
}

static size_t list_attempts(struct comparison *c, struct attempt *out)
{
    size_t n = 0;
    for (size_t i = 0; i < c->num_tensors; i++)
        if (is_worth_trying(&c->tensors[i])) out[n++] = (struct attempt){.of = &c->tensors[i]};
    return n;
}

/* ---- the whole ---- */

static void open_workshop(struct workshop *w, struct comparison *c)
{
    struct scan s = {.threads = c->options.threads};
    *w = (struct workshop){.c = c, .num_workers = scan_threads(&s)};
    w->arenas = must_calloc(w->num_workers, sizeof *w->arenas);
    w->samplers = must_calloc(w->num_workers, sizeof *w->samplers);
    for (unsigned side = 0; side < 2; side++)
        w->readers[side] =
            stored_reader_create(&c->sides[side].checkpoint.catalog.stored, OPEN_FILES);
    for (unsigned i = 0; i < w->num_workers; i++) {
        arena_init(&w->arenas[i]);
        sampler_init(&w->samplers[i], w->readers);
    }
}

static void close_workshop(struct workshop *w)
{
    for (unsigned i = 0; i < w->num_workers; i++) {
        arena_release(&w->arenas[i]);
        sampler_release(&w->samplers[i]);
    }
    for (unsigned side = 0; side < 2; side++)
        stored_reader_free(w->readers[side]);
    free(w->arenas);
    free(w->samplers);
}

static enum status try_one(void *context, size_t index, unsigned worker, struct error *err)
{
    struct workshop *w = context;
    return attempt_try(w, &w->attempts[index], worker, err);
}

/* Batch by batch, so that memory does not grow with the model. */
static enum status try_and_prove(struct workshop *w, struct attempt *attempts, size_t count,
                                 struct error *err)
{
    enum status st = OK;
    for (size_t i = 0, n; i < count && !st; i += n) {
        n = min_u64(BATCH, count - i);
        w->attempts = attempts + i;
        st = threads_run(w->num_workers, n, try_one, w, err);
        if (!st) st = attempts_prove(w->c, w->attempts, n, err);
        for (unsigned k = 0; k < w->num_workers; k++)
            arena_release(&w->arenas[k]);
    }
    return st;
}

enum status hints_find(struct comparison *c, struct error *err)
{
    struct workshop w;
    if (compare_tensors_pass(c)) return OK;
    set_hints_of_counts(c);
    struct attempt *attempts = must_calloc(c->num_tensors, sizeof *attempts);
    open_workshop(&w, c);
    enum status st = try_and_prove(&w, attempts, list_attempts(c, attempts), err);
    if (!st) st = moves_find(&w, err);
    close_workshop(&w);
    free(attempts);
    if (st) return st;
    set_hint_last_bit(c);
    hint_lines_add(c);
    add_vocabulary_line(c);
    return OK;
}
