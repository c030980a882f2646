#include "common/html.h"

#include <string.h>

#include "common/count.h"
#include "common/html_style.h"
#include "common/utf8.h"

static void add_character(struct strbuf *out, const char *at, size_t bytes)
{
    static const struct {
        char c;
        const char *entity;
    } entities[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
    for (size_t k = 0; k < COUNT(entities); k++) {
        if (*at != entities[k].c) continue;
        strbuf_add_text(out, entities[k].entity);
        return;
    }
    if (!bytes || (unsigned char)*at < 0x20 || *at == 0x7F)
        strbuf_add_text(out, "\xEF\xBF\xBD");
    else
        strbuf_add(out, at, bytes);
}

static void add_breaking_after(struct strbuf *out, const char *text, const char *breaks)
{
    const size_t length = strlen(text);
    for (size_t i = 0, n; i < length; i += n ? n : 1) {
        n = utf8_sequence(text + i, length - i);
        add_character(out, text + i, n);
        if (strchr(breaks, text[i])) strbuf_add_text(out, "<wbr>");
    }
}

void html_add_escaped(struct strbuf *out, const char *text)
{
    add_breaking_after(out, text, "");
}

void html_add_name(struct strbuf *out, const char *name)
{
    add_breaking_after(out, name, "./");
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

static void add_bytes_escaped(struct strbuf *out, const char *text, size_t length)
{
    struct strbuf copy = {0};
    strbuf_add(&copy, text, length);
    if (length) html_add_escaped(out, copy.data);
    strbuf_release(&copy);
}

void html_add_rows(struct strbuf *out, const char *lines)
{
    bool open = false;
    for (const char *line = lines, *end; *line; line = *end ? end + 1 : end) {
        const char *word = line + strspn(line, " ");
        end = line + strcspn(line, "\n");
        if (word - line <= 2) {
            const size_t length = strcspn(word, " \n");
            strbuf_add_text(out, open ? "</dd>\n<dt>" : "<dt>");
            add_bytes_escaped(out, word, length);
            strbuf_add_text(out, "</dt><dd>");
            word += length + strspn(word + length, " ");
            open = true;
        } else {
            strbuf_add_text(out, "<br>");
        }
        if (word < end) add_bytes_escaped(out, word, (size_t)(end - word));
    }
    if (open) strbuf_add_text(out, "</dd>\n");
}

void html_add_filter(struct strbuf *out, const char *placeholder, bool box, bool checked)
{
    strbuf_printf(out,
                  "<div class=\"tools\"><input type=\"search\" id=\"filter\" placeholder=\"%s\" "
                  "aria-label=\"filter\">",
                  placeholder);
    if (box)
        strbuf_printf(out,
                      "<label><input type=\"checkbox\" id=\"all\"%s> show passing tensors</label>",
                      checked ? " checked" : "");
    strbuf_add_text(out, "<span id=\"count\"></span></div>\n");
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
    if (took) html_add_row(out, "took", took);
    strbuf_add_text(out, "</dl></footer>\n</main>\n<script>\n");
    add_lines(out, html_script);
    strbuf_add_text(out, "</script></body></html>\n");
}
