#include "validate/report/verdict.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/colour.h"
#include "common/numbers.h"
#include "convert/cli/report.h"
#include "convert/format.h"
#include "validate/report/tensor_table.h"
#include "validate/report/texts.h"

enum { SHOWN_HINTS = 20, SHOWN_FIELDS = 20, SHOWN_PLACES = 40 };

/* ---- texts ---- */

bool verdict_passes(const struct verdict *v)
{
    if (v->c && !compare_settings_pass(v->c)) return false;
    return v->forward ? forward_agreement(v->forward) != DISAGREE : compare_tensors_pass(v->c);
}

bool verdict_is_by_forward(const struct verdict *v)
{
    if (!v->c) return true;
    return verdict_passes(v) != (compare_tensors_pass(v->c) && compare_settings_pass(v->c));
}

const char *verdict_word(const struct comparison *c)
{
    if (!compare_tensors_pass(c)) return "DIFFERENT";
    if (!compare_configs_pass(c)) return "CONFIGS DIFFER";
    if (!compare_settings_pass(c)) return "TRAINING DIFFERS";
    return c->counts[WITHIN] ? "within tolerance" : "identical";
}

static void add_dtypes(struct strbuf *out, const struct side *s)
{
    struct parameter_count n = {0};
    for (size_t i = 0; i < s->num_tensors; i++) {
        uint64_t bytes = 0;
        (void)dtype_size_bytes(s->tensors[i]->dtype, s->tensors[i]->numel, &bytes);
        n.bytes += bytes;
        n.bytes_by_dtype[s->tensors[i]->dtype] += bytes;
    }
    print_dtypes(out, &n);
}

const char *side_text(struct comparison *c, unsigned side)
{
    const struct side *s = &c->sides[side];
    const struct checkpoint *k = &s->checkpoint;
    struct strbuf text = {0};
    strbuf_add_text(&text, k->format->name);
    if (!s->stored_only) {
        strbuf_printf(&text, ", %s", k->family ? k->family : "family not known");
        if (k->training.release)
            strbuf_add_text(&text, ", release");
        else if (k->training.iteration >= 0)
            strbuf_printf(&text, ", iteration %" PRId64, k->training.iteration);
        if (k->format->has & FORMAT_LAYOUT)
            strbuf_printf(&text, ", %s", layout_text(&k->layout, &c->arena));
    } else {
        strbuf_add_text(&text, ", by stored names");
    }
    strbuf_printf(&text, ", %zu tensors, %s, ", s->num_tensors, bytes_text(s->bytes));
    add_dtypes(&text, s);
    const char *out = arena_text(&c->arena, text.data, text.length);
    strbuf_release(&text);
    return out;
}

/* ---- places ---- */

static int by_place_in_model(const void *a, const void *b)
{
    const struct compared *x = *(const struct compared *const *)a,
                          *y = *(const struct compared *const *)b;
    int order = place_compare(&x->place, &y->place);
    if (order) return order;
    return x < y ? -1 : x > y;
}

static void add_to_place(struct place_sum *p, const struct compared *t)
{
    p->place = t->place;
    p->num_tensors++;
    if (outcome_passes(t->outcome)) return;
    p->num_different++;
    if (t->has_steps) p->max_steps = fmax(p->max_steps, t->statistics.max_steps);
    if (!p->worst || compared_badness(t) > compared_badness(p->worst)) p->worst = t;
}

struct place_sum *sum_places(struct comparison *c, size_t *count)
{
    const struct compared **sorted = arena_array(&c->arena, c->num_tensors, sizeof *sorted);
    struct place_sum *out = arena_array(&c->arena, c->num_tensors, sizeof *out);
    for (size_t i = 0; i < c->num_tensors; i++)
        sorted[i] = &c->tensors[i];
    qsort(sorted, c->num_tensors, sizeof *sorted, by_place_in_model);
    *count = 0;
    for (size_t i = 0; i < c->num_tensors; i++) {
        bool new = !i || place_compare(&sorted[i - 1]->place, &sorted[i]->place);
        *count += new;
        add_to_place(&out[*count - 1], sorted[i]);
    }
    return out;
}

/* ---- the text ---- */

void weights_line(struct strbuf *out, const struct verdict *v)
{
    const struct comparison *c = v->c;
    size_t different = compare_num_different(c), fields = c->configs.num_computing;
    const size_t of_training = c->training.count;
    uint64_t bytes = c->bytes[0] > c->bytes[1] ? c->bytes[0] : c->bytes[1];
    strbuf_printf(out, "%s: ", verdict_word(c));
    if (fields)
        strbuf_printf(out, "%zu %s of the configs, ", fields, fields > 1 ? "fields" : "field");
    if (of_training)
        strbuf_printf(out, "%zu field%s of the training state, ", of_training, plural(of_training));
    if (different || fields || of_training) strbuf_printf(out, "%zu of ", different);
    strbuf_printf(out, "%zu tensors", c->num_tensors);
    if (c->counts[WITHIN]) strbuf_printf(out, ", %zu within tolerance", c->counts[WITHIN]);
    strbuf_printf(out, ", %s, %.2f s\n", bytes_text(bytes), v->seconds);
}

void verdict_line(struct strbuf *out, const struct verdict *v)
{
    if (verdict_is_by_forward(v))
        strbuf_printf(out, "%s: the forward pass; weights ", forward_word(v->forward));
    weights_line(out, v);
}

static void add_escaped_text(struct strbuf *out, const char *name)
{
    strbuf_add_escaped(out, name, strlen(name));
}

/* Unknown fields may be of any length. */
static void add_value(struct strbuf *out, const char *value)
{
    enum { SHOWN = 60 };
    size_t length = strlen(value);
    strbuf_add_escaped(out, value, length < SHOWN ? length : SHOWN);
    if (length > SHOWN) strbuf_add_text(out, "..");
}

/* The fields that change the computation; the others are notes. */
static void configs_text(struct strbuf *out, const struct config_comparison *x)
{
    if (x->num_computing) strbuf_printf(out, "%-30s %-18s %s\n", "config", "A", "B");
    for (size_t i = 0; i < x->num_computing; i++) {
        const struct config_difference *d = &x->differences[i];
        struct strbuf field = {0}, a = {0};
        add_value(&field, d->field);
        add_value(&a, d->values[0]);
        strbuf_printf(out, "%-30s %-18s ", field.data, a.data);
        add_value(out, d->values[1]);
        strbuf_add_char(out, '\n');
        strbuf_release(&field);
        strbuf_release(&a);
    }
}

const char *training_way_on(struct arena *a, const struct training_comparison *x)
{
    const char *field = x->differences[0].field;
    const bool in_group = strncmp(field, "groups[", strlen("groups[")) == 0;
    return arena_printf(a, "to leave out fields that may differ: --ignore-training '%s'",
                        in_group ? "groups*" : field);
}

/* "training: step 10 in A, 2 in B", a line for each field. */
static void training_text(struct strbuf *out, struct comparison *c, bool verbose)
{
    const struct training_comparison *x = &c->training;
    const size_t shown = verbose || x->count < SHOWN_FIELDS ? x->count : SHOWN_FIELDS;
    for (size_t i = 0; i < shown; i++) {
        const struct training_difference *d = &x->differences[i];
        strbuf_printf(out, "training: %s ", d->field);
        add_value(out, d->values[0]);
        strbuf_add_text(out, " in A, ");
        add_value(out, d->values[1]);
        strbuf_add_text(out, " in B\n");
    }
    if (shown < x->count)
        strbuf_printf(out, "training: %zu more (-v, or --json)\n", x->count - shown);
    if (x->count) strbuf_printf(out, "training: %s\n", training_way_on(&c->arena, x));
}

static void sides_text(struct strbuf *out, struct comparison *c)
{
    for (unsigned side = 0; side < 2; side++) {
        strbuf_printf(out, "%c  ", side_letter(side));
        add_escaped_text(out, c->sides[side].checkpoint.path);
        strbuf_printf(out, "  (%s)\n", side_text(c, side));
    }
}

/* Consecutive layers with equally many different tensors. */
struct place_run {
    const struct place_sum *first;
    size_t num_places, num_tensors, num_different;
    const struct compared *worst;
    double max_steps;
};

static bool continues(const struct place_sum *x, const struct place_sum *next)
{
    return x->place.region == REGION_LAYER && next->place.region == REGION_LAYER &&
           strcmp(x->place.stack, next->place.stack) == 0 &&
           next->place.layer == x->place.layer + 1 && x->num_tensors == next->num_tensors &&
           x->num_different == next->num_different;
}

static struct place_run run_of_places(const struct place_sum *places, size_t count, bool alone)
{
    struct place_run r = {.first = places};
    do {
        const struct place_sum *p = &places[r.num_places++];
        r.num_tensors += p->num_tensors;
        r.num_different += p->num_different;
        r.max_steps = fmax(r.max_steps, p->max_steps);
        if (p->worst && (!r.worst || compared_badness(p->worst) > compared_badness(r.worst)))
            r.worst = p->worst;
    } while (!alone && r.num_places < count &&
             continues(&places[r.num_places - 1], &places[r.num_places]));
    return r;
}

static void run_text(struct strbuf *out, struct comparison *c, const struct place_run *r)
{
    const struct place *p = &r->first->place;
    struct strbuf name = {0};
    if (r->num_places > 1)
        add_escaped_text(&name,
                         layers_range_text(&c->arena, p, p->layer,
                                           p->layer + (int64_t)r->num_places - 1, c->main_stack));
    else
        add_escaped_text(&name, place_text(&c->arena, p, c->main_stack));
    strbuf_printf(out, "%-24s %10zu %10zu   ", name.data, r->num_tensors, r->num_different);
    if (c->in_steps)
        strbuf_printf(out, "%16s  %9s\n", badness_text(&c->arena, r->worst),
                      r->max_steps > 0 ? number_text(&c->arena, r->max_steps) : "-");
    else
        strbuf_printf(out, "%s\n", badness_text(&c->arena, r->worst));
    strbuf_release(&name);
}

static void places_text(struct strbuf *out, struct comparison *c, bool verbose)
{
    size_t count, shown = 0;
    struct place_sum *places = sum_places(c, &count);
    strbuf_printf(out, "\n%-24s %10s %10s   %s%s\n", "where", "tensors", "differ",
                  "worst rel. error", c->in_steps ? "  max steps" : "");
    for (size_t i = 0; i < count;) {
        struct place_run r = run_of_places(&places[i], count - i, verbose);
        i += r.num_places;
        if (r.num_different && (shown++ < SHOWN_PLACES || verbose)) run_text(out, c, &r);
    }
    if (shown > SHOWN_PLACES && !verbose)
        strbuf_printf(out, "and %zu more (-v)\n", shown - SHOWN_PLACES);
}

/* "no hint holds for 2 tensors: A, B"; without names if there are many. */
static void no_hint_text(struct strbuf *out, const struct comparison *c)
{
    enum { MAX_NAMED = 3 };
    const char *names[MAX_NAMED];
    size_t n = 0;
    for (size_t i = 0; i < c->num_tensors; i++) {
        const struct compared *t = &c->tensors[i];
        if (outcome_passes(t->outcome) || t->hint) continue;
        if (n < MAX_NAMED) names[n] = t->name;
        n++;
    }
    if (n) strbuf_printf(out, "  no hint holds for %zu tensor%s", n, plural(n));
    for (size_t i = 0; i < n && n <= MAX_NAMED; i++) {
        strbuf_add_text(out, i ? ", " : ": ");
        add_escaped_text(out, names[i]);
    }
    if (n) strbuf_add_char(out, '\n');
}

static void hints_text(struct strbuf *out, const struct comparison *c, bool verbose)
{
    size_t shown = verbose || c->num_hints < SHOWN_HINTS ? c->num_hints : SHOWN_HINTS;
    strbuf_add_text(out, "\nhints\n");
    for (size_t i = 0; i < shown; i++) {
        strbuf_add_text(out, "  ");
        add_escaped_text(out, c->hints[i].text);
        strbuf_add_char(out, '\n');
    }
    if (shown < c->num_hints)
        strbuf_printf(out, "  and %zu more (-v, or --json)\n", c->num_hints - shown);
    no_hint_text(out, c);
}

/* The line begins with the word of the verdict. */
static void coloured_line(struct strbuf *out, const struct verdict *v)
{
    struct strbuf line = {0};
    verdict_line(&line, v);
    size_t word = strcspn(line.data, ":");
    strbuf_add_coloured(out,
                        !v->coloured        ? COLOUR_NONE
                        : verdict_passes(v) ? COLOUR_GREEN
                                            : COLOUR_RED,
                        line.data, word);
    strbuf_add_text(out, line.data + word);
    strbuf_release(&line);
}

static void comparison_text(struct strbuf *out, const struct verdict *v, bool verbose)
{
    coloured_line(out, v);
    configs_text(out, &v->c->configs);
    training_text(out, v->c, verbose);
    sides_text(out, v->c);
    if (compare_tensors_pass(v->c)) return;
    places_text(out, v->c, verbose);
    tensor_table_text(out, v->c, verbose);
    stored_names_table_text(out, v->c, verbose);
    hints_text(out, v->c, verbose);
}

void verdict_text(struct strbuf *out, const struct verdict *v, bool verbose)
{
    if (v->c) comparison_text(out, v, verbose);
    if (v->c && v->forward) strbuf_add_char(out, '\n');
    if (v->forward) forward_text(out, v->forward, v->coloured, verbose);
}
