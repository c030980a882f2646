/* inspect_html.c - the page of ferry inspect --report. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/json.h"
#include "common/numbers.h"
#include "convert/cli/inspect/inspect_internal.h"
#include "convert/format.h"

/* ---- what it is ---- */

/* Model and format, path, and the number of parameters. */
static void add_banner(struct strbuf *out, const struct inspection *x)
{
    const struct checkpoint *c = x->c;
    const bool known = !x->stored_only && c->family;
    struct strbuf state = {0};
    inspection_state(&state, x);
    strbuf_add_text(out, "<div class=\"verdict info\"><b>");
    html_add_escaped(out, known ? c->family : c->format->name);
    strbuf_printf(out, "</b><span>%s</span><span>", known ? c->format->name : "");
    if (state.data && strncmp(state.data, "parameters ", 11) == 0) {
        state.data[strcspn(state.data, "\n")] = '\0';
        strbuf_add_text(out, "parameters: ");
        html_add_escaped(out, state.data + 11);
    } else {
        strbuf_add_text(out, bytes_text(inspect_sums(c, true).all.bytes));
    }
    strbuf_add_text(out, "</span></div>\n");
    strbuf_release(&state);
}

static void add_card(struct strbuf *out, const char *title, const char *lines)
{
    if (!lines) return;
    strbuf_add_text(out, "<section class=\"card\"><h3><span>");
    html_add_escaped(out, title);
    strbuf_add_text(out, "</span></h3><dl>\n");
    html_add_rows(out, lines);
    strbuf_add_text(out, "</dl></section>\n");
}

static void add_facts(struct strbuf *out, const struct inspection *x)
{
    struct strbuf checkpoint = {0}, model = {0};
    inspection_origin(&checkpoint, x);
    inspection_state(&checkpoint, x);
    inspection_model(&model, x);
    strbuf_printf(out, "<div class=\"cards%s\">\n", model.data ? "" : " single");
    add_card(out, x->c->path, checkpoint.data);
    add_card(out, "Model", model.data);
    strbuf_add_text(out, "</div>\n");
    strbuf_release(&checkpoint);
    strbuf_release(&model);
}

static void add_notes(struct strbuf *out, const struct checkpoint *c)
{
    if (!c->notes.count) return;
    strbuf_add_text(out, "<ul class=\"notes\">\n");
    for (size_t i = 0; i < c->notes.count; i++) {
        strbuf_add_text(out, "<li>");
        html_add_escaped(out, c->notes.lines[i]);
        strbuf_add_text(out, "</li>\n");
    }
    strbuf_add_text(out, "</ul>\n");
}

static void add_gaps(struct strbuf *out, const char *what, const char *const *names, size_t count)
{
    if (!count) return;
    strbuf_printf(out, "<details open><summary>%s ", what);
    add_count(out, count, "tensor", "tensors");
    strbuf_add_text(out, "</summary><ul class=\"notes\">\n");
    for (size_t i = 0; i < count; i++) {
        strbuf_add_text(out, "<li>");
        html_add_name(out, names[i]);
        strbuf_add_text(out, "</li>\n");
    }
    strbuf_add_text(out, "</ul></details>\n");
}

/* ---- sizes ---- */

/* Sorted by the number, whatever its unit. */
static void add_bytes_cell(struct strbuf *out, uint64_t bytes)
{
    strbuf_printf(out, "<td class=\"n\" data-v=\"%" PRIu64 "\">%s</td>", bytes, bytes_text(bytes));
}

static void add_bar(struct strbuf *out, const char *name, const struct sum *s, uint64_t whole)
{
    if (!s->tensors) return;
    const double part = whole ? 100.0 * (double)s->bytes / (double)whole : 0;
    strbuf_add_text(out, "<tr>");
    html_add_cell(out, "s", name);
    strbuf_printf(out, "<td class=\"bar\"><i style=\"width:%.1f%%\"></i></td>", part);
    add_bytes_cell(out, s->bytes);
    html_add_cell(out, "n", grouped_text(s->tensors));
    strbuf_add_text(out, "</tr>\n");
}

static void begin_bars(struct strbuf *out, const char *title)
{
    strbuf_printf(out,
                  "<section class=\"card\"><h3>%s</h3><table class=\"bars\"><thead><tr><th></th>"
                  "<th></th><th class=\"n\">bytes</th><th class=\"n\">tensors</th></tr></thead>"
                  "<tbody>\n",
                  title);
}

static void add_sizes(struct strbuf *out, const struct inspection *x)
{
    const struct sums s = inspect_sums(x->c, x->stored);
    strbuf_add_text(out, "<h2>Sizes</h2>\n<div class=\"cards\">\n");
    begin_bars(out, "By dtype");
    for (int d = NUM_DTYPES - 1; d >= 0; d--)
        add_bar(out, dtype_infos[d].name, &s.dtypes[d], s.all.bytes);
    strbuf_add_text(out, "</tbody></table></section>\n");
    begin_bars(out, "By group");
    for (int i = 0; i < NUM_GROUPS; i++)
        add_bar(out, inspect_group(i), &s.groups[i], s.all.bytes);
    strbuf_add_text(out, "</tbody></table></section>\n</div>\n");
}

/* ---- tensors ---- */

static void add_stats(struct strbuf *out, enum dtype dtype, const struct moments *m)
{
    const double numbers[] = {m->min, m->max, m->mean, moments_std(m)};
    const uint64_t counts[] = {m->nan, m->infinite, m->zeros};
    for (size_t i = 0; i < 4; i++)
        if (m->finite)
            strbuf_printf(out, "<td class=\"n\" data-v=\"%.17g\">%.5g</td>", numbers[i],
                          numbers[i]);
        else
            strbuf_add_text(out, "<td class=\"n\" data-v=\"\"></td>");
    for (size_t i = 0; i < 3; i++) {
        const bool is_bad = i < 2 && counts[i];
        strbuf_printf(out, "<td class=\"n\"><span%s>%s</span></td>",
                      is_bad ? " class=\"tag bad\"" : "",
                      moments_exist(dtype) ? grouped_text(counts[i]) : "");
    }
}

static void add_partners(struct strbuf *out, const struct named_tensor *t)
{
    if (t->num_partners == 1 && strcmp(t->name, t->partners[0]) == 0) return;
    for (size_t i = 0; i < t->num_partners && i < SHOWN_PARTNERS; i++) {
        strbuf_add_text(out, "<div class=\"stored\">");
        html_add_name(out, t->partners[i]);
        strbuf_add_text(out, "</div>");
    }
    if (t->num_partners > SHOWN_PARTNERS)
        strbuf_printf(out, "<div class=\"stored\">and %s more</div>",
                      grouped_text(t->num_partners - SHOWN_PARTNERS));
}

static void add_tensor(struct strbuf *out, const struct inspection *x, size_t i, struct arena *a)
{
    const struct named_tensor *t = &x->tensors[i];
    const char *weight = inspect_same_as(x->c, t);
    uint64_t numel = 1, bytes = 0;
    for (unsigned d = 0; d < t->num_dims; d++)
        numel *= t->shape[d];
    (void)dtype_size_bytes(t->dtype, numel, &bytes);
    strbuf_add_text(out, "<tr><td class=\"t\">");
    html_add_name(out, t->name);
    if (weight) {
        strbuf_add_text(out, "<div class=\"stored\">= ");
        html_add_name(out, weight);
        strbuf_add_text(out, "</div>");
    } else {
        add_partners(out, t);
    }
    strbuf_add_text(out, "</td>");
    html_add_cell(out, "s", dtype_infos[t->dtype].name);
    html_add_cell(out, "s", shape_text(a, t->num_dims, t->shape));
    html_add_cell(out, "n", grouped_text(numel));
    add_bytes_cell(out, weight ? 0 : bytes);
    html_add_cell(out, "n", grouped_text(weight ? 0 : t->num_shards));
    if (x->stats) add_stats(out, t->dtype, &x->stats[i]);
    strbuf_add_text(out, "</tr>\n");
}

static void add_tensor_table(struct strbuf *out, const struct inspection *x, struct arena *a)
{
    static const char *const titles[] = {[NAME_LOGICAL] = "Tensors",
                                         [NAME_STORED] = "Tensors, as the files name them",
                                         [NAME_HF] = "Tensors, as Hugging Face names them"};
    if (!x->num_tensors) return;
    strbuf_printf(out, "<h2>%s</h2>\n", titles[x->tensors[0].kind]);
    html_add_filter(out, "name, dtype, shape ..", false, false);
    strbuf_add_text(out,
                    "<div class=\"scroll tall\"><table id=\"tensors\"><thead><tr><th>tensor</th>"
                    "<th>dtype</th><th>shape</th><th class=\"n\">elements</th>"
                    "<th class=\"n\">bytes</th><th class=\"n\">shards</th>");
    if (x->stats)
        strbuf_add_text(out, "<th class=\"n\">min</th><th class=\"n\">max</th><th class=\"n\">mean"
                             "</th><th class=\"n\">std</th><th class=\"n\">NaN</th>"
                             "<th class=\"n\">Inf</th><th class=\"n\">zeros</th>");
    strbuf_add_text(out, "</tr></thead><tbody>\n");
    for (size_t i = 0; i < x->num_tensors; i++)
        add_tensor(out, x, i, a);
    strbuf_add_text(out, "</tbody></table></div>\n");
}

/* ---- all fields ---- */

static void begin_table(struct strbuf *out, const char *title, const char *columns)
{
    strbuf_printf(out,
                  "<details><summary>%s</summary><div class=\"scroll tall\"><table "
                  "class=\"fields\"><thead><tr>%s</tr></thead><tbody>\n",
                  title, columns);
}

static void end_table(struct strbuf *out)
{
    strbuf_add_text(out, "</tbody></table></div></details>\n");
}

/* The members of an object that have a value. */
static void add_members(struct strbuf *out, const char *title, const cJSON *object)
{
    if (!object || !object->child) return;
    begin_table(out, title, "<th>field</th><th>value</th>");
    for (const cJSON *i = object->child; i; i = i->next) {
        struct strbuf value = {0};
        if (cJSON_IsNull(i)) continue;
        if (!json_as_text(i)) json_print(&value, i, -1);
        strbuf_add_text(out, "<tr>");
        html_add_cell(out, "t", i->string);
        html_add_cell(out, "s", json_as_text(i) ? json_as_text(i) : value.data);
        strbuf_add_text(out, "</tr>\n");
        strbuf_release(&value);
    }
    end_table(out);
}

static void add_config(struct strbuf *out, const struct inspection *x)
{
    if (x->stored_only || x->c->names_alone) return;
    cJSON *config = config_json(&x->c->config);
    add_members(out, "Config", config);
    cJSON_Delete(config);
}

static void add_files(struct strbuf *out, const struct stored *s)
{
    begin_table(out, "Files", "<th>file</th><th class=\"n\">bytes</th>");
    for (size_t i = 0; i < s->num_files; i++) {
        if (s->files[i].coding) continue;
        strbuf_add_text(out, "<tr><td class=\"t\">");
        html_add_name(out, s->files[i].path);
        strbuf_add_text(out, "</td>");
        add_bytes_cell(out, s->files[i].stamp.size_bytes);
        strbuf_add_text(out, "</tr>\n");
    }
    end_table(out);
}

void inspection_html(struct strbuf *out, const struct inspection *x,
                     const struct html_environment *e)
{
    struct checkpoint *c = x->c;
    struct arena a;
    arena_init(&a);
    html_begin(out, c->path, "ferry inspect");
    add_banner(out, x);
    add_facts(out, x);
    add_gaps(out, "Missing:", c->gaps.missing, c->gaps.num_missing);
    add_gaps(out, "Unexpected:", c->gaps.unexpected, c->gaps.num_unexpected);
    add_notes(out, c);
    add_sizes(out, x);
    add_tensor_table(out, x, &a);
    add_config(out, x);
    add_members(out, "Args", x->page_args);
    add_files(out, &c->catalog.stored);
    html_end(out, e, NULL);
    arena_release(&a);
}
