#include "validate/report/report_html.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/html_style.h"
#include "common/memory.h"
#include "common/numbers.h"
#include "common/text.h"
#include "convert/format.h"
#include "validate/compare/stored_names.h"
#include "validate/hints/hints.h"
#include "validate/report/report_page.h"
#include "validate/report/texts.h"

/* ---- verdict and sides ---- */

static const char *verdict_class(const struct comparison *c)
{
    bool passes = compare_tensors_pass(c) && compare_settings_pass(c);
    return !passes ? "bad" : c->counts[WITHIN] ? "mid" : "ok";
}

/* Whether the forward pass decides: differing configs and training states
 * outweigh it. */
static bool is_by_forward(const struct verdict *v)
{
    return v->forward && (!v->c || compare_settings_pass(v->c));
}

static void add_weights_line(const struct page *p)
{
    struct strbuf line = {0};
    weights_line(&line, p->v);
    line.data[strcspn(line.data, "\n")] = '\0';
    const char *rest = strstr(line.data, ": ");
    strbuf_add_text(p->out, p->v->forward ? "<span>weights: " : "<span>");
    html_add_escaped(p->out, p->v->forward || !rest ? line.data : rest + 2);
    strbuf_add_text(p->out, "</span>");
    strbuf_release(&line);
}

/* The verdict as one word, and its parts. */
static void add_banner(const struct page *p)
{
    const struct verdict *v = p->v;
    bool by_forward = is_by_forward(v);
    strbuf_printf(p->out, "<div class=\"verdict %s\"><b>%s</b>",
                  by_forward ? report_forward_class(v->forward) : verdict_class(v->c),
                  by_forward ? forward_word(v->forward) : verdict_word(v->c));
    if (v->forward) report_forward_line(p, !by_forward);
    if (v->c) add_weights_line(p);
    strbuf_add_text(p->out, "</div>\n");
}

static void add_model(struct strbuf *out, const struct model_config *m)
{
    struct strbuf text = {0};
    strbuf_printf(&text,
                  "%" PRIu64 " layers, hidden %" PRIu64 ", %" PRIu64 " heads, %" PRIu64
                  " key/value heads of %" PRIu64,
                  m->num_layers, m->hidden_size, m->num_attention_heads, m->num_query_groups,
                  m->kv_channels);
    if (m->num_experts) strbuf_printf(&text, ", %" PRIu64 " experts", m->num_experts);
    html_add_row(out, "model", text.data);
    strbuf_release(&text);
}

static void add_side(struct strbuf *out, const struct side *s, char letter, struct arena *a)
{
    const struct checkpoint *k = &s->checkpoint;
    strbuf_printf(out, "<section class=\"card\"><h3><i>%c</i><span>", letter);
    html_add_escaped(out, k->path);
    strbuf_add_text(out, "</span></h3><dl>\n");
    html_add_row(out, "format", k->format->name);
    if (!s->stored_only) {
        html_add_row(out, "family", k->family ? k->family : "not known");
        if (k->format->has & FORMAT_LAYOUT) html_add_row(out, "layout", layout_text(&k->layout, a));
        if (k->training.iteration >= 0 || k->training.release)
            html_add_row(out, "iteration",
                         k->training.release ? "release"
                                             : arena_printf(a, "%" PRId64, k->training.iteration));
        add_model(out, &k->config);
    } else {
        html_add_row(out, "names", "as stored");
    }
    html_add_row(out, "tensors",
                 arena_printf(a, "%zu, %s, in %zu %s", s->num_tensors, bytes_text(s->bytes),
                              k->catalog.stored.num_files,
                              k->catalog.stored.num_files == 1 ? "file" : "files"));
    strbuf_add_text(out, "</dl></section>\n");
}

void report_sides(struct strbuf *out, const struct side sides[2], struct arena *a)
{
    strbuf_add_text(out, "<div class=\"cards\">\n");
    for (unsigned i = 0; i < 2; i++)
        add_side(out, &sides[i], side_letter(i), a);
    strbuf_add_text(out, "</div>\n");
}

static void add_field(struct strbuf *out, const char *field, const char *const values[2],
                      const struct config_difference *d)
{
    strbuf_add_text(out, !d                             ? "<tr>"
                         : d->effect == EFFECT_COMPUTES ? "<tr class=\"differs\">"
                                                        : "<tr class=\"harmless\">");
    html_add_cell(out, "t", field);
    html_add_cell(out, "s", values[0]);
    html_add_cell(out, "s", values[1]);
    html_add_cell(out, "s", d ? config_effect_words[d->effect] : "");
    strbuf_add_text(out, "</tr>\n");
}

static void begin_fields(struct strbuf *out)
{
    strbuf_add_text(out, "<div class=\"scroll\" style=\"margin-top:10px\"><table "
                         "class=\"fields\"><thead><tr><th>field</th>"
                         "<th>A</th><th>B</th><th>difference</th></tr></thead><tbody>\n");
}

void report_configs(struct strbuf *out, const struct config_comparison *x)
{
    if (!x->num_computing) return;
    begin_fields(out);
    for (size_t i = 0; i < x->num_computing; i++)
        add_field(out, x->differences[i].field, x->differences[i].values, &x->differences[i]);
    strbuf_add_text(out, "</tbody></table></div>\n");
}

static void add_training_field(struct strbuf *out, const struct training_difference *d,
                               bool is_ignored)
{
    strbuf_add_text(out, is_ignored ? "<tr class=\"harmless\">" : "<tr class=\"differs\">");
    html_add_cell(out, "t", d->field);
    html_add_cell(out, "s", d->values[0]);
    html_add_cell(out, "s", d->values[1]);
    html_add_cell(out, "s", is_ignored ? "training state, --ignore-training" : "training state");
    strbuf_add_text(out, "</tr>\n");
}

static void add_training_fields(struct strbuf *out, const struct training_comparison *x,
                                struct arena *a)
{
    if (!x->count && !x->num_ignored) return;
    begin_fields(out);
    for (size_t i = 0; i < x->count; i++)
        add_training_field(out, &x->differences[i], false);
    for (size_t i = 0; i < x->num_ignored; i++)
        add_training_field(out, &x->ignored[i], true);
    strbuf_add_text(out, "</tbody></table></div>\n");
    if (!x->count) return;
    strbuf_add_text(out, "<p class=\"way\">");
    html_add_escaped(out, training_way_on(a, x));
    strbuf_add_text(out, "</p>\n");
}

static bool is_listed(const struct config_comparison *x, const char *field)
{
    for (size_t i = 0; i < x->count; i++)
        if (strcmp(x->differences[i].field, field) == 0) return true;
    return false;
}

/* Differing fields come first; fields that neither model has are left out. */
static void add_configs(const struct page *p)
{
    const struct side *s = p->c->sides;
    const struct config_comparison *x = &p->c->configs;
    static const struct scalar_style style = {10, "yes", "no", "-"};
    if (s[0].stored_only || s[1].stored_only) return;
    strbuf_add_text(p->out, "<details><summary>Configs</summary>");
    begin_fields(p->out);
    for (size_t i = 0; i < x->count; i++)
        add_field(p->out, x->differences[i].field, x->differences[i].values, &x->differences[i]);
    for (size_t i = 0; i < num_model_fields; i++) {
        const struct field *f = &model_fields[i].field;
        const struct model_config *const configs[] = {&s[0].checkpoint.config,
                                                      &s[1].checkpoint.config};
        const struct scalar a = field_get(f, configs[0]), b = field_get(f, configs[1]);
        if (model_field_is_unused(&model_fields[i], configs[0]) &&
            model_field_is_unused(&model_fields[i], configs[1]))
            continue;
        const char *const values[] = {scalar_text(a, &style, p->a), scalar_text(b, &style, p->a)};
        bool given = scalar_is_given(a) || scalar_is_given(b);
        if (given && !is_listed(x, f->name)) add_field(p->out, f->name, values, NULL);
    }
    strbuf_add_text(p->out, "</tbody></table></div></details>\n");
}

static void add_note(const struct page *p, const char *who, const char *text)
{
    strbuf_printf(p->out, "<li>%s", who);
    html_add_escaped(p->out, text);
    strbuf_add_text(p->out, "</li>\n");
}

static void add_notes(const struct page *p)
{
    const struct checkpoint *a = &p->c->sides[0].checkpoint, *b = &p->c->sides[1].checkpoint;
    if (!p->c->num_notes && !a->notes.count && !b->notes.count) return;
    strbuf_add_text(p->out, "<ul class=\"notes\">\n");
    for (size_t i = 0; i < p->c->num_notes; i++)
        add_note(p, "", p->c->notes[i]);
    for (size_t i = 0; i < a->notes.count; i++)
        add_note(p, "A: ", a->notes.lines[i]);
    for (size_t i = 0; i < b->notes.count; i++)
        add_note(p, "B: ", b->notes.lines[i]);
    strbuf_add_text(p->out, "</ul>\n");
}

/* ---- hints ---- */

static void add_hints(const struct page *p)
{
    const struct comparison *c = p->c;
    size_t without = 0;
    if (compare_tensors_pass(c)) return;
    for (size_t i = 0; i < c->num_tensors; i++)
        without += !outcome_passes(c->tensors[i].outcome) && !c->tensors[i].hint;
    strbuf_add_text(p->out, "<h2>Hints</h2>\n<ul class=\"hints\">\n");
    for (size_t i = 0; i < c->num_hints; i++) {
        strbuf_add_text(p->out, "<li><span class=\"id\">");
        html_add_escaped(p->out, c->hints[i].id);
        strbuf_add_text(p->out, "</span><span class=\"text\">");
        html_add_escaped(p->out, c->hints[i].text);
        strbuf_add_text(p->out, "</span></li>\n");
    }
    if (without)
        strbuf_printf(p->out,
                      "<li class=\"none\"><span class=\"id\">unknown</span><span class=\"text\">no "
                      "hint holds for %zu tensor%s</span></li>\n",
                      without, plural(without));
    strbuf_add_text(p->out, "</ul>\n");
}

/* ---- the heat map ---- */

/* A square: tensors of one kind in one layer. */
struct cell {
    const struct compared *worst;
    size_t num_tensors, num_different, num_within;
};

struct kind {
    struct place place; /* of the first tensor */
    const char *label;
    struct cell *cells; /* [num_layers]; only the first for tensors outside of layers */
};

struct heat_map {
    struct kind *kinds;
    size_t num_kinds;
    size_t num_layers; /* of the longest stack */
};

enum {
    MAX_COLUMNS = 512, /* layers of a heat map; higher numbers share the last column */
    MAX_KINDS = 500,   /* rows of a heat map */
    LABEL_CHARS = 84,
    CHAR_WIDTH = 7,
    ROW_HEIGHT = 19,
    MAP_WIDTH = 1108,
};

static int by_kind(const void *a, const void *b)
{
    const struct compared *x = *(const struct compared *const *)a,
                          *y = *(const struct compared *const *)b;
    int order = strcmp(x->place.stack ? x->place.stack : "", y->place.stack ? y->place.stack : "");
    if (!order) order = strcmp(x->place.kind, y->place.kind);
    if (order) return order;
    return x < y ? -1 : x > y;
}

static size_t column_of(const struct compared *t)
{
    if (t->place.layer < 0) return 0;
    return t->place.layer < MAX_COLUMNS ? (size_t)t->place.layer : MAX_COLUMNS - 1;
}

static void add_to_cell(struct cell *cell, const struct compared *t)
{
    bool passes = outcome_passes(t->outcome);
    cell->num_tensors++;
    cell->num_different += !passes;
    cell->num_within += t->outcome == WITHIN;
    bool worse = !cell->worst || (outcome_passes(cell->worst->outcome) && !passes) ||
                 (!passes && compared_badness(t) > compared_badness(cell->worst));
    if (worse) cell->worst = t;
}

/* Sorts kinds in the order of the model: by their first tensor. */
static int by_first_tensor(const void *a, const void *b)
{
    const struct kind *x = a, *y = b;
    int order = place_compare(&x->place, &y->place);
    const struct compared *s = x->cells[column_of(&(struct compared){.place = x->place})].worst,
                          *t = y->cells[column_of(&(struct compared){.place = y->place})].worst;
    bool both_in_layers = x->place.layer >= 0 && y->place.layer >= 0;
    if (order && !both_in_layers) return order;
    return s < t ? -1 : s > t;
}

static struct heat_map make_map(const struct page *p)
{
    struct comparison *c = p->c;
    struct heat_map m = {.num_layers = 1};
    const struct compared **sorted = arena_array(p->a, c->num_tensors, sizeof *sorted);
    m.kinds = arena_array(p->a, MAX_KINDS, sizeof *m.kinds);
    for (size_t i = 0; i < c->num_tensors; i++) {
        sorted[i] = &c->tensors[i];
        if (column_of(sorted[i]) >= m.num_layers) m.num_layers = column_of(sorted[i]) + 1;
    }
    if (c->num_tensors) qsort(sorted, c->num_tensors, sizeof *sorted, by_kind);
    for (size_t i = 0; i < c->num_tensors; i++) {
        const struct compared *t = sorted[i];
        bool new = !i || !place_same_kind(&sorted[i - 1]->place, &t->place);
        if (new &&m.num_kinds == MAX_KINDS) break;
        if (new)
            m.kinds[m.num_kinds++] = (struct kind){
                .place = t->place,
                .label = place_kind_text(p->a, &t->place, c->main_stack),
                .cells = arena_array(p->a, m.num_layers, sizeof(struct cell)),
            };
        add_to_cell(&m.kinds[m.num_kinds - 1].cells[column_of(t)], t);
    }
    if (m.num_kinds) qsort(m.kinds, m.num_kinds, sizeof *m.kinds, by_first_tensor);
    return m;
}

static unsigned heat_of(double error)
{
    double step = floor(log10(error) + HEAT_STEPS - 1);
    return step < 0 ? 0 : step >= HEAT_STEPS ? HEAT_STEPS - 1 : (unsigned)step;
}

static const char *cell_class(struct arena *a, const struct cell *cell)
{
    const struct compared *t = cell->worst;
    if (!cell->num_different) return cell->num_within ? "within" : "same";
    if (compared_badness(t) >= 1e299) return "odd";
    return arena_printf(a, "h%u", heat_of(compared_badness(t)));
}

static void add_cell_title(const struct page *p, const struct cell *cell)
{
    const struct compared *t = cell->worst;
    strbuf_add_text(p->out, "<title>");
    html_add_escaped(p->out, t->name);
    if (cell->num_tensors > 1)
        strbuf_printf(p->out, "\n%zu of %zu tensors like it differ", cell->num_different,
                      cell->num_tensors);
    if (cell->num_different)
        strbuf_printf(p->out, "\nrelative error %s", badness_text(p->a, t));
    else
        strbuf_printf(p->out, "\n%s", outcome_names[t->outcome]);
    if (t->hint) {
        strbuf_add_text(p->out, "\n");
        html_add_escaped(p->out, t->hint->text);
    }
    strbuf_add_text(p->out, "</title>");
}

static void add_kind(const struct page *p, const struct heat_map *m, size_t row, unsigned left,
                     double width)
{
    const struct kind *k = &m->kinds[row];
    unsigned top = (unsigned)row * ROW_HEIGHT;
    size_t length = strlen(k->label);
    strbuf_printf(p->out, "<text x=\"%u\" y=\"%u\" text-anchor=\"end\">", left - 8, top + 13);
    html_add_escaped(p->out, length > LABEL_CHARS
                                 ? arena_printf(p->a, "..%s", k->label + length - LABEL_CHARS + 2)
                                 : k->label);
    strbuf_add_text(p->out, "</text>");
    for (size_t i = 0; i < m->num_layers; i++) {
        const struct cell *cell = &k->cells[i];
        if (!cell->worst) continue;
        strbuf_printf(p->out,
                      "<rect class=\"%s\" x=\"%.1f\" y=\"%u\" width=\"%.1f\" height=\"%d\">",
                      cell_class(p->a, cell), left + (double)i * width, top,
                      width > 6 ? width - 1.5 : width, ROW_HEIGHT - 2);
        add_cell_title(p, cell);
        strbuf_add_text(p->out, "</rect>");
    }
    strbuf_add_text(p->out, "\n");
}

/* Adds numbers of layers below the columns, as many as fit. */
static void add_layer_numbers(const struct page *p, const struct heat_map *m, unsigned left,
                              double width)
{
    size_t step = 1;
    unsigned top = (unsigned)m->num_kinds * ROW_HEIGHT + 14;
    while ((double)step * width < 26)
        step *= step == 2 || step == 20 ? 5 : 2;
    for (size_t i = 0; i < m->num_layers; i += step)
        strbuf_printf(p->out, "<text x=\"%.1f\" y=\"%u\" text-anchor=\"middle\">%zu</text>",
                      left + ((double)i + 0.5) * width - 0.75, top, i);
    strbuf_printf(p->out, "<text x=\"%u\" y=\"%u\" text-anchor=\"end\">layer</text>\n", left - 8,
                  top);
}

static unsigned label_width(const struct heat_map *m)
{
    size_t longest = 6;
    for (size_t i = 0; i < m->num_kinds; i++)
        if (strlen(m->kinds[i].label) > longest) longest = strlen(m->kinds[i].label);
    return (unsigned)(longest < LABEL_CHARS ? longest : LABEL_CHARS) * CHAR_WIDTH + 16;
}

static void add_legend_item(const struct page *p, const char *class, const char *text)
{
    strbuf_printf(p->out,
                  "<span><svg width=\"14\" height=\"14\"><rect class=\"%s\" width=\"14\" "
                  "height=\"14\"/></svg>%s</span>",
                  class, text);
}

static void add_legend(const struct page *p)
{
    strbuf_add_text(p->out, "<div class=\"legend\">");
    add_legend_item(p, "same", "identical");
    if (p->c->counts[WITHIN]) add_legend_item(p, "within", "within tolerance");
    strbuf_add_text(p->out, "<span>relative error 1e-8 <svg width=\"126\" height=\"14\">");
    for (unsigned i = 0; i < HEAT_STEPS; i++)
        strbuf_printf(p->out, "<rect class=\"h%u\" x=\"%u\" width=\"14\" height=\"14\"/>", i,
                      i * 14);
    strbuf_add_text(p->out, "</svg> 1 and more</span>");
    add_legend_item(p, "odd", "missing, another shape, no numbers, or NaN and Inf");
    strbuf_add_text(p->out, "</div>\n");
}

static void add_map(const struct page *p)
{
    struct heat_map m = make_map(p);
    unsigned left = label_width(&m);
    double width = ((double)MAP_WIDTH - left) / (double)m.num_layers;
    if (width > 46) width = 46;
    if (width < 7) width = 7;
    if (!m.num_kinds) return;
    strbuf_printf(p->out,
                  "<h2>Where</h2>\n<div class=\"scroll map\" data-labels=\"%u\"><svg "
                  "width=\"%.0f\" height=\"%u\" "
                  "role=\"img\" aria-label=\"relative error by layer and kind of tensor\">\n",
                  left, left + (double)m.num_layers * width + 2,
                  (unsigned)m.num_kinds * ROW_HEIGHT + 22);
    for (size_t i = 0; i < m.num_kinds; i++)
        add_kind(p, &m, i, left, width);
    add_layer_numbers(p, &m, left, width);
    strbuf_add_text(p->out, "</svg></div>\n");
    if (m.num_kinds == MAX_KINDS)
        strbuf_printf(p->out, "<p>No more than %d kinds of tensors are drawn.</p>\n", MAX_KINDS);
    add_legend(p);
}

/* ---- the table ---- */

static void add_number_cell(const struct page *p, bool known, double value, const char *text)
{
    if (!known || isnan(value))
        strbuf_add_text(p->out, "<td class=\"n\" data-v=\"\"></td>");
    else if (isinf(value))
        strbuf_printf(p->out, "<td class=\"n\" data-v=\"Infinity\">%s</td>", text);
    else
        strbuf_printf(p->out, "<td class=\"n\" data-v=\"%.9g\">%s</td>", value, text);
}

/* A cell whose number does not cover all elements sorts with the worst. */
static void add_distance_cell(const struct page *p, bool known, const struct statistics *s,
                              double value, const char *text)
{
    if (statistics_cover_all(s))
        add_number_cell(p, known, value, text);
    else
        add_number_cell(p, known, INFINITY, "nan");
}

static const char *join_both(struct arena *a, const char *x, const char *y)
{
    if (!x || !y) return x ? x : y;
    return strcmp(x, y) ? arena_printf(a, "%s / %s", x, y) : x;
}

static const char *dtypes_of_both(const struct page *p, const struct compared *t)
{
    const struct tensor *x = t->tensors[0], *y = t->tensors[1];
    return join_both(p->a, x ? dtypes_text(p->a, x) : NULL, y ? dtypes_text(p->a, y) : NULL);
}

static const char *shapes_text(const struct page *p, const struct compared *t)
{
    const struct tensor *x = t->tensors[0], *y = t->tensors[1];
    return join_both(p->a, x ? shape_text(p->a, x->num_dims, x->shape) : NULL,
                     y ? shape_text(p->a, y->num_dims, y->shape) : NULL);
}

static void add_statistics(const struct page *p, const struct compared *t)
{
    const struct statistics *s = &t->statistics;
    bool distances = t->counted && statistics_have_distances(t->read[0]->dtype, t->read[1]->dtype);
    bool ulps = distances && t->read[0]->dtype == t->read[1]->dtype;
    double different = (double)statistics_different(s), error = statistics_relative_error(s),
           cosine = statistics_cosine(s);
    add_distance_cell(p, distances, s, error, number_text(p->a, error));
    add_number_cell(p, t->counted, different, grouped_text(statistics_different(s)));
    add_distance_cell(p, distances, s, s->max_difference, number_text(p->a, s->max_difference));
    if (p->c->in_steps)
        add_distance_cell(p, t->has_steps, s, s->max_steps, number_text(p->a, s->max_steps));
    else
        add_distance_cell(p, ulps, s, (double)s->max_ulp, grouped_text(s->max_ulp));
    add_distance_cell(p, distances, s, cosine, arena_printf(p->a, "%.6f", cosine));
    bool located = t->counted && s->first <= s->last && t->read[0] == t->tensors[0];
    html_add_cell(
        p->out, "s",
        located ? coordinates_text(p->a, t->tensors[0]->num_dims, t->tensors[0]->shape, s->first)
                : "");
}

static void add_hint_cell(const struct page *p, const struct hint *hint)
{
    strbuf_add_text(p->out, "<td class=\"s\"");
    if (hint) {
        strbuf_add_text(p->out, " title=\"");
        html_add_escaped(p->out, hint->text);
        strbuf_add_text(p->out, "\"><span class=\"tag hint\">");
        html_add_escaped(p->out, hint->id);
        strbuf_add_text(p->out, "</span></td>");
    } else {
        strbuf_add_text(p->out, "></td>");
    }
}

static void add_stored_names(const struct page *p, const char *label, const char *names)
{
    if (!names) return;
    strbuf_printf(p->out, "<div class=\"stored\"><i>%s</i> ", label);
    html_add_name(p->out, names);
    strbuf_add_text(p->out, "</div>");
}

/* Names equal on both sides are printed once. */
static void add_both_names(const struct page *p, const char *const names[2], const char *what)
{
    if (text_equal(names[0], names[1])) {
        add_stored_names(p, arena_printf(p->a, "%s", what), names[0]);
        return;
    }
    for (unsigned side = 0; side < 2; side++)
        add_stored_names(p, arena_printf(p->a, "%s%s%c", what, *what ? " " : "", side_letter(side)),
                         names[side]);
}

/* The tensor's stored names, those that differ, and the first difference. */
static void add_name_cell(const struct page *p, const struct compared *t)
{
    const char *names[2], *differing[2], *first[2];
    for (unsigned side = 0; side < 2; side++) {
        names[side] = stored_names_text(p->a, t, side);
        differing[side] = names[side] ? differing_names_text(p->a, t, side) : NULL;
        first[side] = names[side] && t->first_in[side] && !outcome_passes(t->outcome)
                          ? first_stored_text(p->a, p->c, t, side)
                          : NULL;
    }
    strbuf_add_text(p->out, "<td class=\"t\">");
    html_add_name(p->out, t->name);
    add_both_names(p, names, "");
    add_both_names(p, differing, "differ");
    add_both_names(p, first, "first");
    strbuf_add_text(p->out, "</td>");
}

static void add_tensor_row(const struct page *p, const struct compared *t)
{
    static const char *const classes[] = {[IDENTICAL] = "ok", [WITHIN] = "mid"};
    bool passes = outcome_passes(t->outcome);
    strbuf_printf(p->out, "<tr%s>", passes ? " class=\"equal\"" : "");
    add_name_cell(p, t);
    strbuf_printf(p->out, "<td><span class=\"tag %s\">%s</span></td>",
                  passes ? classes[t->outcome] : "bad", outcome_names[t->outcome]);
    if (!p->plain) {
        add_hint_cell(p, t->hint);
        add_statistics(p, t);
    }
    html_add_cell(p->out, "s", dtypes_of_both(p, t));
    html_add_cell(p->out, "s", shapes_text(p, t));
    strbuf_add_text(p->out, "</tr>\n");
}

static void add_tensors(const struct page *p)
{
    strbuf_add_text(p->out, "<h2>Tensors</h2>\n");
    html_add_filter(p->out, "name, dtype, hint ..", true, compare_tensors_pass(p->c));
    strbuf_add_text(p->out, "<div class=\"scroll tall\"><table id=\"tensors\"><thead "
                            "title=\"click to sort\"><tr><th>tensor</th>"
                            "<th>outcome</th>");
    if (!p->plain)
        strbuf_add_text(p->out,
                        "<th>hint</th><th class=\"n\">rel. error</th><th class=\"n\">differ</th>"
                        "<th class=\"n\">max |a-b|</th>");
    if (!p->plain)
        strbuf_printf(p->out,
                      "<th class=\"n\">max %s</th><th class=\"n\">cosine</th><th>first</th>",
                      p->c->in_steps ? "steps" : "ulp");
    strbuf_add_text(p->out, "<th>dtype</th><th>shape</th></tr></thead><tbody>\n");
    for (size_t i = 0; i < p->c->num_tensors; i++)
        add_tensor_row(p, &p->c->tensors[i]);
    strbuf_add_text(p->out, "</tbody></table></div>\n");
}

/* ---- the page ---- */

/* The sections on the weights; none if B is a file of results. */
static void add_comparison(const struct page *p)
{
    if (!p->c) return;
    report_sides(p->out, p->c->sides, p->a);
    add_configs(p);
    add_notes(p);
}

static void add_weights(const struct page *p)
{
    if (!p->c) return;
    add_map(p);
    add_tensors(p);
}

static void add_foot(const struct page *p, const struct html_environment *e)
{
    const char *took = arena_printf(p->a, "%.2f s", p->v->seconds);
    if (p->c) took = arena_printf(p->a, "%s, %s read", took, bytes_text(p->c->read_bytes));
    html_end(p->out, e, took);
}

void report_html(struct strbuf *out, const struct verdict *v, const struct html_environment *e)
{
    struct arena a;
    arena_init(&a);
    bool plain = v->c && v->c->counts[IDENTICAL] == v->c->num_tensors;
    const struct page p = {out, v, v->c, &a, plain};
    html_begin(out, is_by_forward(v) ? forward_word(v->forward) : verdict_word(v->c),
               "ferry verify");
    add_banner(&p);
    if (v->c) {
        report_configs(out, &v->c->configs);
        add_training_fields(out, &v->c->training, &a);
        add_hints(&p);
    }
    add_comparison(&p);
    if (v->forward) report_forward(&p);
    add_weights(&p);
    add_foot(&p, e);
    arena_release(&a);
}
