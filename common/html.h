/* html.h - pages of HTML that need neither network nor other files; light or
 * dark like the reader's system.
 *
 * A click on a column's title sorts a table. The table of id "tensors" has a
 * filter, which can hide rows of class "equal". */
#ifndef FERRY_COMMON_HTML_H
#define FERRY_COMMON_HTML_H

#include <stdbool.h>

#include "common/arena.h"
#include "common/status.h"
#include "common/strbuf.h"

struct html_environment {
    const char *version, *host, *time, *command;
};

/* Head and style; the command is the page's heading. */
void html_begin(struct strbuf *out, const char *title, const char *command);
/* The environment, what the work took
 * (NULL: not shown), and the script. */
void html_end(struct strbuf *out, const struct html_environment *e, const char *took);

/* Adds text of a file or user: escapes markup, replaces invalid bytes by
 * U+FFFD. */
void html_add_escaped(struct strbuf *out, const char *text);
/* The same; lines may break after dots and slashes. */
void html_add_name(struct strbuf *out, const char *name);
/* Add a row of a list of terms, or a cell of a table; escape the text. */
void html_add_row(struct strbuf *out, const char *term, const char *text);
void html_add_cell(struct strbuf *out, const char *class, const char *text);

/* Adds a row for each line "LABEL  TEXT"; lines that are indented by more than
 * two columns continue the row before. */
void html_add_rows(struct strbuf *out, const char *lines);
/* Adds the filter of the table of id "tensors". box: with a box that shows rows
 * of class "equal", checked or not. */
void html_add_filter(struct strbuf *out, const char *placeholder, bool box, bool checked);

#endif
