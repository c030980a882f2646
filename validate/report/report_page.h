/* report_page.h - functions that the sections of the report share. */
#ifndef FERRY_VALIDATE_REPORT_REPORT_PAGE_H
#define FERRY_VALIDATE_REPORT_REPORT_PAGE_H

#include "validate/report/verdict.h"

struct page {
    struct strbuf *out;
    const struct verdict *v;
    struct comparison *c; /* NULL: B is a file of results */
    struct arena *a;
    bool plain; /* all tensors are identical: there are no numbers to show */
};

void page_add(const struct page *p, const char *html);
/* Adds text of a file or a user: markup is escaped, invalid bytes become U+FFFD. */
void page_add_escaped(const struct page *p, const char *text);
/* Add a row of a list of terms, a cell of a table; the text is escaped. */
void page_add_row(const struct page *p, const char *term, const char *text);
void page_add_text_cell(const struct page *p, const char *class, const char *text);

/* The part of --forward in the report: the colour of the banner; its line, with or without the word
 * of the verdict; its charts and tables. */
const char *report_forward_class(const struct forward *f);
void report_forward_line(const struct page *p, bool with_word);
void report_forward(const struct page *p);

#endif
