/* forward_internal.h - what the files of forward.h share. */
#ifndef FERRY_VALIDATE_FORWARD_INTERNAL_H
#define FERRY_VALIDATE_FORWARD_INTERNAL_H

#include "validate/forward.h"

/* Fills f->batch: with --input-ids, else B's own, else with tokens made up. */
MUST_CHECK enum status forward_tokens(struct forward *f, const struct forward_options *o,
                                      const struct side *sides, struct error *err);

/* Fills f->divergence.first and .layer, once all outputs were compared. */
void divergence_find(struct forward *f);
/* Then, once the ops of that layer were, too: .op and .text. */
void divergence_tell(struct forward *f);

#endif
