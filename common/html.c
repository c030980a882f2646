#include "common/html.h"

#include <string.h>

#include "common/count.h"
#include "common/html_style.h"
#include "common/utf8.h"

void html_add_escaped(struct strbuf *out, const char *text)
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
            strbuf_add_text(out, entity);
        else
            strbuf_add(out, text + i, n);
    }
}

void html_add_row(struct strbuf *out, const char *term, const char *text)
{
    strbuf_printf(out, "<dt>%s</dt><dd>", term);
    html_add_escaped(out, text);
    strbuf_add_text(out, "</dd>\n");
}

void html_add_cell(struct strbuf *out, const char *class, const char *text)
{
    strbuf_printf(out, "<td class=\"%s\">", class);
    html_add_escaped(out, text);
    strbuf_add_text(out, "</td>");
}

static void add_lines(struct strbuf *out, const char *const *lines)
{
    for (; *lines; lines++) {
        strbuf_add_text(out, *lines);
        strbuf_add_char(out, '\n');
    }
}

void html_begin(struct strbuf *out, const char *title, const char *command)
{
    strbuf_add_text(out,
                    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta "
                    "name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>");
    html_add_escaped(out, title);
    strbuf_printf(out, " - %s</title>\n<style>\n", command);
    add_lines(out, html_style);
    strbuf_printf(out, "</style></head><body><main>\n<h1>%s</h1>\n", command);
}

void html_end(struct strbuf *out, const struct html_environment *e, const char *took)
{
    strbuf_add_text(out, "<footer><h2>Environment</h2><dl>\n");
    html_add_row(out, "ferry", e->version);
    html_add_row(out, "host", e->host);
    html_add_row(out, "time", e->time);
    html_add_row(out, "command", e->command);
    html_add_row(out, "took", took);
    strbuf_add_text(out, "</dl></footer>\n</main>\n<script>\n");
    add_lines(out, html_script);
    strbuf_add_text(out, "</script></body></html>\n");
}
