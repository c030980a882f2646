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

/* The cards of both sides. */
void report_sides(struct strbuf *out, const struct side sides[2], struct arena *a);
/* A table of the fields that change the
 * computation; nothing without any. */
void report_configs(struct strbuf *out, const struct config_comparison *x);
/* A step of 1, 2 or 5 times a power of ten; about five steps fit the range. */
double report_tick_step(double low, double high);

/* The section of --forward: the banner's colour; the line, with or without the
 * verdict's word; the charts and tables. */
const char *report_forward_class(const struct forward *f);
void report_forward_line(const struct page *p, bool with_word);
void report_forward(const struct page *p);

#endif
