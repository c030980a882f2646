#include "common/colour.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/ranks.h"

static const char *const codes[] = {
    [COLOUR_NONE] = "", [COLOUR_RED] = "31", [COLOUR_GREEN] = "32", [COLOUR_YELLOW] = "33"};

bool colour_is_wanted(FILE *f)
{
    const char *refused = getenv("NO_COLOR"), *terminal = getenv("TERM");
    struct ranks r; /* mpirun gives each rank a terminal and may log it to a file */
    if (ranks_from_environment(&r, NULL) || r.share_output) return false;
    if (refused && *refused) return false;
    return terminal && *terminal && strcmp(terminal, "dumb") && isatty(fileno(f));
}

void strbuf_add_coloured(struct strbuf *out, enum colour colour, const char *text, size_t length)
{
    if (colour) strbuf_printf(out, "\033[1;%sm", codes[colour]);
    strbuf_add(out, text, length);
    if (colour) strbuf_add_text(out, "\033[0m");
}
