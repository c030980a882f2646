/* forward_internal.h - what the files of forward.h share. */
#ifndef FERRY_VALIDATE_FORWARD_FORWARD_INTERNAL_H
#define FERRY_VALIDATE_FORWARD_FORWARD_INTERNAL_H

#include "validate/forward/forward.h"

/* Fills f->batch: with --input-ids, else B's own, else with tokens made up. */
MUST_CHECK enum status forward_tokens(struct forward *f, const struct forward_options *o,
                                      const struct side *sides, struct error *err);

/* The runs in their order: A, A once more in the yardstick's type of element, B where it is run. */
enum forward_run { FIRST_OF_A, SECOND_OF_A, RUN_OF_B };
/* "loading 1 of 3: A in f32"; for_ops: a second time round, for the ops of the layer that differs.
 * In f's arena. */
const char *forward_loading_text(struct forward *f, enum forward_run run, bool for_ops);

/* Fills f->divergence.first and .layer, once all outputs were compared. */
void divergence_find(struct forward *f);
/* Then, once the ops of that layer were, too: .op and .text. */
void divergence_tell(struct forward *f);

#endif
