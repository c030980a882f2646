#include "validate/hints/claims.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "ckpt/scan.h"
#include "common/checked.h"
#include "common/memory.h"

enum { SPREAD_PLACES = 6 };

struct claim claim_of(const struct tensor *a, const struct tensor *b, enum transform t,
                      unsigned from)
{
    struct claim c = {.tensors = {a, b}, .transform = t, .from = from};
    c.factors = t == SCALE_ROWS ? (struct factors){INFINITY, -INFINITY} : factors_all();
    return c;
}

/* Elements in a row: the product of all dimensions but the first. */
static uint64_t elements_per_row(const struct tensor *t)
{
    return t->num_dims > 1 && t->shape[0] ? t->numel / t->shape[0] : t->numel;
}

/* Whether the claim holds for elements [first, first + count) of a and b. */
static bool holds_for(struct claim *c, struct elements a, struct elements b, uint64_t first,
                      uint64_t count)
{
    struct elements from = c->from ? b : a, to = c->from ? a : b;
    if (c->transform == SCALE_ROWS)
        return rows_hold(from, to, first, count, max_u64(elements_per_row(c->tensors[0]), 1),
                         &c->factors);
    if (c->transform != SCALE || c->factor_chosen)
        return transform_holds(c->transform, c->factor, from, to, count);
    factors_narrow(&c->factors, from, to, count);
    return c->factors.low <= c->factors.high;
}

/* ---- samples ---- */

void sampler_init(struct sampler *s, struct stored_reader *const readers[2])
{
    for (unsigned side = 0; side < 2; side++) {
        s->panels[side] = must_malloc(SAMPLE_BYTES);
        s->readers[side] = (struct panel_reader){.reader = readers[side],
                                                 .buffer_bytes = SAMPLE_BYTES,
                                                 .temp = must_malloc(SAMPLE_BYTES),
                                                 .cast = must_malloc(SAMPLE_BYTES)};
    }
}

void sampler_release(struct sampler *s)
{
    for (unsigned side = 0; side < 2; side++) {
        free(s->panels[side]);
        free(s->readers[side].temp);
        free(s->readers[side].cast);
    }
}

static void add_place(struct places *p, uint64_t numel, uint64_t at)
{
    if (at < numel && p->count < MAX_PLACES) p->at[p->count++] = at;
}

struct places places_of(uint64_t numel, uint64_t first, uint64_t last)
{
    struct places p = {0};
    add_place(&p, numel, first);
    for (uint64_t k = 0; k < SPREAD_PLACES; k++)
        add_place(&p, numel, numel / SPREAD_PLACES * k + numel / 2 / SPREAD_PLACES);
    add_place(&p, numel, last >= SAMPLE_ELEMENTS && last < numel ? last - SAMPLE_ELEMENTS + 1 : 0);
    return p;
}

enum status claim_try(struct sampler *s, struct claim *c, const struct places *places, bool *holds,
                      struct error *err)
{
    *holds = true;
    for (unsigned i = 0; i < places->count && *holds; i++) {
        uint64_t at = places->at[i], n = min_u64(SAMPLE_ELEMENTS, c->tensors[0]->numel - at);
        struct elements sides[2];
        for (unsigned side = 0; side < 2; side++) {
            TRY(panel_read(&s->readers[side], c->tensors[side], at, n, s->panels[side], err));
            sides[side] = (struct elements){c->tensors[side]->dtype, s->panels[side]};
        }
        *holds = holds_for(c, sides[0], sides[1], at, n);
    }
    return OK;
}

/* ---- proofs ---- */

struct proving {
    struct claim **claims;
    atomic_bool *wrong;
    pthread_mutex_t lock; /* protects the factors of the claims */
    struct progress *progress;
};

static uint64_t claim_bytes(const struct claim *c, uint64_t elements)
{
    return elements * (dtype_bytes(c->tensors[0]->dtype) + dtype_bytes(c->tensors[1]->dtype));
}

static enum status skip_wrong(void *context, const struct scan_task *t, bool *skip,
                              struct error *err)
{
    const struct proving *x = context;
    (void)err;
    *skip = x->wrong[t->item];
    if (*skip) progress_add(x->progress, claim_bytes(x->claims[t->item], t->high - t->low));
    return OK;
}

static void join_factors(struct claim *c, const struct claim *part)
{
    bool found = c->transform == SCALE_ROWS;
    double low = part->factors.low, high = part->factors.high;
    c->factors.low = found ? fmin(c->factors.low, low) : fmax(c->factors.low, low);
    c->factors.high = found ? fmax(c->factors.high, high) : fmin(c->factors.high, high);
}

/* Rows split between two panels cannot be proven to have one factor. */
static bool has_whole_rows(const struct claim *c, const struct scan_panel *p)
{
    uint64_t row = max_u64(elements_per_row(c->tensors[0]), 1);
    return p->low % row == 0 && (p->low + p->count) % row == 0;
}

static enum status check_panel(void *context, const struct scan_panel *p, struct error *err)
{
    struct proving *x = context;
    size_t item = p->task->item;
    struct claim *c = x->claims[item], part = *c;
    struct elements a = {c->tensors[0]->dtype, p->elements[0]},
                    b = {c->tensors[1]->dtype, p->elements[1]};
    (void)err;
    progress_add(x->progress, claim_bytes(c, p->count));
    if (x->wrong[item]) return OK;
    if (c->transform == SCALE_ROWS && !has_whole_rows(c, p)) x->wrong[item] = true;
    bool gathers = c->transform == SCALE_ROWS || (c->transform == SCALE && !c->factor_chosen);
    if (gathers)
        part.factors = claim_of(c->tensors[0], c->tensors[1], c->transform, c->from).factors;
    if (!holds_for(&part, a, b, p->low, p->count)) x->wrong[item] = true;
    if (!gathers) return OK;
    pthread_mutex_lock(&x->lock);
    join_factors(c, &part);
    pthread_mutex_unlock(&x->lock);
    return OK;
}

static bool has_factors(const struct claim *c)
{
    return c->transform != SCALE || c->factor_chosen || c->factors.low <= c->factors.high;
}

static enum status scan_claims(struct proving *x, const struct comparison *c, size_t num_claims,
                               struct scan_result *result, struct error *err)
{
    struct scan_item *items = must_calloc(num_claims, sizeof *items);
    uint64_t bytes = 0;
    for (size_t i = 0; i < num_claims; i++) {
        const struct claim *claim = x->claims[i];
        items[i] = (struct scan_item){.tensors = {claim->tensors[0], claim->tensors[1]}};
        bytes += claim_bytes(claim, claim->tensors[0]->numel);
    }
    struct scan s = {.catalogs = {&c->sides[0].checkpoint.catalog, &c->sides[1].checkpoint.catalog},
                     .items = items,
                     .num_items = num_claims,
                     .threads = c->options.threads,
                     .max_memory = c->options.max_memory,
                     .direct_io = c->options.direct_io,
                     .begin = skip_wrong,
                     .visit = check_panel,
                     .context = x};
    x->progress = progress_start(c->options.progress, "checking hints", bytes);
    enum status st = scan_run(&s, result, err);
    progress_finish(x->progress, st == OK);
    free(items);
    return st;
}

enum status claims_prove(struct comparison *c, struct claim **claims, size_t num_claims,
                         struct error *err)
{
    struct proving x = {.claims = claims};
    struct scan_result result;
    if (!num_claims) return OK;
    x.wrong = must_calloc(num_claims, sizeof *x.wrong);
    pthread_mutex_init(&x.lock, NULL);
    enum status st = scan_claims(&x, c, num_claims, &result, err);
    for (size_t i = 0; i < num_claims && !st; i++)
        claims[i]->proven = !x.wrong[i] && has_factors(claims[i]);
    c->read_bytes += result.read_bytes;
    pthread_mutex_destroy(&x.lock);
    free((void *)x.wrong);
    return st;
}
