/* attempts_prove.c - tests claims on all elements; the first proven claim of a
 * tensor becomes its hint. */
#include <math.h>
#include <stdlib.h>

#include "common/count.h"
#include "common/memory.h"
#include "validate/hints/hints_internal.h"

static bool is_possible(const struct claim *c, double factor)
{
    return c->factors.low <= factor && factor <= c->factors.high;
}

/* Chooses the root of a size as factor: embeddings and scores are scaled so. */
static bool choose_root(const struct comparison *c, struct claim *claim)
{
    const struct model_config *m = &c->sides[0].checkpoint.config;
    const struct {
        const char *name;
        uint64_t size;
    } sizes[] = {{"hidden_size", m->hidden_size}, {"kv_channels", m->kv_channels}};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        double root = sqrt((double)sizes[i].size);
        if (sizes[i].size < 2 || !(is_possible(claim, root) || is_possible(claim, 1 / root)))
            continue;
        claim->root_of = sizes[i].name;
        claim->factor = is_possible(claim, root) ? root : 1 / root;
        return true;
    }
    return false;
}

/* Chooses the next possible factor of a SCALE claim; false if only 0, 1 or none
 * is left. */
static bool choose_factor(const struct comparison *c, struct claim *claim)
{
    bool first = !claim->factor_chosen;
    claim->root_of = NULL;
    claim->factor_chosen = true;
    claim->proven = false;
    if (first && choose_root(c, claim)) return true;
    claim->factor = factors_candidate(&claim->factors, claim->num_candidates++);
    return claim->factor != 0 && claim->factor != 1;
}

/* The next claim to prove; NULL: none. */
static struct claim *next_claim(const struct attempt *a)
{
    return a->next < a->num_claims ? a->claims[a->next] : NULL;
}

static size_t gather_claims(struct attempt *attempts, size_t num_attempts, struct claim **out)
{
    size_t n = 0;
    for (size_t i = 0; i < num_attempts; i++) {
        struct claim *c = next_claim(&attempts[i]);
        if (!c) continue;
        out[n++] = c;
        if (c->also && !c->also->proven) out[n++] = c->also;
    }
    return n;
}

static const char *proven_text(struct comparison *c, const struct claim *claim)
{
    char other = side_letter(1 - claim->from), from = side_letter(claim->from);
    if (claim->also && claim->also->proven) return arena_printf(&c->arena, "%s", claim->text_also);
    if (claim->text) return arena_printf(&c->arena, "%s", claim->text);
    if (claim->root_of)
        return arena_printf(&c->arena, "%c is %c times %.9g (%ssqrt(%s))", other, from,
                            claim->factor, claim->factor < 1 ? "1 / " : "", claim->root_of);
    if (claim->transform == SCALE)
        return arena_printf(&c->arena, "%c is %c times %.9g", other, from, claim->factor);
    return arena_printf(&c->arena, "each row of %c is the row of %c times its own factor", other,
                        from);
}

/* Handles the result of the current claim: tries its next factor, makes it the
 * tensor's hint, or goes on to the next claim. */
static void take_result(struct comparison *c, struct attempt *a)
{
    struct claim *claim = next_claim(a);
    if (!claim) return;
    bool needs_factor = claim->transform == SCALE && claim->factor_chosen != claim->proven;
    if (needs_factor && choose_factor(c, claim)) return;
    if (claim->proven && !needs_factor) {
        set_hint(c, a->of, arena_printf(&c->arena, "%s", claim->id), proven_text(c, claim));
        a->of->moved_from = claim->source;
        a->next = a->num_claims;
    } else {
        a->next++;
    }
}

enum status attempts_prove(struct comparison *c, struct attempt *attempts, size_t num_attempts,
                           struct error *err)
{
    struct claim **claims = must_calloc(2 * num_attempts + 1, sizeof(struct claim *));
    enum status st = OK;
    for (size_t n; !st && (n = gather_claims(attempts, num_attempts, claims));) {
        st = claims_prove(c, claims, n, err);
        for (size_t i = 0; i < num_attempts && !st; i++)
            take_result(c, &attempts[i]);
    }
    free(claims);
    return st;
}
