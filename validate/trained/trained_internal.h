/* trained_internal.h - parts of the text that the page shares. */
#ifndef FERRY_VALIDATE_TRAINED_TRAINED_INTERNAL_H
#define FERRY_VALIDATE_TRAINED_TRAINED_INTERNAL_H

#include "validate/trained/trained.h"

extern const char *const trained_words[NUM_OUTCOMES]; /* "identical", "DIFFERENT" */

/* "DIFFERENT: training: 2 of 3 steps, ...", and a newline. */
void trained_first_line(struct strbuf *out, const struct trained *t, bool coloured);
/* Tokens, dtype, learning rate and
 * optimizer; where the difference begins. */
void trained_run_text(struct strbuf *out, const struct trained *t);
void trained_first_differences_text(struct strbuf *out, const struct trained *t);

#endif
