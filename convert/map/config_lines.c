#include "convert/map/config_lines.h"

#include "common/json.h"
#include "convert/map/embedded.h"
#include "convert/map/model_map_internal.h"

/* Appends a row of config_lines.json, if its condition holds. */
static enum status add_line(struct strbuf *out, const cJSON *row, const struct map_names *names,
                            int width, struct error *err)
{
    const struct expr_names values = map_names_for(names);
    bool holds;
    TRY(map_condition(names, json_as_text(json_get(row, "when")), &holds, err));
    if (!holds) return OK;
    strbuf_printf(out, "%-*s", width, json_as_text(json_get(row, "title")));
    for (const cJSON *i = json_get(row, "text")->child; i; i = i->next) {
        const char *always = json_as_text(i);
        TRY(map_condition(names, json_as_text(json_get(i, "when")), &holds, err));
        if (holds)
            TRY(expr_fill(always ? always : json_as_text(json_get(i, "text")), &values, out, err));
    }
    strbuf_add_char(out, '\n');
    return OK;
}

void config_lines_add(struct strbuf *out, const struct model_config *c, bool of_plan, int width)
{
    cJSON *rows = embedded_file_parse("config_lines.json");
    struct arena a;
    struct error err;
    arena_init(&a);
    const struct map_names names = {.config = c, .layer = -1, .expert = -1, .arena = &a};
    enum status st = OK;
    for (const cJSON *i = rows->child; i && !st; i = i->next)
        if (!of_plan || json_get(i, "of")) st = add_line(out, i, &names, width, &err);
    if (st) strbuf_printf(out, "config_lines.json: %s\n", err.text);
    arena_release(&a);
    cJSON_Delete(rows);
}
