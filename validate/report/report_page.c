#include "validate/report/report_page.h"

#include <string.h>

#include "common/count.h"
#include "common/utf8.h"

void page_add(const struct page *p, const char *html)
{
    strbuf_add_text(p->out, html);
}

void page_add_escaped(const struct page *p, const char *text)
{
    static const struct {
        char c;
        const char *entity;
    } entities[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
    size_t length = strlen(text);
    for (size_t i = 0, n; i < length; i += n) {
        const char *entity = NULL;
        n = utf8_sequence(text + i, length - i);
        for (size_t k = 0; k < COUNT(entities); k++)
            if (text[i] == entities[k].c) entity = entities[k].entity;
        if (n == 0 || (unsigned char)text[i] < 0x20 || text[i] == 0x7F) entity = "\xEF\xBF\xBD";
        if (n == 0) n = 1;
        if (entity)
            strbuf_add_text(p->out, entity);
        else
            strbuf_add(p->out, text + i, n);
    }
}

void page_add_row(const struct page *p, const char *term, const char *text)
{
    strbuf_printf(p->out, "<dt>%s</dt><dd>", term);
    page_add_escaped(p, text);
    page_add(p, "</dd>\n");
}

void page_add_text_cell(const struct page *p, const char *class, const char *text)
{
    strbuf_printf(p->out, "<td class=\"%s\">", class);
    page_add_escaped(p, text);
    page_add(p, "</td>");
}
