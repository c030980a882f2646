/* coded.h - weights that stay codes in memory (--weights as-stored).
 *
 * A weight stays coded if its elements have one encoding, with one scale for
 * each group (ckpt/encoding.h), and each of its groups lies in one of the
 * checkpoint's. Rows take their scales along, so they may be any. */
#ifndef FERRY_TRAIN_MODEL_CODED_H
#define FERRY_TRAIN_MODEL_CODED_H

#include "train/model/parameters.h"

/* Keeps the parameter added last coded, if it can be, and binds it to c's
 * tensors (bind.h). Else it sets why_decoded if c has codes. */
MUST_CHECK enum status coded_keep(struct parameters *p, const struct checkpoint *c,
                                  struct error *err);

/* Loads all coded parameters, whose memory is zeroed. ERR_CORRUPT names a scale
 * that is NaN or infinite, or is 0 though its group's codes are not. */
MUST_CHECK enum status coded_load(const struct parameters *p, const struct checkpoint *c,
                                  const struct device *device, void *region,
                                  const struct load_options *o, struct error *err);
/* Host memory that coded_load() allocates until it ends. */
MUST_CHECK enum status coded_load_bytes(const struct parameters *p, const struct device *device,
                                        const struct load_options *o, uint64_t *bytes,
                                        struct error *err);

/* Bound weights with codes in the checkpoint. */
struct coded_summary {
    uint64_t coded, bytes, decoded_bytes; /* weights that stay coded; of them in memory;
                                             if they were decoded */
    uint64_t not_coded, not_coded_bytes;  /* weights that are decoded */
    const struct parameter *first;        /* of these; NULL: none */
};
struct coded_summary coded_summarise(const struct parameters *p);
/* Why a weight with codes is decoded. */
const char *coded_reason(const struct parameter *x);

#endif
