/* hint_lines.c - stores the hint of a tensor; sums up the hints of many tensors
 * in few lines. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/strbuf.h"
#include "validate/hints/hints_internal.h"

enum {
    MAX_KIND_LINES = 4 /* lines of one hint; more kinds of tensors share one line */
};

const char moved_id[] = "moved";

void set_hint(struct comparison *c, struct compared *t, const char *id, const char *text)
{
    struct hint *hint = arena_alloc(&c->arena, sizeof *hint);
    *hint = (struct hint){id, text};
    t->hint = hint;
}

void hint_line_push(struct comparison *c, const char *id, const char *text,
                    const struct compared *const *tensors, size_t n)
{
    *ARENA_PUSH(&c->arena, c->hints, c->num_hints, c->hints_capacity) =
        (struct hint_line){id, text, arena_copy(&c->arena, tensors, n * sizeof *tensors), n, n};
}

/* ---- layers ---- */

static int by_layer_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Sorts and removes duplicates; returns the remaining count. */
static size_t sort_unique(int64_t *numbers, size_t n)
{
    size_t kept = 0;
    qsort(numbers, n, sizeof *numbers, by_layer_number);
    for (size_t i = 0; i < n; i++)
        if (!kept || numbers[kept - 1] != numbers[i]) numbers[kept++] = numbers[i];
    return kept;
}

/* Number of layers with a tensor of this kind. */
static size_t num_layers_of(const struct comparison *c, const struct place *kind)
{
    int64_t *layers = must_calloc(c->num_tensors + 1, sizeof *layers);
    size_t n = 0;
    for (size_t i = 0; i < c->num_tensors; i++)
        if (place_same_kind(&c->tensors[i].place, kind)) layers[n++] = c->tensors[i].place.layer;
    n = sort_unique(layers, n);
    free(layers);
    return n;
}

/* " (0 to 3, 7 and ..)" */
static void add_ranges(struct strbuf *out, const int64_t *layers, size_t n)
{
    enum { MAX_RANGES = 6 };
    size_t ranges = 0;
    strbuf_add_text(out, " (");
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && layers[end] == layers[end - 1] + 1;)
            end++;
        if (ranges) strbuf_add_text(out, ", ");
        if (ranges++ == MAX_RANGES) {
            strbuf_add_text(out, "..");
            break;
        }
        strbuf_printf(out, "%" PRId64, layers[i]);
        if (end - i > 1) strbuf_printf(out, " to %" PRId64, layers[end - 1]);
    }
    strbuf_add_char(out, ')');
}

const char *layers_text(struct comparison *c, const struct place *like, const int64_t *layers,
                        size_t num_layers)
{
    struct strbuf text = {0};
    size_t all = num_layers_of(c, like);
    strbuf_printf(&text, "in %zu of %zu layers", num_layers, all);
    if (num_layers != all) add_ranges(&text, layers, num_layers);
    const char *out = arena_text(&c->arena, text.data, text.length);
    strbuf_release(&text);
    return out;
}

/* ---- tensors of one hint ---- */

static int by_hint(const void *a, const void *b)
{
    const struct compared *x = *(const struct compared *const *)a,
                          *y = *(const struct compared *const *)b;
    int order = strcmp(x->hint->id, y->hint->id);
    if (!order) order = strcmp(x->hint->text, y->hint->text);
    if (!order)
        order = strcmp(x->place.stack ? x->place.stack : "", y->place.stack ? y->place.stack : "");
    if (!order) order = strcmp(x->place.kind, y->place.kind);
    if (order) return order;
    return x < y ? -1 : x > y;
}

static bool same_hint(const struct compared *x, const struct compared *y)
{
    return strcmp(x->hint->id, y->hint->id) == 0 && strcmp(x->hint->text, y->hint->text) == 0;
}

/* End of the run of tensors with the hint of the first. */
static size_t end_of_hint(const struct compared *const *t, size_t n)
{
    size_t end = 1;
    while (end < n && same_hint(t[0], t[end]))
        end++;
    return end;
}

static size_t end_of_kind(const struct compared *const *t, size_t n)
{
    size_t end = 1;
    while (end < n && place_same_kind(&t[0]->place, &t[end]->place))
        end++;
    return end;
}

static size_t num_kinds(const struct compared *const *t, size_t n)
{
    size_t kinds = 0;
    for (size_t i = 0; i < n; i += end_of_kind(t + i, n - i))
        kinds++;
    return kinds;
}

/* "in 32 of 32 layers, KIND", "in 4 of 4 layers, KIND (32 tensors)"; the name
 * of a single tensor. */
static const char *where_text(struct comparison *c, const struct compared *const *t, size_t n)
{
    struct arena *a = &c->arena;
    if (n == 1 || t[0]->place.layer < 0) return t[0]->name;
    int64_t *layers = must_calloc(n, sizeof *layers);
    for (size_t i = 0; i < n; i++)
        layers[i] = t[i]->place.layer;
    size_t num_layers = sort_unique(layers, n);
    const char *where = layers_text(c, &t[0]->place, layers, num_layers);
    const char *kind = place_kind_text(a, &t[0]->place, c->main_stack);
    free(layers);
    if (num_layers == n) return arena_printf(a, "%s, %s", where, kind);
    return arena_printf(a, "%s, %s (%zu tensors)", where, kind, n);
}

/* "KIND, KIND and 5 more kinds of tensors (160)" */
static const char *kinds_text(struct comparison *c, const struct compared *const *t, size_t n)
{
    size_t kinds = num_kinds(t, n), second = end_of_kind(t, n);
    return arena_printf(&c->arena, "%s, %s and %zu more kinds of tensors (%zu tensors in all)",
                        place_kind_text(&c->arena, &t[0]->place, c->main_stack),
                        place_kind_text(&c->arena, &t[second]->place, c->main_stack), kinds - 2, n);
}

/* Whether a hint gives row numbers of a tensor stored in parts: no file has
 * these numbers. */
static bool has_rows_of_its_own(const struct compared *t)
{
    const char *text = t->hint->text;
    return strstr(text, "row") && strpbrk(text, "0123456789") && t->tensors[0] &&
           t->tensors[0]->num_stored_names > 1;
}

static void push_hint(struct comparison *c, const char *where, const struct compared *const *t,
                      size_t n)
{
    const char *text =
        arena_printf(&c->arena, "%s: %s%s", where, t[0]->hint->text,
                     has_rows_of_its_own(t[0]) ? " (rows are those of the fused tensor)" : "");
    hint_line_push(c, t[0]->hint->id, text, t, n);
}

static void add_hint(struct comparison *c, const struct compared *const *t, size_t n)
{
    if (num_kinds(t, n) > MAX_KIND_LINES) {
        push_hint(c, kinds_text(c, t, n), t, n);
        return;
    }
    for (size_t i = 0, count; i < n; i += count) {
        count = end_of_kind(t + i, n - i);
        push_hint(c, where_text(c, t + i, count), t + i, count);
    }
}

static int by_number_of_tensors(const void *a, const void *b)
{
    const struct hint_line *x = a, *y = b;
    if (x->num_tensors != y->num_tensors) return x->num_tensors > y->num_tensors ? -1 : 1;
    return strcmp(x->text, y->text);
}

void hint_lines_add(struct comparison *c)
{
    const struct compared **t = must_calloc(c->num_tensors + 1, sizeof(struct compared *));
    size_t n = 0;
    for (size_t i = 0; i < c->num_tensors; i++)
        if (c->tensors[i].hint && strcmp(c->tensors[i].hint->id, moved_id)) t[n++] = &c->tensors[i];
    qsort(t, n, sizeof *t, by_hint);
    for (size_t i = 0, count; i < n; i += count) {
        count = end_of_hint(t + i, n - i);
        add_hint(c, t + i, count);
    }
    if (c->num_hints) qsort(c->hints, c->num_hints, sizeof *c->hints, by_number_of_tensors);
    free(t);
}
