/* report_forward.c - the section of the report on the forward pass. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/count.h"
#include "validate/report/report_page.h"
#include "validate/report/texts.h"

enum {
    CHART_WIDTH = 1110,
    CHART_HEIGHT = 320,
    CHART_LEFT = 62,   /* room for the numbers beside the axis */
    CHART_BOTTOM = 64, /* room for names, in up to three lines */
    CHART_TOP = 14,
    SCATTER_SIZE = 400,
    SCATTER_MARGIN = 48,
};

static const char *const classes[] = {
    [AGREE_BIT_FOR_BIT] = "ok", [AGREE_BUT_FOR_ROUNDING] = "mid", [DISAGREE] = "bad"};

const char *report_forward_class(const struct forward *f)
{
    return classes[forward_agreement(f)];
}

void report_forward_line(const struct page *p, bool with_word)
{
    struct strbuf line = {0};
    forward_line(&line, p->v->forward);
    line.data[strcspn(line.data, "\n")] = '\0';
    const char *text = line.data + strlen("forward: "), *rest = strstr(text, ": ");
    strbuf_add_text(p->out, "<span>forward: ");
    html_add_escaped(p->out, with_word || !rest ? text : rest + 2);
    strbuf_add_text(p->out, "</span>");
    strbuf_release(&line);
}

/* ---- error by layer ---- */

/* A logarithmic axis of relative errors; smaller ones are drawn at its end. */
struct log_axis {
    double low, high; /* powers of ten */
};

static double relative_rounding(const struct forward_output *o)
{
    double largest = o->compared ? o->b.largest : o->second_run.largest;
    return largest > 0 ? o->rounding.max / largest : 0;
}

static void widen_axis(struct log_axis *x, double value)
{
    if (!(value > 0)) return;
    double power = isfinite(value) ? log10(value) : 1;
    x->low = fmin(x->low, floor(power - 0.3));
    x->high = fmax(x->high, ceil(power + 0.1));
}

static struct log_axis axis_of(const struct forward_outputs *list)
{
    struct log_axis x = {-6, -5};
    for (size_t i = 0; i < list->count; i++) {
        widen_axis(&x, relative_rounding(&list->items[i]));
        if (list->items[i].compared) widen_axis(&x, difference_relative(&list->items[i].b));
    }
    x.low = fmax(x.low, -18);
    x.high = fmin(x.high, 4);
    return x;
}

static double chart_y(const struct log_axis *x, double value)
{
    double from = CHART_HEIGHT - CHART_BOTTOM, power = value > 0 ? log10(value) : x->low;
    double part = (fmin(fmax(power, x->low), x->high) - x->low) / (x->high - x->low);
    return from - part * (from - CHART_TOP);
}

static double chart_x(const struct forward_outputs *list, double i)
{
    double step = (double)(CHART_WIDTH - CHART_LEFT - 10) / (double)list->count;
    return CHART_LEFT + (i + 0.5) * fmin(step, 120);
}

static double chart_end(const struct forward_outputs *list)
{
    return chart_x(list, (double)list->count - 0.5);
}

static void add_grid(const struct page *p, const struct forward_outputs *list,
                     const struct log_axis *x)
{
    double right = chart_end(list);
    double step = x->high - x->low > 10 ? 2 : 1;
    for (double power = x->low; power <= x->high; power += step) {
        double y = chart_y(x, pow(10, power));
        strbuf_printf(p->out,
                      "<path class=\"grid\" d=\"M%d %.1fH%.1f\"/>"
                      "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">1e%.0f</text>\n",
                      CHART_LEFT, y, right, CHART_LEFT - 8, y + 4, power);
    }
}

/* The area of errors explained by rounding. */
static void add_band(const struct page *p, const struct forward_outputs *list,
                     const struct log_axis *x)
{
    double bottom = CHART_HEIGHT - CHART_BOTTOM;
    strbuf_printf(p->out, "<path class=\"band\" d=\"M%d %.1f", CHART_LEFT, bottom);
    for (size_t i = 0; i < list->count; i++)
        strbuf_printf(p->out, "V%.1fH%.1f", chart_y(x, relative_rounding(&list->items[i])),
                      chart_x(list, (double)i + 0.5));
    strbuf_printf(p->out, "V%.1fZ\"/>\n", bottom);
}

static void add_error_line(const struct page *p, const struct forward_outputs *list,
                           const struct log_axis *x)
{
    char command = 'M';
    strbuf_add_text(p->out, "<path class=\"line\" d=\"");
    for (size_t i = 0; i < list->count; i++) {
        const struct forward_output *o = &list->items[i];
        if (!o->compared) continue;
        strbuf_printf(p->out, "%c%.1f %.1f", command, chart_x(list, (double)i),
                      chart_y(x, difference_relative(&o->b)));
        command = 'L';
    }
    strbuf_add_text(p->out, "\"/>\n");
}

static void add_dot(const struct page *p, const struct forward_outputs *list, size_t i,
                    const struct log_axis *x)
{
    const struct forward_output *o = &list->items[i];
    double error = difference_relative(&o->b);
    strbuf_printf(p->out, "<circle class=\"dot-%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\"><title>",
                  classes[o->agreement], chart_x(list, (double)i), chart_y(x, error));
    html_add_escaped(p->out, o->name);
    strbuf_printf(p->out, "\n%s\nrelative error %.3g, rounding explains %.3g</title></circle>\n",
                  agreement_names[o->agreement], error, relative_rounding(o));
}

/* The part after the last dot: "12" of "hidden.12". */
static const char *short_name(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : strcmp(name, "final_norm") == 0 ? "norm" : name;
}

static double chart_step(const struct forward_outputs *list)
{
    return chart_x(list, 1) - chart_x(list, 0);
}

static bool is_narrow(const struct forward_outputs *list)
{
    return chart_step(list) < 48;
}

static void add_output_name(const struct page *p, const struct forward_outputs *list, size_t i,
                            unsigned line, const char *anchor)
{
    strbuf_printf(p->out, "<text x=\"%.1f\" y=\"%u\" text-anchor=\"%s\">", chart_x(list, (double)i),
                  CHART_HEIGHT - CHART_BOTTOM + 15 + 14 * line, anchor);
    html_add_escaped(p->out, short_name(list->items[i].name));
    strbuf_add_text(p->out, "</text>");
}

/* Adds the names of as many layers as fit; the outputs after them one below the
 * other. */
static void add_names(const struct page *p, const struct forward_outputs *list)
{
    size_t step = (size_t)ceil(26 / fmax(chart_step(list), 0.1));
    unsigned line = 0;
    for (size_t i = 0; i < list->count; i++) {
        bool is_layer = strncmp(list->items[i].name, "hidden.", 7) == 0;
        if (!is_narrow(list))
            add_output_name(p, list, i, 0, "middle");
        else if (!is_layer)
            add_output_name(p, list, i, ++line, "end");
        else if (i % step == 0)
            add_output_name(p, list, i, 0, "middle");
    }
    strbuf_add_text(p->out, "\n");
}

static void add_errors(const struct page *p, const struct forward_outputs *list, const char *label)
{
    struct log_axis x = axis_of(list);
    strbuf_printf(p->out,
                  "<div class=\"scroll map\"><svg width=\"%.0f\" height=\"%d\" role=\"img\" "
                  "aria-label=\"%s\">\n",
                  fmax(chart_end(list) + 8, 200),
                  is_narrow(list) ? CHART_HEIGHT : CHART_HEIGHT - 42, label);
    add_band(p, list, &x);
    add_grid(p, list, &x);
    add_error_line(p, list, &x);
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i].compared) add_dot(p, list, i, &x);
    add_names(p, list);
    strbuf_add_text(p->out, "</svg></div>\n");
}

static void add_error_legend(const struct page *p)
{
    static const char *const texts[] = {"identical, at the lower edge", "within rounding",
                                        "different"};
    strbuf_add_text(p->out, "<div class=\"legend\">");
    for (unsigned i = 0; i < 3; i++)
        strbuf_printf(p->out,
                      "<span><svg width=\"12\" height=\"12\"><circle class=\"dot-%s\" cx=\"6\" "
                      "cy=\"6\" r=\"4.5\"/></svg>%s</span>",
                      classes[i], texts[i]);
    strbuf_add_text(p->out,
                    "<span><svg width=\"14\" height=\"14\"><rect class=\"band\" width=\"14\" "
                    "height=\"14\"/></svg>explained by rounding</span>"
                    "<span>largest |a-b| relative to the largest |a|</span></div>\n");
}

/* ---- logits ---- */

struct range {
    double low, high;
};

static struct range range_of(const struct forward *f)
{
    struct range r = {INFINITY, -INFINITY};
    for (size_t i = 0; i < 2 * f->num_points; i++) {
        double v = f->points[i / 2][i % 2];
        if (!isfinite(v)) continue;
        r.low = fmin(r.low, v);
        r.high = fmax(r.high, v);
    }
    if (!(r.low < r.high)) return (struct range){r.low - 1, r.low + 1};
    double edge = (r.high - r.low) * 0.03;
    return (struct range){r.low - edge, r.high + edge};
}

static double scatter_at(const struct range *r, double v)
{
    return (v - r->low) / (r->high - r->low) * SCATTER_SIZE;
}

double report_tick_step(double low, double high)
{
    double raw = (high - low) / 5, power = pow(10, floor(log10(raw)));
    return power * (raw / power < 1.5 ? 1 : raw / power < 3.5 ? 2 : raw / power < 7.5 ? 5 : 10);
}

static void add_ticks(const struct page *p, const struct range *r)
{
    double step = report_tick_step(r->low, r->high);
    for (double v = ceil(r->low / step) * step; v <= r->high; v += step) {
        double at = scatter_at(r, v), x = SCATTER_MARGIN + at, y = 8 + SCATTER_SIZE - at;
        double shown = fabs(v) < step / 2 ? 0 : v;
        strbuf_printf(p->out,
                      "<path class=\"grid\" d=\"M%d %.1fh%dM%.1f 8v%d\"/>"
                      "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>"
                      "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.4g</text>\n",
                      SCATTER_MARGIN, y, SCATTER_SIZE, x, SCATTER_SIZE, SCATTER_MARGIN - 6, y + 4,
                      shown, x, SCATTER_SIZE + 24, shown);
    }
}

/* One path of dots: a page of thousands of circles would be slow. */
static void add_scatter(const struct page *p, const struct forward *f)
{
    struct range r = range_of(f);
    strbuf_printf(p->out,
                  "<div class=\"scroll map\"><svg width=\"%d\" height=\"%d\" role=\"img\" "
                  "aria-label=\"logits of A and B\">\n",
                  SCATTER_SIZE + SCATTER_MARGIN + 10, SCATTER_SIZE + 48);
    add_ticks(p, &r);
    strbuf_printf(p->out,
                  "<path class=\"diagonal\" d=\"M%d %dl%d %d\"/>\n<path class=\"points\" d=\"",
                  SCATTER_MARGIN, 8 + SCATTER_SIZE, SCATTER_SIZE, -SCATTER_SIZE);
    for (size_t i = 0; i < f->num_points; i++)
        if (isfinite(f->points[i][0]) && isfinite(f->points[i][1]))
            strbuf_printf(p->out, "M%.1f %.1fh0", SCATTER_MARGIN + scatter_at(&r, f->points[i][0]),
                          8 + SCATTER_SIZE - scatter_at(&r, f->points[i][1]));
    strbuf_printf(p->out,
                  "\"/>\n<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">A</text>"
                  "<text x=\"6\" y=\"%d\">B</text></svg></div>\n",
                  SCATTER_MARGIN + SCATTER_SIZE / 2, SCATTER_SIZE + 42, 8 + SCATTER_SIZE / 2);
}

static void add_loaded(const struct page *p, const struct forward *f)
{
    struct strbuf text = {0};
    loaded_text(&text, &f->loaded);
    html_add_row(p->out, "weights", text.data);
    strbuf_release(&text);
}

static void add_facts(const struct page *p, const struct forward *f)
{
    const struct logits_statistics *l = &f->logits;
    strbuf_add_text(p->out,
                    "<section class=\"card\"><h3><span>Both on the same tokens</span></h3><dl>\n");
    html_add_row(p->out, "A", f->paths[0]);
    html_add_row(p->out, "B", f->paths[1]);
    html_add_row(p->out, "tokens",
                 arena_printf(p->a, "%" PRIu64 " x %" PRIu64 ", %s", f->batch.num_sequences,
                              f->batch.length, f->ids_are));
    html_add_row(p->out, "computed in", elem_names[f->elem]);
    add_loaded(p, f);
    html_add_row(p->out, "rounding", f->yardstick.text);
    if (l->rows) {
        html_add_row(p->out, "top-1",
                     arena_printf(p->a, "equal for %" PRIu64 " of %" PRIu64 " tokens", l->same_top,
                                  l->rows));
        html_add_row(p->out, "KL(A||B)",
                     arena_printf(p->a, "mean %.3g, max %.3g nats", l->kl_mean, l->kl_max));
    }
    if (!isnan(f->losses[1]))
        html_add_row(p->out, "loss",
                     arena_printf(p->a, "A %.9g, B %.9g", f->losses[0], f->losses[1]));
    if (f->num_points)
        html_add_row(p->out, "drawn",
                     arena_printf(p->a, "%zu of %" PRIu64 " logits", f->num_points,
                                  l->rows * f->logits_columns));
    strbuf_add_text(p->out, "</dl></section>\n");
}

static void add_logits(const struct page *p, const struct forward *f)
{
    strbuf_add_text(p->out, "<h2>Logits</h2>\n<div class=\"cards logits\">\n");
    if (f->num_points) add_scatter(p, f);
    add_facts(p, f);
    strbuf_add_text(p->out, "</div>\n");
}

/* ---- tables ---- */

static void add_output_row(const struct page *p, const struct forward_output *o)
{
    strbuf_add_text(p->out, "<tr>");
    html_add_cell(p->out, "t", o->name);
    if (!o->compared) {
        strbuf_add_text(p->out,
                        "<td><span class=\"tag hint\">not in B</span></td><td colspan=\"5\"></td>");
    } else {
        strbuf_printf(p->out, "<td><span class=\"tag %s\">%s</span></td>", classes[o->agreement],
                      agreement_names[o->agreement]);
        const double numbers[] = {o->b.max, o->rounding.max, difference_relative(&o->b),
                                  difference_relative_rms(&o->b)};
        for (size_t i = 0; i < COUNT(numbers); i++)
            html_add_cell(p->out, "n", number_text(p->a, numbers[i]));
        html_add_cell(p->out, "n",
                      arena_printf(p->a, "%" PRIu64 " of %" PRIu64, o->b.rows_beyond, o->a.rows));
    }
    html_add_cell(p->out, "s", forward_op_text(o->name));
    strbuf_add_text(p->out, "</tr>\n");
}

static void add_table(const struct page *p, const struct forward_outputs *list)
{
    strbuf_add_text(p->out,
                    "<div class=\"scroll tall\"><table><thead><tr><th>result</th><th>outcome</th>"
                    "<th class=\"n\">max |a-b|</th><th class=\"n\">rounding</th>"
                    "<th class=\"n\">rel. max</th><th class=\"n\">rel. rms</th>"
                    "<th class=\"n\">tokens beyond</th><th></th></tr></thead><tbody>\n");
    for (size_t i = 0; i < list->count; i++)
        add_output_row(p, &list->items[i]);
    strbuf_add_text(p->out, "</tbody></table></div>\n");
}

static bool is_any_compared(const struct forward_outputs *list)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i].compared) return true;
    return false;
}

static void add_ops(const struct page *p, const struct forward *f)
{
    if (!is_any_compared(&f->ops)) return;
    strbuf_printf(p->out, "<h2>Ops of layer %d</h2>\n", f->divergence.layer);
    add_errors(p, &f->ops, "error by op");
    strbuf_add_text(p->out, "<div class=\"gap\"></div>\n");
    add_table(p, &f->ops);
}

void report_forward(const struct page *p)
{
    const struct forward *f = p->v->forward;
    if (is_any_compared(&f->outputs)) {
        strbuf_add_text(p->out, "<h2>Error by layer</h2>\n");
        add_errors(p, &f->outputs, "error by layer");
        add_error_legend(p);
    }
    add_ops(p, f);
    add_logits(p, f);
    strbuf_add_text(p->out, "<h2>Results</h2>\n");
    add_table(p, &f->outputs);
}
