/* colour.h - colours the most important words, on a terminal only: not in pipes and files, not
 * under a launcher such as mpirun, and not if NO_COLOR is set (https://no-color.org) or TERM is
 * "dumb". */
#ifndef FERRY_COMMON_COLOUR_H
#define FERRY_COMMON_COLOUR_H

#include <stdbool.h>
#include <stdio.h>

#include "common/strbuf.h"

enum colour { COLOUR_NONE, COLOUR_RED, COLOUR_GREEN, COLOUR_YELLOW };

/* Whether output to f may be coloured. */
bool colour_is_wanted(FILE *f);
/* Adds text in a colour; what follows has the terminal's default again. */
void strbuf_add_coloured(struct strbuf *out, enum colour colour, const char *text, size_t length);

#endif
