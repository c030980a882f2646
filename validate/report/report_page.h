/* report_page.h - functions shared by the sections of the report. */
#ifndef FERRY_VALIDATE_REPORT_REPORT_PAGE_H
#define FERRY_VALIDATE_REPORT_REPORT_PAGE_H

#include "common/html.h"
#include "validate/report/verdict.h"

struct page {
    struct strbuf *out;
    const struct verdict *v;
    struct comparison *c; /* NULL: B is a file of results */
    struct arena *a;
    bool plain; /* all tensors are identical: there are no numbers to show */
};

/* The section of --forward: the banner's colour; the line, with or without the
 * verdict's word; the charts and tables. */
const char *report_forward_class(const struct forward *f);
void report_forward_line(const struct page *p, bool with_word);
void report_forward(const struct page *p);

#endif
