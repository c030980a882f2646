/* forward_internal.h - functions shared by the files of forward.h. */
#ifndef FERRY_VALIDATE_FORWARD_FORWARD_INTERNAL_H
#define FERRY_VALIDATE_FORWARD_FORWARD_INTERNAL_H

#include "validate/forward/forward.h"

/* Sets the tokens in f: those of --input-ids, else B's own, else random ones. */
MUST_CHECK enum status forward_tokens(struct forward *f, const struct forward_options *o,
                                      const struct side *sides, struct error *err);

/* The runs in order: A, A with the yardstick's element type, B unless it is
 * stored results. */
enum forward_run { FIRST_OF_A, SECOND_OF_A, RUN_OF_B };
/* "loading 1 of 3: A in f32"; for_ops: in the second round, for the ops of the
 * differing layer. In f's arena. */
const char *forward_loading_text(struct forward *f, enum forward_run run, bool for_ops);

/* Sets f->divergence.first and .layer, after all outputs were compared. */
void divergence_find(struct forward *f);
/* Sets f->divergence.op and .text, after the ops of that layer were compared. */
void divergence_tell(struct forward *f);

#endif
