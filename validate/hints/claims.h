/* claims.h - "this tensor of B is that tensor of A, transformed": tried on a few elements, then
 * proven on all. Nothing is said of two tensors that was not proven here, or counted. */
#ifndef FERRY_VALIDATE_HINTS_CLAIMS_H
#define FERRY_VALIDATE_HINTS_CLAIMS_H

#include <pthread.h>

#include "ckpt/panel.h"
#include "validate/compare/compare.h"
#include "validate/hints/values.h"

struct claim {
    const char *id, *text;           /* text NULL: made once it is proven, by who made the claim */
    const struct tensor *tensors[2]; /* of A and of B, with as many elements in the same order */
    unsigned from;                   /* the side that is transformed; the other is the result */
    enum transform transform;
    double factor;           /* SCALE, once it is settled */
    bool settled;            /* SCALE: the factor is chosen, and only to be proven */
    unsigned num_candidates; /* SCALE: factors that were chosen so far */
    const char *root_of;     /* SCALE: the factor is the root of this size; NULL: of none */
    struct factors factors;  /* those possible, or for SCALE_ROWS those found */
    struct claim *also;      /* what is said besides where this is proven too; NULL: nothing */
    const char *text_also;   /* and then in place of text */
    const struct compared *source; /* moves: the tensor of A that it is */
    bool proven;
};

struct claim claim_of(const struct tensor *a, const struct tensor *b, enum transform t,
                      unsigned from);

/* Reads a few elements at a time; one for each thread. */
struct sampler {
    struct panel_reader readers[2];
    void *panels[2];
};
enum { SAMPLE_ELEMENTS = 32, SAMPLE_BYTES = 64 << 10 };

/* The readers are of catalogs A and B, and are the caller's. Memory is on the heap. */
void sampler_init(struct sampler *s, struct stored_reader *const readers[2]);
void sampler_release(struct sampler *s);

/* Places in a tensor that are worth a look: runs of up to SAMPLE_ELEMENTS from each on. */
enum { MAX_PLACES = 10 };
struct places {
    unsigned count;
    uint64_t at[MAX_PLACES];
};
/* Spread over the tensor, and about the elements first and last (which may be none's). */
struct places places_of(uint64_t numel, uint64_t first, uint64_t last);

/* Whether the claim holds at the places. SCALE narrows its factors to what is possible there. */
MUST_CHECK enum status claim_try(struct sampler *s, struct claim *c, const struct places *places,
                                 bool *holds, struct error *err);

/* Reads all tensors of the claims, until each is refuted or proven. A claim of SCALE that is not
 * settled has its factors narrowed, and is proven where some are left: settle it, prove it again.
 */
MUST_CHECK enum status claims_prove(struct comparison *c, struct claim **claims, size_t num_claims,
                                    struct error *err);

#endif
