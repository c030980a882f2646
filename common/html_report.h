/* html_report.h - the file of --report: checked before the work begins, written
 * at its end. It replaces older pages, nothing else. */
#ifndef FERRY_COMMON_HTML_REPORT_H
#define FERRY_COMMON_HTML_REPORT_H

#include "common/html.h"

/* ERR_USAGE, ERR_IO, ERR_EXISTS: this path cannot have a report. */
MUST_CHECK enum status html_report_check(const char *path, struct error *err);
MUST_CHECK enum status html_report_write(const char *path, const struct strbuf *page,
                                         struct error *err);
/* This process, host and time; in arena a. */
struct html_environment html_report_environment(struct arena *a);

#endif
