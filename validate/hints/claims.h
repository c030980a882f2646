/* claims.h - a claim is a hypothesis: "this tensor of B is that tensor of A,
 * transformed". It is tested on a few elements, then on all. A hint is reported
 * only if its claim holds for all elements, or if the counts of statistics.h
 * prove it. */
#ifndef FERRY_VALIDATE_HINTS_CLAIMS_H
#define FERRY_VALIDATE_HINTS_CLAIMS_H

#include <pthread.h>

#include "ckpt/panel.h"
#include "validate/compare/compare.h"
#include "validate/hints/values.h"

struct claim {
    const char *id, *text;           /* text NULL: written after the proof */
    const struct tensor *tensors[2]; /* of A and of B, of equal element count and order */
    unsigned from; /* side to transform (0: A), and then to compare with the other */
    enum transform transform;
    double factor;           /* SCALE: the factor, if factor_chosen */
    bool factor_chosen;      /* SCALE: `factor` is chosen, and not yet proven */
    unsigned num_candidates; /* SCALE: factors tried so far */
    const char *root_of;     /* SCALE: config field whose square root is the factor; or NULL */
    struct factors factors;  /* SCALE: the range still possible; SCALE_ROWS: the range found */
    struct claim *also;      /* second claim; if proven too, text_also is reported; or NULL */
    const char *text_also;   /* replaces text if both are proven */
    const struct compared *source; /* moved tensors: the tensor of A that equals this one of B */
    bool proven;
};

struct claim claim_of(const struct tensor *a, const struct tensor *b, enum transform t,
                      unsigned from);

/* Reads a few elements at a time; one per thread. */
struct sampler {
    struct panel_reader readers[2];
    void *panels[2];
};
enum { SAMPLE_ELEMENTS = 32, SAMPLE_BYTES = 64 << 10 };

/* readers: of the catalogs of A and B, borrowed. Memory is on the heap. */
void sampler_init(struct sampler *s, struct stored_reader *const readers[2]);
void sampler_release(struct sampler *s);

/* Sample positions in a tensor; each is the start of up to SAMPLE_ELEMENTS
 * elements. */
enum { MAX_PLACES = 10 };
struct places {
    unsigned count;
    uint64_t at[MAX_PLACES];
};
/* Positions spread over the tensor, and at its first and last different element
 * (UINT64_MAX: not known). */
struct places places_of(uint64_t numel, uint64_t first, uint64_t last);

/* Whether the claim holds for the samples. A SCALE claim narrows its range of
 * factors. */
MUST_CHECK enum status claim_try(struct sampler *s, struct claim *c, const struct places *places,
                                 bool *holds, struct error *err);

/* Reads the tensors until each claim is refuted or proven. A SCALE claim
 * without a chosen factor is proven if its range of factors is not empty: then
 * choose a factor and prove it again. */
MUST_CHECK enum status claims_prove(struct comparison *c, struct claim **claims, size_t num_claims,
                                    struct error *err);

#endif
