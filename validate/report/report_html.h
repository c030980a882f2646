/* report_html.h - a comparison as one HTML page that needs no network and no other file.
 *
 * The verdict, both sides and their configs, hints, a heat map of layers by kinds of tensors, a
 * table of all tensors, and the command and time. Light or dark as the reader's system is. */
#ifndef FERRY_VALIDATE_REPORT_REPORT_HTML_H
#define FERRY_VALIDATE_REPORT_REPORT_HTML_H

#include "validate/report/verdict.h"

struct report_environment {
    const char *version, *host, *time, *command;
};

void report_html(struct strbuf *out, const struct verdict *v, const struct report_environment *e);

#endif
