/* schedule_draw.c - a schedule for people. */
#include <inttypes.h>
#include <stdio.h>

#include "common/checked.h"
#include "train/schedule/schedule.h"

/* ---- text ---- */

static unsigned digits_of(uint64_t n)
{
    unsigned digits = 1;
    for (; n > 9; n /= 10)
        digits++;
    return digits;
}

/* "12b": micro-batch 12 in the second chunk of the rank. */
static void name_action(const struct schedule *s, const struct schedule_action *a, char text[32])
{
    const int n = snprintf(text, 32, "%" PRIu64, a->micro_batch);
    if (s->shape.chunks > 1) snprintf(text + n, 32 - (size_t)n, "%c", 'a' + (int)a->chunk % 26);
}

enum { RANK_COLUMNS = 10 };

static void print_rank(const struct schedule *s, unsigned rank, unsigned cell, unsigned columns,
                       struct strbuf *out)
{
    const struct schedule_rank *r = &s->ranks[rank];
    const unsigned most = columns - RANK_COLUMNS - 3; /* columns behind "stage" */
    unsigned at = 0;
    strbuf_printf(out, "  stage %-2u ", rank);
    for (size_t k = 0; k < r->count; k++) {
        const struct schedule_action *a = &r->actions[k];
        const unsigned begin = (unsigned)a->begin * cell, width = (a->is_backward ? 2 : 1) * cell;
        char name[32];
        if (begin + width > most) {
            strbuf_printf(out, "%*s..", (int)(min_u64(begin, most) - at), "");
            break;
        }
        name_action(s, a, name);
        strbuf_printf(out, "%*s", (int)(begin - at), "");
        if (a->is_backward)
            strbuf_printf(out, " [%*s]", (int)width - 3, name);
        else
            strbuf_printf(out, "%*s", (int)width, name);
        at = begin + width;
    }
    strbuf_printf(out, "\n");
}

void schedule_print(const struct schedule *s, unsigned columns, struct strbuf *out)
{
    const unsigned cell = digits_of(s->shape.micro_batches - 1) + 1 + (s->shape.chunks > 1);
    for (unsigned r = 0; r < s->shape.ranks; r++)
        print_rank(s, r, cell, columns, out);
    strbuf_printf(
        out, "  (0: forward of micro-batch 0; [0]: backward, twice as long; blank: waiting%s)\n",
        s->shape.chunks > 1 ? "; a, b ..: chunk" : "");
}

/* ---- SVG ---- */

/* In pixels of the drawing, which a browser scales to its window, down to half
 * its size: below that letters are too small. */
enum {
    UNIT = 24,
    ROW = 28,
    BAR = 24,
    LEFT = 70,
    TOP = 66,
    RIGHT = 20,
    BOTTOM = 56,
    LEAST_WIDTH = 700
};

/* Dark letters are legible on all blocks, so only what lies around them follows
 * the reader's colours. */
static const char style[] =
    "<style>\n"
    "text { font-family: sans-serif; font-size: 11px; fill: #222 }\n"
    ".title { font-size: 15px; font-weight: bold }\n"
    ".name { text-anchor: middle; fill: #111 }\n"
    ".tick { text-anchor: middle }\n"
    ":root { background: #fff } .paper { fill: #fff } .wait { fill: #ececec } .axis { stroke: #222 "
    "}\n"
    "@media (prefers-color-scheme: dark) {\n"
    ":root { background: #181818 } text { fill: #ddd } .paper { fill: #181818 }\n"
    ".wait { fill: #383838 } .axis { stroke: #ddd }\n"
    "}\n"
    "</style>\n";

static void draw_block(const struct schedule *s, bool is_backward, unsigned chunk, int64_t x,
                       int64_t y, int64_t width, const char *name, struct strbuf *out)
{
    const unsigned light = 78 - 22 * (chunk % s->shape.chunks) / s->shape.chunks;
    strbuf_printf(out,
                  "<rect x=\"%" PRId64 "\" y=\"%" PRId64 "\" width=\"%" PRId64
                  "\" height=\"%d\" fill=\"hsl(%d,65%%,%u%%)\"/>"
                  "<text class=\"name\" x=\"%" PRId64 "\" y=\"%" PRId64 "\">%s</text>\n",
                  x, y, width - 1, BAR, is_backward ? 120 : 215, light, x + width / 2, y + 16,
                  name);
}

static void draw_rank(const struct schedule *s, unsigned rank, struct strbuf *out)
{
    const struct schedule_rank *r = &s->ranks[rank];
    const int64_t y = TOP + (int64_t)rank * ROW;
    strbuf_printf(out, "<text x=\"12\" y=\"%" PRId64 "\">stage %u</text>\n", y + 16, rank);
    strbuf_printf(out,
                  "<rect class=\"wait\" x=\"%d\" y=\"%" PRId64 "\" width=\"%" PRId64
                  "\" height=\"%d\"/>\n",
                  LEFT, y, s->end * UNIT, BAR);
    for (size_t k = 0; k < r->count; k++) {
        const struct schedule_action *a = &r->actions[k];
        char name[32];
        name_action(s, a, name);
        draw_block(s, a->is_backward, a->chunk, LEFT + a->begin * UNIT, y,
                   (a->end - a->begin) * UNIT, name, out);
    }
}

/* A step of 1, 2 or 5 times a power of
 * ten, for at most 20 ticks. */
static int64_t tick_step(int64_t end)
{
    static const int64_t factors[] = {1, 2, 5};
    for (int64_t power = 1;; power *= 10)
        for (int i = 0; i < 3; i++)
            if (end <= 20 * factors[i] * power) return factors[i] * power;
}

static void draw_axis(const struct schedule *s, struct strbuf *out)
{
    const int64_t y = TOP + (int64_t)s->shape.ranks * ROW, step = tick_step(s->end);
    strbuf_printf(out,
                  "<line class=\"axis\" x1=\"%d\" y1=\"%" PRId64 "\" x2=\"%" PRId64
                  "\" y2=\"%" PRId64 "\"/>\n",
                  LEFT, y, LEFT + s->end * UNIT, y);
    for (int64_t t = 0; t <= s->end; t += step)
        strbuf_printf(out,
                      "<line class=\"axis\" x1=\"%" PRId64 "\" y1=\"%" PRId64 "\" x2=\"%" PRId64
                      "\" y2=\"%" PRId64 "\"/><text class=\"tick\" x=\"%" PRId64 "\" y=\"%" PRId64
                      "\">%" PRId64 "</text>\n",
                      LEFT + t * UNIT, y, LEFT + t * UNIT, y + 5, LEFT + t * UNIT, y + 18, t);
    strbuf_printf(out,
                  "<text x=\"%d\" y=\"%" PRId64
                  "\">time in forward passes of a chunk; a backward pass takes 2</text>\n",
                  LEFT, y + 36);
}

/* Blocks of both colours for each chunk,
 * named as in the drawing. */
static void draw_legend(const struct schedule *s, struct strbuf *out)
{
    enum { MOST = 8, SWATCH = 22, Y = 36 };
    const unsigned chunks = (unsigned)min_u64(s->shape.chunks, MOST);
    int64_t x = LEFT;
    for (int backward = 0; backward <= !s->shape.forward_only; backward++) {
        for (unsigned c = 0; c < chunks; c++, x += SWATCH) {
            const char name[] = {s->shape.chunks > 1 ? (char)('a' + (int)c) : 'n', '\0'};
            draw_block(s, backward, c, x, Y, SWATCH, name, out);
        }
        strbuf_printf(out, "<text x=\"%" PRId64 "\" y=\"%d\">%s</text>\n", x + 4, Y + 16,
                      backward ? "backward" : "forward");
        x += 74;
    }
    strbuf_printf(out,
                  "<rect class=\"wait\" x=\"%" PRId64 "\" y=\"%d\" width=\"%d\" height=\"%d\"/>"
                  "<text x=\"%" PRId64 "\" y=\"%d\">waiting (bubble)</text>\n",
                  x, Y, SWATCH, BAR, x + SWATCH + 4, Y + 16);
    strbuf_printf(out, "<text x=\"%" PRId64 "\" y=\"%d\">n: micro-batch%s</text>\n",
                  x + SWATCH + 120, Y + 16,
                  s->shape.chunks > 1 ? "; a, b ..: first, second .. chunk of a stage" : "");
}

void schedule_draw(const struct schedule *s, struct strbuf *out)
{
    const struct schedule_shape *p = &s->shape;
    const uint64_t width = LEFT + max_u64((uint64_t)s->end * UNIT, LEAST_WIDTH) + RIGHT;
    char title[200];
    (void)snprintf(title, sizeof title,
                   "%s: %u stages, %" PRIu64 " micro-batch%s, bubble %.1f%% of the time",
                   schedule_name(p->kind), p->ranks, p->micro_batches,
                   p->micro_batches == 1 ? "" : "es", schedule_bubble(s) * 100);
    strbuf_printf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" preserveAspectRatio=\"xMinYMin\" "
                  "viewBox=\"0 0 %" PRIu64 " %u\" "
                  "style=\"min-width: %" PRIu64 "px\">\n"
                  "<title>%s</title>\n%s"
                  "<rect class=\"paper\" width=\"100%%\" height=\"100%%\"/>\n"
                  "<text class=\"title\" x=\"%d\" y=\"22\">%s</text>\n",
                  width, TOP + p->ranks * ROW + BOTTOM, width / 2, title, style, LEFT, title);
    draw_legend(s, out);
    for (unsigned r = 0; r < p->ranks; r++)
        draw_rank(s, r, out);
    draw_axis(s, out);
    strbuf_printf(out, "</svg>\n");
}
