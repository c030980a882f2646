#include "validate/report/tensor_table.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/count.h"
#include "common/map.h"
#include "common/text.h"
#include "validate/compare/stored_names.h"
#include "validate/report/texts.h"

enum { SHOWN_TENSORS = 20, SHOWN_NAMES = 10, LONGEST_NAME = 80 };

static const char *escaped_text(struct arena *a, const char *text)
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

/* A distance over all elements; "nan" if one of them is NaN on one side. */
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

static const char *steps_cell(struct arena *a, const struct compared *t)
{
    return t->has_steps ? distance_cell(a, t, t->statistics.max_steps) : "-";
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

/* In order of importance: the last columns are dropped from lines that are too
 * long. */
enum { NUM_COLUMNS = 6 };
static const struct column {
    const char *title;
    const char *(*cell)(struct arena *a, const struct compared *t);
} columns[NUM_COLUMNS] =
    {
        {"differ", differ_cell}, {"max |a-b|", largest_cell}, {"rel. error", error_cell},
        {"max ulp", ulp_cell},   {"first", first_cell},       {"cosine", cosine_cell},
},
  columns_in_steps[NUM_COLUMNS] = {
      {"differ", differ_cell},   {"max |a-b|", largest_cell}, {"rel. error", error_cell},
      {"max steps", steps_cell}, {"first", first_cell},       {"cosine", cosine_cell},
};

/* Describes a tensor without statistics: its dtypes and shapes. */
static const char *outcome_text(struct arena *a, const struct compared *t)
{
    const struct tensor *x = t->tensors[0], *y = t->tensors[1], *one = x ? x : y;
    const char *first =
        arena_printf(a, "%s %s", dtypes_text(a, one), shape_text(a, one->num_dims, one->shape));
    if (!x || !y) return arena_printf(a, "%s: %s", outcome_names[t->outcome], first);
    const char *dtypes = dtypes_text(a, y), *shape = shape_text(a, y->num_dims, y->shape);
    if (strcmp(dtypes_text(a, x), dtypes) == 0)
        return arena_printf(a, "%s against %s", first, shape);
    return arena_printf(a, "%s against %s %s", first, dtypes, shape);
}

/* A remark on dtypes and NaN below the line; NULL: none. */
static const char *remark_text(struct arena *a, const struct compared *t)
{
    uint64_t unpaired = t->statistics.unpaired;
    const char *odd = unpaired ? arena_printf(a, "NaN or Inf on one side: %" PRIu64, unpaired) : "";
    if (t->outcome != DTYPE_DIFFERS) return *odd ? odd : NULL;
    return arena_printf(a, "%s%s%s against %s", odd, *odd ? ", " : "",
                        dtypes_text(a, t->tensors[0]), dtypes_text(a, t->tensors[1]));
}

/* ---- the table ---- */

/* One tensor, or several of one kind without statistics that differ in the same
 * way. */
struct row {
    const struct compared *tensor;
    size_t num_tensors;
    const char *name, *outcome; /* outcome NULL: it has numbers */
    const char *cells[NUM_COLUMNS];
};

struct table {
    const struct column *columns;
    struct row *rows;
    size_t num_rows, num_tensors; /* of all rows */
    size_t name_width, outcome_at, widths[NUM_COLUMNS];
    unsigned num_columns;
};

static struct row make_table_row(struct arena *a, const struct column *in, const struct compared *t)
{
    struct row out = {.tensor = t, .num_tensors = 1, .name = escaped_text(a, t->name)};
    if (!t->counted) out.outcome = outcome_text(a, t);
    for (unsigned k = 0; k < NUM_COLUMNS && t->counted; k++)
        out.cells[k] = in[k].cell(a, t);
    return out;
}

static void name_group(struct arena *a, struct row *r)
{
    const char *name = escaped_text(a, starred_name(a, r->tensor, r->tensor->name));
    if (r->num_tensors > 1) r->name = arena_printf(a, "%s (%zu)", name, r->num_tensors);
}

/* Collects at most `most` rows, of a tensor or a group; alone: without groups. */
static void collect_rows(struct table *x, struct arena *a, const struct compared *const *tensors,
                         size_t count, size_t most, bool alone)
{
    struct map groups = {0};
    x->rows = arena_array(a, count + 1, sizeof *x->rows);
    for (size_t i = 0; i < count; i++) {
        const struct compared *t = tensors[i];
        const char *key =
            t->counted || alone
                ? t->name
                : arena_printf(a, "%s\n%s", starred_name(a, t, t->name), outcome_text(a, t));
        size_t k = x->num_rows;
        bool new = map_add(&groups, key, k, &k);
        if (new && x->num_rows == most) continue;
        if (k >= most) continue;
        if (new)
            x->rows[x->num_rows++] = make_table_row(a, x->columns, t);
        else
            x->rows[k].num_tensors++;
        x->num_tensors++;
    }
    for (size_t i = 0; i < x->num_rows; i++)
        name_group(a, &x->rows[i]);
    map_release(&groups);
}

static void widen_column(size_t *width, const char *text)
{
    size_t length = strlen(text);
    if (length > *width) *width = length;
}

/* Aligns the outcomes, further left if the longest does not fit. */
static void place_outcomes(struct table *x)
{
    size_t longest = 0;
    for (size_t i = 0; i < x->num_rows; i++)
        if (x->rows[i].outcome) widen_column(&longest, x->rows[i].outcome);
    x->outcome_at = x->name_width;
    if (x->name_width + 2 + longest > TABLE_WIDTH)
        x->outcome_at = longest + 2 < TABLE_WIDTH ? TABLE_WIDTH - 2 - longest : 0;
}

/* Drops all columns if no tensor has statistics. */
static void choose_columns(struct table *x, bool all)
{
    bool any = false;
    x->name_width = strlen("tensor");
    for (unsigned k = 0; k < NUM_COLUMNS; k++)
        x->widths[k] = strlen(x->columns[k].title);
    for (size_t i = 0; i < x->num_rows; i++) {
        const struct row *r = &x->rows[i];
        widen_column(&x->name_width, r->name);
        any |= !r->outcome;
        for (unsigned k = 0; k < NUM_COLUMNS && !r->outcome; k++)
            widen_column(&x->widths[k], r->cells[k]);
    }
    if (x->name_width > LONGEST_NAME) x->name_width = LONGEST_NAME;
    place_outcomes(x);
    size_t width = x->name_width;
    for (; any && x->num_columns < NUM_COLUMNS; x->num_columns++) {
        width += 2 + x->widths[x->num_columns];
        if (width > TABLE_WIDTH && x->num_columns && !all) return;
    }
}

static void add_cells(struct strbuf *out, const struct table *x, const char *name,
                      const char *const *cells)
{
    strbuf_printf(out, "%-*s", x->num_columns ? (int)x->name_width : 0, name);
    for (unsigned k = 0; k < x->num_columns; k++)
        strbuf_printf(out, "  %*s", (int)x->widths[k], cells[k]);
    strbuf_add_char(out, '\n');
}

static void add_titles(struct strbuf *out, const struct table *x)
{
    const char *titles[NUM_COLUMNS];
    for (unsigned k = 0; k < NUM_COLUMNS; k++)
        titles[k] = x->columns[k].title;
    bool grouped = x->num_tensors > x->num_rows;
    add_cells(out, x, grouped ? "tensor (how many of a kind)" : "tensor", titles);
}

static void add_table_row(struct strbuf *out, struct arena *a, const struct table *x,
                          const struct row *r)
{
    if (r->outcome) {
        strbuf_printf(out, "%-*s  %s\n", (int)x->outcome_at, r->name, r->outcome);
        return;
    }
    add_cells(out, x, r->name, r->cells);
    const char *remark = remark_text(a, r->tensor);
    if (remark) strbuf_printf(out, "    %s\n", remark);
}

void tensor_table_text(struct strbuf *out, struct comparison *c, bool verbose)
{
    size_t count;
    const struct compared **worst = compare_worst(c, &count);
    struct table x = {.columns = c->in_steps ? columns_in_steps : columns};
    collect_rows(&x, &c->arena, worst, count, verbose ? count : SHOWN_TENSORS, verbose);
    choose_columns(&x, verbose);
    strbuf_add_char(out, '\n');
    add_titles(out, &x);
    for (size_t i = 0; i < x.num_rows; i++)
        add_table_row(out, &c->arena, &x, &x.rows[i]);
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

/* NULL if most elements differ: the position of the first says little then. */
static const char *first_text(struct comparison *c, const struct compared *t, unsigned side)
{
    const struct statistics *s = &t->statistics;
    if (statistics_different(s) > s->elements / 2) return NULL;
    return first_stored_text(&c->arena, c, t, side);
}

struct side_names {
    const char *names, *differing, *first; /* NULL: nothing to say */
};

static void add_side(struct strbuf *out, const char *label, const struct side_names *x)
{
    if (!x->names) return;
    add_labelled(out, label, x->names);
    if (x->differing) add_labelled(out, "differ", x->differing);
    if (x->first) add_labelled(out, "first", x->first);
}

static void add_stored_line(struct strbuf *out, struct comparison *c,
                            const struct stored_line *line)
{
    struct side_names sides[2];
    for (unsigned side = 0; side < 2; side++)
        sides[side] = (struct side_names){line->names[side], line->differing[side],
                                          first_text(c, line->first, side)};
    const struct side_names *a = &sides[0], *b = &sides[1];
    bool alike = text_equal(a->names, b->names) && text_equal(a->differing, b->differing) &&
                 text_equal(a->first, b->first);
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
        add_stored_line(out, c, &lines[i]);
    if (shown < count) strbuf_printf(out, "  and %zu more (-v, or --json)\n", count - shown);
}
