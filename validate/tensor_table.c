#include "validate/tensor_table.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "validate/stored_names.h"
#include "validate/verdict.h"

enum { SHOWN_TENSORS = 20, SHOWN_NAMES = 10, LONGEST_NAME = 80 };

static const char *escaped(struct arena *a, const char *text)
{
    struct strbuf buffer = {0};
    strbuf_add_escaped(&buffer, text, strlen(text));
    const char *out = arena_text(a, buffer.data ? buffer.data : "", buffer.length);
    strbuf_release(&buffer);
    return out;
}

/* ---- cells ---- */

static bool has_distances(const struct compared *t)
{
    return statistics_have_distances(t->read[0]->dtype, t->read[1]->dtype);
}

static const char *differ_cell(struct arena *a, const struct compared *t)
{
    return arena_printf(a, "%" PRIu64 " of %" PRIu64, statistics_different(&t->statistics),
                        t->statistics.elements);
}

/* A distance of all elements; there is none where one of them is NaN on one side. */
static const char *distance_cell(struct arena *a, const struct compared *t, double x)
{
    if (!has_distances(t)) return "-";
    return statistics_cover_all(&t->statistics) ? number_text(a, x) : "nan";
}

static const char *largest_cell(struct arena *a, const struct compared *t)
{
    return distance_cell(a, t, t->statistics.max_difference);
}

static const char *error_cell(struct arena *a, const struct compared *t)
{
    return distance_cell(a, t, statistics_relative_error(&t->statistics));
}

static const char *ulp_cell(struct arena *a, const struct compared *t)
{
    if (!has_distances(t) || t->read[0]->dtype != t->read[1]->dtype) return "-";
    if (!statistics_cover_all(&t->statistics)) return "nan";
    return arena_printf(a, "%" PRIu64, t->statistics.max_ulp);
}

static const char *cosine_cell(struct arena *a, const struct compared *t)
{
    double cosine = statistics_cosine(&t->statistics);
    if (!has_distances(t)) return "-";
    if (!statistics_cover_all(&t->statistics)) return "nan";
    return isnan(cosine) ? "-" : arena_printf(a, "%.6f", cosine);
}

static const char *first_cell(struct arena *a, const struct compared *t)
{
    const struct tensor *x = t->tensors[0];
    if (t->read[0] != x) return arena_printf(a, "byte %" PRIu64, t->statistics.first);
    if (t->statistics.first > t->statistics.last) return "-";
    return coordinates_text(a, x->num_dims, x->shape, t->statistics.first);
}

/* Those that there is no room for are left out, the last first. */
static const struct column {
    const char *title;
    const char *(*cell)(struct arena *a, const struct compared *t);
} columns[] = {
    {"differ", differ_cell}, {"max |a-b|", largest_cell}, {"rel. error", error_cell},
    {"max ulp", ulp_cell},   {"first", first_cell},       {"cosine", cosine_cell},
};
enum { NUM_COLUMNS = sizeof columns / sizeof *columns };

/* What is the matter with a tensor that has no numbers. */
static const char *outcome_text(struct arena *a, const struct compared *t)
{
    const struct tensor *x = t->tensors[0], *y = t->tensors[1], *one = x ? x : y;
    const char *first =
        arena_printf(a, "%s %s", dtypes_text(a, one), shape_text(a, one->num_dims, one->shape));
    if (!x || !y) return arena_printf(a, "%s: %s", outcome_names[t->outcome], first);
    return arena_printf(a, "%s against %s %s", first, dtypes_text(a, y),
                        shape_text(a, y->num_dims, y->shape));
}

/* What the numbers do not say; NULL: nothing. */
static const char *remark_text(struct arena *a, const struct compared *t)
{
    uint64_t unpaired = t->statistics.unpaired;
    const char *odd = unpaired ? arena_printf(a, "NaN or Inf on one side: %" PRIu64, unpaired) : "";
    if (t->outcome != DTYPE_DIFFERS) return *odd ? odd : NULL;
    return arena_printf(a, "%s%s%s against %s", odd, *odd ? ", " : "",
                        dtypes_text(a, t->tensors[0]), dtypes_text(a, t->tensors[1]));
}

/* ---- the table ---- */

struct table {
    const struct compared *const *tensors;
    size_t num_tensors;
    const char **names;                /* [num_tensors] */
    const char *(*cells)[NUM_COLUMNS]; /* [num_tensors] */
    size_t name_width, widths[NUM_COLUMNS];
    unsigned num_columns;
};

static void widen(size_t *width, const char *text)
{
    size_t length = strlen(text);
    if (length > *width) *width = length;
}

static void fill(struct table *x, struct arena *a)
{
    x->names = arena_array(a, x->num_tensors, sizeof *x->names);
    x->cells = arena_array(a, x->num_tensors, sizeof *x->cells);
    x->name_width = strlen("tensor");
    for (unsigned k = 0; k < NUM_COLUMNS; k++)
        x->widths[k] = strlen(columns[k].title);
    for (size_t i = 0; i < x->num_tensors; i++) {
        x->names[i] = escaped(a, x->tensors[i]->name);
        widen(&x->name_width, x->names[i]);
        for (unsigned k = 0; k < NUM_COLUMNS && x->tensors[i]->counted; k++) {
            x->cells[i][k] = columns[k].cell(a, x->tensors[i]);
            widen(&x->widths[k], x->cells[i][k]);
        }
    }
    if (x->name_width > LONGEST_NAME) x->name_width = LONGEST_NAME;
}

static void choose_columns(struct table *x, bool all)
{
    size_t width = x->name_width;
    x->num_columns = NUM_COLUMNS;
    if (all) return;
    for (x->num_columns = 0; x->num_columns < NUM_COLUMNS; x->num_columns++) {
        width += 2 + x->widths[x->num_columns];
        if (width > TABLE_WIDTH && x->num_columns) return;
    }
}

static void add_row(struct strbuf *out, const struct table *x, const char *name,
                    const char *const *cells)
{
    strbuf_printf(out, "%-*s", (int)x->name_width, name);
    for (unsigned k = 0; k < x->num_columns; k++)
        strbuf_printf(out, "  %*s", (int)x->widths[k], cells[k]);
    strbuf_add_char(out, '\n');
}

static void add_titles(struct strbuf *out, const struct table *x)
{
    const char *titles[NUM_COLUMNS];
    for (unsigned k = 0; k < NUM_COLUMNS; k++)
        titles[k] = columns[k].title;
    add_row(out, x, "tensor", titles);
}

static void add_tensor(struct strbuf *out, struct arena *a, const struct table *x, size_t i)
{
    const struct compared *t = x->tensors[i];
    if (!t->counted) {
        strbuf_printf(out, "%-*s  %s\n", (int)x->name_width, x->names[i], outcome_text(a, t));
        return;
    }
    add_row(out, x, x->names[i], x->cells[i]);
    const char *remark = remark_text(a, t);
    if (remark) strbuf_printf(out, "    %s\n", remark);
}

void tensor_table_text(struct strbuf *out, struct comparison *c, bool verbose)
{
    size_t count;
    struct table x = {.tensors = compare_worst(c, &count)};
    x.num_tensors = verbose || count < SHOWN_TENSORS ? count : SHOWN_TENSORS;
    fill(&x, &c->arena);
    choose_columns(&x, verbose);
    strbuf_add_char(out, '\n');
    add_titles(out, &x);
    for (size_t i = 0; i < x.num_tensors; i++)
        add_tensor(out, &c->arena, &x, i);
    if (x.num_tensors < count)
        strbuf_printf(out, "and %zu more (-v, or --json)\n", count - x.num_tensors);
}

/* ---- stored names ---- */

/* "    A, B    TEXT" */
static void add_labelled(struct strbuf *out, const char *label, const char *text)
{
    strbuf_printf(out, "    %-8s", label);
    strbuf_add_escaped(out, text, strlen(text));
    strbuf_add_char(out, '\n');
}

/* Where most elements differ, the first of them tells nothing. */
static const char *first_text(struct comparison *c, const struct compared *t, unsigned side)
{
    const struct statistics *s = &t->statistics;
    if (statistics_different(s) > s->elements / 2) return NULL;
    return first_stored_text(&c->arena, c, t, side);
}

struct side_names {
    const char *names, *differing, *first; /* NULL: nothing to say */
};

static bool same_text(const char *x, const char *y)
{
    return x && y ? strcmp(x, y) == 0 : x == y;
}

static void add_side(struct strbuf *out, const char *label, const struct side_names *x)
{
    if (!x->names) return;
    add_labelled(out, label, x->names);
    if (x->differing) add_labelled(out, "differ", x->differing);
    if (x->first) add_labelled(out, "first", x->first);
}

static void add_line(struct strbuf *out, struct comparison *c, const struct stored_line *line)
{
    struct side_names sides[2];
    for (unsigned side = 0; side < 2; side++)
        sides[side] = (struct side_names){line->names[side], line->differing[side],
                                          first_text(c, line->first, side)};
    const struct side_names *a = &sides[0], *b = &sides[1];
    bool alike = same_text(a->names, b->names) && same_text(a->differing, b->differing) &&
                 same_text(a->first, b->first);
    strbuf_add_text(out, "  ");
    strbuf_add_escaped(out, line->logical, strlen(line->logical));
    if (line->num_tensors > 1) strbuf_printf(out, " (%zu tensors)", line->num_tensors);
    strbuf_add_char(out, '\n');
    add_side(out, alike ? "A, B" : "A", a);
    if (!alike) add_side(out, "B", b);
}

void stored_names_table_text(struct strbuf *out, struct comparison *c, bool verbose)
{
    size_t count;
    struct stored_line *lines = stored_lines(c, &count);
    size_t shown = verbose || count < SHOWN_NAMES ? count : SHOWN_NAMES;
    if (!count) return;
    strbuf_add_text(out, "\nstored as (* is the number of a layer or expert)\n");
    for (size_t i = 0; i < shown; i++)
        add_line(out, c, &lines[i]);
    if (shown < count) strbuf_printf(out, "  and %zu more (-v, or --json)\n", count - shown);
}
