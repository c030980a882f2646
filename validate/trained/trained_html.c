/* trained_html.c - the result of training both sides, as a page. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/count.h"
#include "common/numbers.h"
#include "validate/report/report_page.h"
#include "validate/report/texts.h"
#include "validate/trained/trained_internal.h"

enum {
    PLOT_WIDTH = 460,
    PLOT_HEIGHT = 230,
    PLOT_LEFT = 56, /* room for the numbers beside the axis */
    PLOT_TOP = 12,
    PLOT_BOTTOM = 26,
    PLOT_POINTS = 400,
    MOST_ROWS = 2000, /* of the table of steps */
};

static const char *const classes[NUM_OUTCOMES] = {
    [IDENTICAL] = "ok", [WITHIN] = "mid", [VALUES_DIFFER] = "bad"};

static void add_banner(struct strbuf *out, const struct trained *t)
{
    struct strbuf line = {0};
    trained_first_line(&line, t, false);
    line.data[strcspn(line.data, "\n")] = '\0';
    const char *rest = strstr(line.data, ": ");
    strbuf_printf(out, "<div class=\"verdict %s\"><b>%s</b><span>", classes[trained_outcome(t)],
                  trained_words[trained_outcome(t)]);
    html_add_escaped(out, rest ? rest + 2 : line.data);
    strbuf_add_text(out, "</span></div>\n");
    strbuf_release(&line);
}

static void add_run(struct strbuf *out, const struct trained *t)
{
    struct strbuf lines = {0};
    trained_run_text(&lines, t);
    trained_first_differences_text(&lines, t);
    strbuf_add_text(out, "<h2>Training</h2>\n<section class=\"card\"><dl>\n");
    html_add_rows(out, lines.data);
    strbuf_add_text(out, "</dl></section>\n");
    strbuf_release(&lines);
}

/* ---- loss and gradient norm by step ---- */

struct plot {
    struct strbuf *out;
    const struct trained *t;
    bool of_norms; /* else of losses */
    double low, high;
    size_t stride; /* steps from one point to the next */
};

static const double *values_at(const struct plot *p, size_t step)
{
    const struct trained_step *s = &p->t->steps[step];
    return p->of_norms ? s->grad_norm : s->loss;
}

static void find_range(struct plot *p)
{
    p->low = INFINITY;
    p->high = -INFINITY;
    for (size_t i = 0; i < p->t->num_steps; i++)
        for (unsigned side = 0; side < 2; side++) {
            p->low = fmin(p->low, values_at(p, i)[side]);
            p->high = fmax(p->high, values_at(p, i)[side]);
        }
    const double edge =
        p->high > p->low ? (p->high - p->low) * 0.08 : fmax(fabs(p->high), 1e-6) * 0.01;
    p->low -= edge;
    p->high += edge;
}

static double x_of(const struct plot *p, size_t step)
{
    const double count = (double)p->t->num_steps;
    return PLOT_LEFT + ((double)step + 0.5) * (PLOT_WIDTH - PLOT_LEFT - 10) / count;
}

static double y_of(const struct plot *p, double value)
{
    const double height = PLOT_HEIGHT - PLOT_TOP - PLOT_BOTTOM;
    return PLOT_TOP + (p->high - value) / (p->high - p->low) * height;
}

static void add_axes(const struct plot *p)
{
    const double step = report_tick_step(p->low, p->high);
    for (double v = ceil(p->low / step) * step; v <= p->high; v += step)
        strbuf_printf(p->out,
                      "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" "
                      "text-anchor=\"end\">%.6g</text>\n",
                      PLOT_LEFT, y_of(p, v), PLOT_WIDTH - 10, PLOT_LEFT - 6, y_of(p, v) + 4,
                      fabs(v) < step / 2 ? 0 : v);
    const size_t shown = (p->t->num_steps + 9) / 10;
    for (size_t i = 0; i < p->t->num_steps; i += shown)
        strbuf_printf(p->out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%zu</text>\n",
                      x_of(p, i), PLOT_HEIGHT - 8, i + 1);
}

static void add_line_of_a(const struct plot *p)
{
    strbuf_add_text(p->out, "<path class=\"line\" d=\"");
    for (size_t i = 0; i < p->t->num_steps; i += p->stride)
        strbuf_printf(p->out, "%c%.1f %.1f", i ? 'L' : 'M', x_of(p, i),
                      y_of(p, values_at(p, i)[0]));
    strbuf_add_text(p->out, "\"/>\n");
}

static void add_dots_of_b(const struct plot *p)
{
    for (size_t i = 0; i < p->t->num_steps; i += p->stride) {
        const struct trained_step *s = &p->t->steps[i];
        const double *v = values_at(p, i);
        strbuf_printf(p->out,
                      "<circle class=\"dot-%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"><title>step %zu, "
                      "%s\nA %.9g\nB %.9g</title></circle>\n",
                      classes[s->outcome], x_of(p, i), y_of(p, v[1]), i + 1,
                      trained_words[s->outcome], v[0], v[1]);
    }
}

static void add_plot(struct strbuf *out, const struct trained *t, const char *title, bool of_norms)
{
    struct plot p = {
        .out = out, .t = t, .of_norms = of_norms, .stride = t->num_steps / PLOT_POINTS + 1};
    find_range(&p);
    strbuf_printf(
        out,
        "<section class=\"card\"><h3>%s by step</h3><svg class=\"plot\" viewBox=\"0 0 %d %d\" "
        "role=\"img\" aria-label=\"%s by step\">\n",
        title, PLOT_WIDTH, PLOT_HEIGHT, title);
    add_axes(&p);
    add_line_of_a(&p);
    add_dots_of_b(&p);
    strbuf_add_text(out, "</svg></section>\n");
}

static void add_plots(struct strbuf *out, const struct trained *t)
{
    strbuf_add_text(out, "<h2>Steps</h2>\n<div class=\"cards\">\n");
    add_plot(out, t, "Loss", false);
    add_plot(out, t, "Gradient norm", true);
    strbuf_add_text(out,
                    "</div>\n<div class=\"legend\"><span><svg width=\"22\" height=\"12\"><path "
                    "class=\"line\" d=\"M0 6h22\"/></svg>A</span>");
    for (unsigned i = IDENTICAL; i <= VALUES_DIFFER; i++)
        strbuf_printf(out,
                      "<span><svg width=\"12\" height=\"12\"><circle class=\"dot-%s\" cx=\"6\" "
                      "cy=\"6\" r=\"4.5\"/></svg>B, %s</span>",
                      classes[i], trained_words[i]);
    strbuf_add_text(out, "</div>\n<div class=\"gap\"></div>\n");
}

/* ---- tables ---- */

static void add_outcome(struct strbuf *out, enum outcome outcome)
{
    strbuf_printf(out, "<td><span class=\"tag %s\">%s</span></td>", classes[outcome],
                  trained_words[outcome]);
}

static void add_number(struct strbuf *out, double x, const char *text)
{
    strbuf_printf(out, "<td class=\"n\" data-v=\"%.17g\">%s</td>", x, text);
}

static void add_steps(struct strbuf *out, const struct trained *t, struct arena *a)
{
    const size_t shown = t->num_steps < MOST_ROWS ? t->num_steps : MOST_ROWS;
    strbuf_add_text(out, "<div class=\"scroll tall\"><table><thead><tr><th class=\"n\">step</th>"
                         "<th>outcome</th><th class=\"n\">loss A</th><th class=\"n\">loss B</th>"
                         "<th class=\"n\">|a-b|</th><th class=\"n\">grad norm A</th>"
                         "<th class=\"n\">grad norm B</th><th class=\"n\">|a-b|</th></tr></thead>"
                         "<tbody>\n");
    for (size_t i = 0; i < shown; i++) {
        const struct trained_step *s = &t->steps[i];
        const double numbers[] = {
            s->loss[0],      s->loss[1],      fabs(s->loss[0] - s->loss[1]),
            s->grad_norm[0], s->grad_norm[1], fabs(s->grad_norm[0] - s->grad_norm[1])};
        strbuf_printf(out, "<tr><td class=\"n\">%zu</td>", i + 1);
        add_outcome(out, s->outcome);
        for (size_t k = 0; k < COUNT(numbers); k++)
            add_number(out, numbers[k], arena_printf(a, k % 3 == 2 ? "%.3g" : "%.9g", numbers[k]));
        strbuf_add_text(out, "</tr>\n");
    }
    strbuf_add_text(out, "</tbody></table></div>\n");
    if (shown < t->num_steps)
        strbuf_printf(out, "<p>and %s more: --json lists all</p>\n",
                      grouped_text(t->num_steps - shown));
}

static void add_weight(struct strbuf *out, const struct trained_weight *w, struct arena *a)
{
    const struct statistics *s = &w->statistics;
    strbuf_printf(out, "<tr%s><td class=\"t\">",
                  outcome_passes(w->outcome) ? " class=\"equal\"" : "");
    html_add_name(out, w->name);
    strbuf_add_text(out, "</td>");
    add_outcome(out, w->outcome);
    strbuf_printf(out, "<td><span class=\"tag %s\">%s</span></td>",
                  w->differs_as_loaded ? "bad" : "ok",
                  w->differs_as_loaded ? "differs" : "identical");
    html_add_cell(out, "n", grouped_text(w->numel));
    html_add_cell(out, "n", grouped_text(statistics_different(s)));
    add_number(out, s->max_difference, number_text(a, s->max_difference));
    add_number(out, statistics_relative_error(s), number_text(a, statistics_relative_error(s)));
    strbuf_add_text(out, "</tr>\n");
}

static void add_weights(struct strbuf *out, const struct trained *t, struct arena *a)
{
    strbuf_printf(out, "<h2>Tensors after step %zu</h2>\n", t->num_steps);
    html_add_filter(out, "name ..", true, trained_weights_differ(t) == 0);
    strbuf_add_text(out,
                    "<div class=\"scroll tall\"><table id=\"tensors\"><thead><tr><th>tensor</th>"
                    "<th>outcome</th><th>as loaded</th><th class=\"n\">elements</th>"
                    "<th class=\"n\">differ</th><th class=\"n\">max |a-b|</th>"
                    "<th class=\"n\">rel. error</th></tr></thead><tbody>\n");
    for (size_t i = 0; i < t->num_weights; i++)
        add_weight(out, &t->weights[i], a);
    strbuf_add_text(out, "</tbody></table></div>\n");
}

void trained_html(struct strbuf *out, const struct trained *t, const struct html_environment *e)
{
    struct arena a;
    arena_init(&a);
    html_begin(out, trained_words[trained_outcome(t)], "ferry verify --train-steps");
    add_banner(out, t);
    report_configs(out, &t->configs);
    report_sides(out, t->sides, &a);
    add_run(out, t);
    add_plots(out, t);
    add_steps(out, t, &a);
    add_weights(out, t, &a);
    html_end(out, e, arena_printf(&a, "%.2f s", t->seconds));
    arena_release(&a);
}
