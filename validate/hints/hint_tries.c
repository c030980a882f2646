/* hint_tries.c - makes claims about one tensor, tests each on a few elements,
 * keeps those that hold. Each function in `tries` makes one kind of claim. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/encoding.h"
#include "common/checked.h"
#include "common/count.h"
#include "common/memory.h"
#include "common/strbuf.h"
#include "kernels/cpu/digest_sums.h"
#include "validate/hints/arrange.h"
#include "validate/hints/hints_internal.h"

enum {
    MAX_CLAIMS = 4,       /* kept for one tensor */
    LEAST_ELEMENTS = 8,   /* fewer may fit a value hint by chance */
    MAX_SLICES = 1 << 16, /* more are not searched for a permutation */
    SLICE_SAMPLE = 16,    /* elements in the digest of a slice */
};

/* One tensor, while one thread makes claims about it. */
struct trying {
    const struct comparison *c;
    struct attempt *attempt;
    struct arena *kept;  /* of kept claims */
    struct arena *arena; /* of the claim under test; released after each */
    struct sampler *sampler;
    struct places places;
};

/* ---- claims ---- */

static bool has_enough(const struct trying *x)
{
    return x->attempt->num_claims >= MAX_CLAIMS;
}

/* Copies a tensor made for a claim to the arena of kept claims. */
static const struct tensor *keep_tensor(const struct trying *x, const struct tensor *t)
{
    const struct compared *of = x->attempt->of;
    if (t == of->read[0] || t == of->read[1]) return t;
    struct tensor *out = arena_copy(x->kept, t, sizeof *t);
    out->shape = arena_copy(x->kept, t->shape, t->num_dims * sizeof *t->shape);
    out->pieces = NULL;
    out->num_pieces = out->pieces_capacity = 0;
    tensor_add_pieces(x->kept, out, t);
    return out;
}

static const char *keep_text(const struct trying *x, const char *text)
{
    return text ? arena_copy_text(x->kept, text) : NULL;
}

static struct claim *keep_claim(const struct trying *x, const struct claim *c)
{
    struct claim *out = arena_copy(x->kept, c, sizeof *c);
    for (unsigned side = 0; side < 2; side++)
        out->tensors[side] = keep_tensor(x, c->tensors[side]);
    out->text = keep_text(x, c->text);
    out->text_also = keep_text(x, c->text_also);
    if (c->also) out->also = keep_claim(x, c->also);
    return out;
}

/* Tests a claim on the samples and keeps it if it holds. Drops its range of
 * factors: the proof finds the range of all elements. */
static enum status try_claim(struct trying *x, const struct claim *claim, struct error *err)
{
    struct attempt *at = x->attempt;
    struct claim tried = *claim;
    struct places places = x->places;
    bool holds;
    if (claim->tensors[0]->numel != at->of->read[0]->numel)
        places = places_of(claim->tensors[0]->numel, UINT64_MAX, UINT64_MAX);
    TRY(claim_try(x->sampler, &tried, &places, &holds, err));
    if (holds)
        *ARENA_PUSH(x->kept, at->claims, at->num_claims, at->capacity) = keep_claim(x, claim);
    arena_release(x->arena);
    return OK;
}

/* The side with the wider dtype. */
static unsigned wider_side(const struct compared *t)
{
    return dtype_bytes(t->read[1]->dtype) > dtype_bytes(t->read[0]->dtype);
}

static bool can_be_cast(const struct compared *t)
{
    return transform_exists(CAST, t->read[0]->dtype, t->read[1]->dtype);
}

/* ---- values ---- */

/* `from` is the side to transform. text NULL: written when the factors are
 * known. */
static const struct value_hint {
    const char *id, *text;
    enum transform transform;
    unsigned from;
} value_hints[] = {
    {"rounding", "B is A rounded to F32 on the way", VIA_F32, 0},
    {"rounding", "A is B rounded to F32 on the way", VIA_F32, 1},
    {"rounding", "B is A rounded to BF16 on the way", VIA_BF16, 0},
    {"rounding", "A is B rounded to BF16 on the way", VIA_BF16, 1},
    {"rounding", "B is A rounded to F16 on the way", VIA_F16, 0},
    {"rounding", "A is B rounded to F16 on the way", VIA_F16, 1},
    {"rounding", "B is A truncated to BF16, not rounded", CUT_TO_BF16, 0},
    {"rounding", "A is B truncated to BF16, not rounded", CUT_TO_BF16, 1},
    {"plus-one", "B is A plus one", ADD_ONE, 0},
    {"plus-one", "A is B plus one", ADD_ONE, 1},
    {"plus-one", "B is A minus one", SUBTRACT_ONE, 0},
    {"plus-one", "A is B minus one", SUBTRACT_ONE, 1},
    {"bytes-swapped", "the bytes of each element are swapped (endianness)", SWAP_BYTES, 0},
    {"scale", NULL, SCALE, 0},
    {"scale", NULL, SCALE, 1},
    {"row-scale", NULL, SCALE_ROWS, 0},
    {"row-scale", NULL, SCALE_ROWS, 1},
};
enum { NUM_VALUE_HINTS = COUNT(value_hints) };

/* A factor that changes few elements is noise in the last bit. A factor of a
 * row needs enough elements in the row. */
static bool may_be_scaled(const struct compared *t, enum transform transform)
{
    const struct statistics *s = &t->statistics;
    const struct tensor *a = t->read[0];
    uint64_t filled = s->elements - s->both_zero, different = statistics_different(s);
    if (different < LEAST_ELEMENTS || different < filled / 2) return false;
    if (transform == SCALE) return true;
    return a->num_dims > 1 && a->shape[0] > 1 && filled / a->shape[0] >= LEAST_ELEMENTS;
}

static bool value_hint_applies(const struct compared *t, const struct value_hint *h)
{
    enum dtype from = t->read[h->from]->dtype, to = t->read[1 - h->from]->dtype;
    if (!transform_exists(h->transform, from, to)) return false;
    if (t->statistics.elements < LEAST_ELEMENTS || t->statistics.max_difference == 0) return false;
    return (h->transform != SCALE && h->transform != SCALE_ROWS) || may_be_scaled(t, h->transform);
}

static enum status try_values(struct trying *x, struct error *err)
{
    const struct compared *t = x->attempt->of;
    for (size_t i = 0; i < NUM_VALUE_HINTS && t->counted && !has_enough(x); i++) {
        const struct value_hint *h = &value_hints[i];
        if (!value_hint_applies(t, h)) continue;
        struct claim claim = claim_of(t->read[0], t->read[1], h->transform, h->from);
        claim.id = h->id;
        claim.text = h->text;
        TRY(try_claim(x, &claim, err));
    }
    return OK;
}

/* Two dtypes: the narrower values widened, or the wider values rounded. */
static enum status try_casts(struct trying *x, struct error *err)
{
    const struct compared *t = x->attempt->of;
    if (t->outcome != DTYPE_DIFFERS || !can_be_cast(t)) return OK;
    unsigned wide = wider_side(t);
    bool widens = dtype_bytes(t->read[0]->dtype) != dtype_bytes(t->read[1]->dtype);
    if (t->read[0]->dtype == t->read[1]->dtype) { /* some parts differ in dtype */
        struct claim claim = claim_of(t->read[0], t->read[1], CAST, 0);
        claim.id = "rounding";
        claim.text = "B is A in other dtypes: the same values";
        return try_claim(x, &claim, err);
    }
    for (unsigned i = 0; i < 2; i++) {
        unsigned from = widens ? i ? wide : 1 - wide : i;
        const char *to = dtype_infos[t->read[1 - from]->dtype].name;
        struct claim claim = claim_of(t->read[0], t->read[1], CAST, from);
        claim.id = "rounding";
        claim.text = arena_printf(
            x->arena, widens && !i ? "%c is %c in %s: the same values" : "%c is %c rounded to %s",
            side_letter(1 - from), side_letter(from), to);
        TRY(try_claim(x, &claim, err));
    }
    return OK;
}

/* ---- wrong decoding ---- */

static bool may_be_decoded(const struct tensor *t, enum encoded_mistake mistake)
{
    for (size_t i = 0; i < t->num_pieces; i++)
        if (t->pieces[i].origin == ORIGIN_ENCODED && encoded_may_be(t->pieces[i].encoded, mistake))
            return true;
    return false;
}

/* The tensor, decoded with a mistake. */
static const struct tensor *decoded_wrongly(struct arena *a, const struct tensor *t,
                                            enum encoded_mistake mistake)
{
    struct tensor *out = arena_copy(a, t, sizeof *t);
    out->pieces = arena_copy(a, t->pieces, t->num_pieces * sizeof *t->pieces);
    for (size_t i = 0; i < t->num_pieces; i++) {
        struct piece *piece = &out->pieces[i];
        if (piece->origin != ORIGIN_ENCODED) continue;
        struct encoded *e = arena_copy(a, piece->encoded, sizeof *e);
        if (encoded_may_be(e, mistake)) e->mistake = mistake;
        piece->encoded = e;
    }
    return out;
}

static enum status try_decodings(struct trying *x, struct error *err)
{
    static const struct {
        const char *id, *text;
    } mistakes[NUM_MISTAKES] = {
        [MISTAKE_NO_SCALE] = {"scale-missing", "%c is %c decoded without its scales"},
        [MISTAKE_INVERSE_SCALE] = {"scale-inverse", "%c is %c divided by its scales"},
        [MISTAKE_HALVES_SWAPPED] = {"nibbles-swapped",
                                    "%c is %c with the two codes of each byte swapped"},
        [MISTAKE_GRID_TRANSPOSED] = {"block-transposed",
                                     "%c is %c decoded by the transposed grid of scales"},
    };
    const struct compared *t = x->attempt->of;
    for (unsigned side = 0; side < 2; side++)
        for (int m = 1; m < NUM_MISTAKES; m++) {
            if (!may_be_decoded(t->read[side], (enum encoded_mistake)m)) continue;
            const struct tensor *wrong =
                decoded_wrongly(x->kept, t->read[side], (enum encoded_mistake)m);
            struct claim claim =
                claim_of(side ? t->read[0] : wrong, side ? wrong : t->read[1], CAST, side);
            claim.id = mistakes[m].id;
            claim.text =
                arena_printf(x->arena, mistakes[m].text, side_letter(1 - side), side_letter(side));
            TRY(try_claim(x, &claim, err));
        }
    return OK;
}

/* ---- arrangements ---- */

/* A permutation keeps the sum of all bits, so different sums rule it out. */
static bool may_be_arranged(const struct compared *t)
{
    if (t->read[0]->numel != t->read[1]->numel || !can_be_cast(t)) return false;
    return !t->summed || statistics_same_elements(&t->statistics);
}

static enum status offer_arrangement(void *context, const struct arrangement *how,
                                     struct error *err)
{
    struct trying *x = context;
    const struct compared *t = x->attempt->of;
    struct tensor *arranged = arena_alloc(x->arena, sizeof *arranged);
    if (!tensor_arranged(x->arena, t->read[0], how->parts, how->num_parts, t->read[1]->num_dims,
                         t->read[1]->shape, arranged)) {
        arena_release(x->arena);
        return OK;
    }
    struct claim claim = claim_of(arranged, t->read[1], CAST, wider_side(t));
    claim.id = how->id;
    claim.text = how->text;
    TRY(try_claim(x, &claim, err));
    return has_enough(x) ? DIFFERENT : OK; /* DIFFERENT ends the visit */
}

static enum status try_arrangements(struct trying *x, struct error *err)
{
    const struct compared *t = x->attempt->of;
    const struct heads *heads = &x->c->sides[0].heads;
    if (!may_be_arranged(t)) return OK;
    if (!heads->head_dim) heads = &x->c->sides[1].heads;
    if (t->outcome == SHAPE_DIFFERS) {
        const struct arrangement same = {
            .id = "reshaped",
            .text = "the same elements in the same order, under another shape",
            .parts = {pair_whole(0, 0, t->read[0]->numel)},
            .num_parts = 1};
        enum status st = offer_arrangement(x, &same, err);
        if (st) return st == DIFFERENT ? OK : st;
    }
    enum status st = arrangements(x->arena, t->name, t->read[0]->num_dims, t->read[0]->shape, heads,
                                  offer_arrangement, x, err);
    return st == DIFFERENT ? OK : st;
}

/* ---- extents ---- */

/* The only dimension in which the shapes differ; num_dims: several or none. */
static unsigned odd_dim(const struct tensor *a, const struct tensor *b)
{
    unsigned odd = a->num_dims;
    if (a->num_dims != b->num_dims || a->num_dims > MAX_AXES) return odd;
    for (unsigned d = 0; d < a->num_dims; d++) {
        if (a->shape[d] == b->shape[d]) continue;
        if (odd < a->num_dims) return a->num_dims;
        odd = d;
    }
    return odd;
}

static const char *dim_word(const struct tensor *t, unsigned d)
{
    return d == 0 ? "row" : d + 1 == t->num_dims ? "column" : "slice";
}

/* Claims that the extra rows of the longer side (0: A) are zero. */
static struct claim claim_of_rest(struct trying *x, unsigned longer, unsigned d, uint64_t from,
                                  bool *fits)
{
    const struct tensor *t = x->attempt->of->read[longer];
    uint64_t start[MAX_AXES] = {0}, extent[MAX_AXES];
    struct tensor *rest = arena_alloc(x->arena, sizeof *rest),
                  *zeros = arena_alloc(x->arena, sizeof *zeros);
    memcpy(extent, t->shape, t->num_dims * sizeof *extent);
    start[d] = from;
    extent[d] -= from;
    *fits = tensor_box(x->arena, t, start, extent, rest);
    *zeros = tensor_of_zeros(x->arena, t->dtype, t->num_dims, extent);
    return longer ? claim_of(zeros, rest, CAST, 0) : claim_of(rest, zeros, CAST, 0);
}

static const char *extents_text(const struct trying *x, unsigned longer, unsigned d,
                                const char *rest)
{
    const struct compared *t = x->attempt->of;
    uint64_t equal = t->read[1 - longer]->shape[d], all = t->read[longer]->shape[d];
    return arena_printf(
        x->arena, "%c has %" PRIu64 " more %s%s: the first %" PRIu64 " are equal, the others %s",
        side_letter(longer), all - equal, dim_word(t->read[0], d), plural(all - equal), equal,
        rest);
}

static enum status try_extents(struct trying *x, struct error *err)
{
    const struct compared *t = x->attempt->of;
    const struct tensor *a = t->read[0], *b = t->read[1];
    unsigned d = odd_dim(a, b);
    if (t->outcome != SHAPE_DIFFERS || d == a->num_dims || !can_be_cast(t)) return OK;
    unsigned longer = b->shape[d] > a->shape[d];
    const struct tensor *whole = t->read[1 - longer];

    struct tensor *leading = arena_alloc(x->arena, sizeof *leading);
    if (!tensor_box(x->arena, t->read[longer], NULL, whole->shape, leading)) return OK;
    struct claim claim = longer ? claim_of(a, leading, CAST, wider_side(t))
                                : claim_of(leading, b, CAST, wider_side(t));
    bool fits;
    claim.also = arena_alloc(x->arena, sizeof *claim.also);
    *claim.also = claim_of_rest(x, longer, d, whole->shape[d], &fits);
    if (!fits) claim.also = NULL;
    claim.id = "padded";
    claim.text = extents_text(x, longer, d, "not all zero");
    claim.text_also = extents_text(x, longer, d, "all zero");
    return try_claim(x, &claim, err);
}

/* ---- slices ---- */

/* A slice of the first dimension, with a digest of a few elements. */
struct slice {
    struct digest digest;
    uint64_t number;
};

static int by_digest(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;
    int order = memcmp(&x->digest, &y->digest, sizeof x->digest);
    if (order) return order;
    return x->number < y->number ? -1 : x->number > y->number;
}

static enum status read_slices(struct trying *x, unsigned side, struct slice *slices,
                               struct error *err)
{
    const struct tensor *t = x->attempt->of->read[side];
    uint64_t n = t->shape[0], row = t->numel / n, count = min_u64(SLICE_SAMPLE, row);
    unsigned bits = dtype_infos[t->dtype].bits;
    for (uint64_t i = 0; i < n; i++) {
        slices[i] = (struct slice){.number = i};
        TRY(panel_read(&x->sampler->readers[side], t, i * row + (row - count) / 2, count,
                       x->sampler->panels[side], err));
        digest_add(&slices[i].digest, x->sampler->panels[side], (unsigned)min_u64(bits, 64),
                   count * bits / min_u64(bits, 64), 0);
    }
    qsort(slices, n, sizeof *slices, by_digest);
    return OK;
}

/* Sets from[] to the slice of A with the digest of each slice of B; false if
 * one has none. */
static bool match_slices(const struct slice *a, const struct slice *b, uint64_t n, uint64_t *from)
{
    for (uint64_t i = 0; i < n; i++) {
        if (memcmp(&a[i].digest, &b[i].digest, sizeof a->digest)) return false;
        from[b[i].number] = a[i].number;
    }
    return true;
}

/* Number of slices from i on that are consecutive on both sides. */
static uint64_t run_length(const uint64_t *from, uint64_t n, uint64_t i)
{
    uint64_t run = 1;
    while (i + run < n && from[i + run] == from[i] + run)
        run++;
    return run;
}

/* Appends "5" or "5 to 9". */
static void add_slice_run(struct strbuf *out, uint64_t first, uint64_t count)
{
    strbuf_printf(out, "%s %" PRIu64, out->length ? "," : "", first);
    if (count > 1) strbuf_printf(out, " to %" PRIu64, first + count - 1);
}

/* "its rows are permuted (6 of 8 moved): 2 to 4, 5 to 7 of B are 5 to 7, 2 to 4
 * of A", with the first SHOWN runs. */
static const char *order_text(struct arena *a, const char *what, const uint64_t *from, uint64_t n)
{
    enum { SHOWN = 6 };
    struct strbuf b_slices = {0}, a_slices = {0};
    uint64_t moved = 0, runs = 0;
    for (uint64_t i = 0, run; i < n; i += run) {
        run = run_length(from, n, i);
        if (from[i] == i) continue;
        moved += run;
        if (runs++ >= SHOWN) continue;
        add_slice_run(&b_slices, i, run);
        add_slice_run(&a_slices, from[i], run);
    }
    const char *more = runs > SHOWN ? ", .." : "";
    const char *out = arena_printf(
        a, "its %s are permuted (%" PRIu64 " of %" PRIu64 " moved):%s%s of B are%s%s of A", what,
        moved, n, b_slices.data, more, a_slices.data, more);
    strbuf_release(&b_slices);
    strbuf_release(&a_slices);
    return out;
}

/* Makes one pair for each run of slices that is consecutive on both sides. */
static size_t slice_pairs(const uint64_t *from, uint64_t n, uint64_t row, struct pair *out)
{
    size_t count = 0;
    for (uint64_t i = 0, run; i < n; i += run) {
        run = run_length(from, n, i);
        out[count++] = pair_whole(from[i] * row, i * row, run * row);
    }
    return count;
}

static enum status offer_slices(struct trying *x, const uint64_t *from, struct error *err)
{
    const struct tensor *a = x->attempt->of->read[0];
    uint64_t n = a->shape[0];
    struct pair *pairs = must_calloc(n, sizeof *pairs);
    struct tensor *arranged = arena_alloc(x->arena, sizeof *arranged);
    size_t count = slice_pairs(from, n, a->numel / n, pairs);
    bool fits = tensor_arranged(x->arena, a, pairs, count, a->num_dims, a->shape, arranged);
    free(pairs);
    if (!fits) return OK;
    struct claim claim = claim_of(arranged, x->attempt->of->read[1], CAST, 0);
    claim.id = "permuted";
    claim.text = order_text(x->arena, a->num_dims > 2 ? "slices (experts)" : "rows", from, n);
    return try_claim(x, &claim, err);
}

static enum status try_slices(struct trying *x, struct error *err)
{
    const struct compared *t = x->attempt->of;
    const struct tensor *a = t->read[0];
    uint64_t n = a->num_dims ? a->shape[0] : 0;
    if (t->outcome != VALUES_DIFFER || !may_be_arranged(t) || has_enough(x) || n < 2 ||
        n > MAX_SLICES)
        return OK;
    struct slice *slices[2] = {must_calloc(n, sizeof **slices), must_calloc(n, sizeof **slices)};
    uint64_t *from = must_calloc(n, sizeof *from);
    enum status st = read_slices(x, 0, slices[0], err);
    if (!st) st = read_slices(x, 1, slices[1], err);
    if (!st && match_slices(slices[0], slices[1], n, from)) st = offer_slices(x, from, err);
    free(slices[0]);
    free(slices[1]);
    free(from);
    return st;
}

/* ---- all of them ---- */

/* In order of precedence. If a cast explains the difference, the rest is not
 * tried. */
static enum status (*const tries[])(struct trying *x, struct error *err) = {
    try_casts, try_decodings, try_arrangements, try_slices, try_extents, try_values,
};

enum status attempt_try(struct workshop *w, struct attempt *attempt, unsigned worker,
                        struct error *err)
{
    const struct compared *t = attempt->of;
    struct arena arena;
    struct trying x = {w->c, attempt, &w->arenas[worker], &arena, &w->samplers[worker], {0}};
    enum status st = OK;
    x.places = places_of(t->read[0]->numel, t->counted ? t->statistics.first : UINT64_MAX,
                         t->counted ? t->statistics.last : UINT64_MAX);
    arena_init(&arena);
    for (size_t i = 0; i < COUNT(tries) && !st && !has_enough(&x); i++) {
        st = tries[i](&x, err);
        if (i == 0 && attempt->num_claims) break;
    }
    arena_release(&arena);
    return st ? fail_in(err, "%s", t->name) : OK;
}
