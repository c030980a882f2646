/* report_page.h - what the sections of the report share. */
#ifndef FERRY_VALIDATE_REPORT_REPORT_PAGE_H
#define FERRY_VALIDATE_REPORT_REPORT_PAGE_H

#include "validate/report/verdict.h"

struct page {
    struct strbuf *out;
    const struct verdict *v;
    struct comparison *c; /* NULL: there is none, B is a file of results */
    struct arena *a;
    bool plain; /* all is identical: there are no numbers to show */
};

void page_add(const struct page *p, const char *html);
/* Text of a file or a user: what is markup is escaped, what is no character becomes U+FFFD. */
void page_add_escaped(const struct page *p, const char *text);
/* A row of a list of terms, and a cell of a table; the text is escaped. */
void page_add_row(const struct page *p, const char *term, const char *text);
void page_add_text_cell(const struct page *p, const char *class, const char *text);

/* The part of --forward in the banner: its colour, its line, with the word of its verdict or
 * without; and its charts and tables. */
const char *report_forward_class(const struct forward *f);
void report_forward_line(const struct page *p, bool with_word);
void report_forward(const struct page *p);

#endif
