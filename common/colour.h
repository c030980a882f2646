/* colour.h - colours important words, on a terminal only.
 *
 * No colour in pipes and files, under a launcher such as mpirun, if NO_COLOR is
 * set (https://no-color.org), or if TERM is unset or "dumb". */
#ifndef FERRY_COMMON_COLOUR_H
#define FERRY_COMMON_COLOUR_H

#include <stdbool.h>
#include <stdio.h>

#include "common/strbuf.h"

enum colour { COLOUR_NONE, COLOUR_RED, COLOUR_GREEN, COLOUR_YELLOW };

/* Whether output to f may be coloured. */
bool colour_is_wanted(FILE *f);
/* Adds text in a colour, then switches back to the terminal's default. */
void strbuf_add_coloured(struct strbuf *out, enum colour colour, const char *text, size_t length);

#endif
