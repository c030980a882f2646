/* report_html.h - a comparison as one HTML page without network and other
 * files.
 *
 * It has the verdict, both sides and their configs, hints, a heat map of layers
 * by kinds of tensors, a table of all tensors, command and time; light or dark
 * like the reader's system. */
#ifndef FERRY_VALIDATE_REPORT_REPORT_HTML_H
#define FERRY_VALIDATE_REPORT_REPORT_HTML_H

#include "common/html.h"
#include "validate/report/verdict.h"

void report_html(struct strbuf *out, const struct verdict *v, const struct html_environment *e);

#endif
