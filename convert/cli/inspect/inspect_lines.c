/* inspect_lines.c - pieces of the lines that ferry inspect prints. */
#include <string.h>

#include "common/numbers.h"
#include "convert/cli/inspect/inspect_internal.h"

void add_count(struct strbuf *out, uint64_t n, const char *one, const char *many)
{
    strbuf_printf(out, "%s %s", grouped_text(n), n == 1 ? one : many);
}

void add_escaped_name(struct strbuf *out, const char *name)
{
    strbuf_add_escaped(out, name, strlen(name));
}

void add_row_name(struct strbuf *out, const char *name, int width)
{
    size_t start = out->length;
    strbuf_add_text(out, "  ");
    add_escaped_name(out, name);
    size_t used = out->length - start;
    strbuf_add_repeated(out, ' ', used + 1 < (size_t)width ? (size_t)width - used : 1);
}
