/* trained_verdict.c - the result of training both sides, as text and as JSON. */
#include <inttypes.h>
#include <string.h>

#include "common/colour.h"
#include "common/json.h"
#include "convert/format.h"
#include "validate/report/texts.h"
#include "validate/trained/trained_internal.h"

enum { SHOWN = 20 }; /* lines of steps, and lines of tensors */

const char *const trained_words[NUM_OUTCOMES] = {
    [IDENTICAL] = "identical", [WITHIN] = "within tolerance", [VALUES_DIFFER] = "DIFFERENT"};
static const char *const ids[NUM_OUTCOMES] = {
    [IDENTICAL] = "identical", [WITHIN] = "within tolerance", [VALUES_DIFFER] = "different"};

static void add_trained_name(struct strbuf *out, const char *name)
{
    strbuf_add_escaped(out, name, strlen(name));
}

static size_t num_loaded_differ(const struct trained *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->num_weights; i++)
        n += t->weights[i].differs_as_loaded;
    return n;
}

/* ---- text ---- */

void trained_first_line(struct strbuf *out, const struct trained *t, bool coloured)
{
    const enum outcome outcome = trained_outcome(t);
    const char *word = trained_words[outcome];
    strbuf_add_coloured(out,
                        !coloured                  ? COLOUR_NONE
                        : outcome == VALUES_DIFFER ? COLOUR_RED
                                                   : COLOUR_GREEN,
                        word, strlen(word));
    if (outcome == VALUES_DIFFER)
        strbuf_printf(out, ": training: %zu of %zu steps, %zu of %zu tensors after them, %.2f s\n",
                      trained_steps_differ(t), t->num_steps, trained_weights_differ(t),
                      t->num_weights, t->seconds);
    else
        strbuf_printf(out, ": training: %zu step%s, and %zu tensors after them, %.2f s\n",
                      t->num_steps, plural(t->num_steps), t->num_weights, t->seconds);
}

static void sides_text(struct strbuf *out, const struct trained *t)
{
    for (unsigned side = 0; side < 2; side++) {
        const struct checkpoint *c = &t->sides[side].checkpoint;
        strbuf_printf(out, "%c  ", side_letter(side));
        add_trained_name(out, t->paths[side]);
        strbuf_printf(out, "  (%s)\n", c->format->name);
    }
}

void trained_run_text(struct strbuf *out, const struct trained *t)
{
    const struct trained_options *o = &t->options;
    strbuf_printf(out,
                  "  training  %" PRIu64 " x %" PRIu64 " mock tokens a step, %s, lr %g, AdamW %s\n",
                  o->num_sequences, o->length, o->dtype, o->lr,
                  t->goes_on ? "with the states of each side" : "with new states");
}

static void configs_text(struct strbuf *out, const struct trained *t)
{
    for (size_t i = 0; i < t->configs.num_computing; i++) {
        const struct config_difference *d = &t->configs.differences[i];
        strbuf_add_text(out, "  config    ");
        add_trained_name(out, d->field);
        strbuf_add_text(out, ": ");
        add_trained_name(out, d->values[0]);
        strbuf_add_text(out, " in A, ");
        add_trained_name(out, d->values[1]);
        strbuf_add_text(out, " in B\n");
    }
}

void trained_first_differences_text(struct strbuf *out, const struct trained *t)
{
    const size_t loaded = num_loaded_differ(t);
    if (loaded) {
        strbuf_printf(out, "  loaded    %zu tensor%s before step 1, first ", loaded,
                      loaded > 1 ? "s differ" : " differs");
        add_trained_name(out, t->loaded->name);
        strbuf_add_char(out, '\n');
    } else if (trained_outcome(t) != IDENTICAL) {
        strbuf_add_text(out, "  loaded    all weights are the same before step 1\n");
    }
    if (t->step)
        strbuf_printf(out, "  step      the first that differs is step %td\n",
                      t->step - t->steps + 1);
    if (!t->trained) return;
    strbuf_printf(out, "  tensor    the first that differs after step %zu is ", t->num_steps);
    add_trained_name(out, t->trained->name);
    strbuf_add_char(out, '\n');
}

static void step_text(struct strbuf *out, const struct trained *t, size_t at)
{
    const struct trained_step *s = &t->steps[at];
    strbuf_printf(out, "%6zu %15.9g %15.9g %15.9g %15.9g  %s\n", at + 1, s->loss[0], s->loss[1],
                  s->grad_norm[0], s->grad_norm[1], trained_words[s->outcome]);
}

/* The table of steps, from the one before the first difference on. */
static void steps_text(struct strbuf *out, const struct trained *t, bool verbose)
{
    const size_t differs = t->step ? (size_t)(t->step - t->steps) : 0;
    const size_t first = verbose || !differs ? 0 : differs - 1;
    const size_t end = verbose || t->num_steps - first < SHOWN ? t->num_steps : first + SHOWN;
    strbuf_printf(out, "\n%6s %15s %15s %15s %15s\n", "step", "loss A", "loss B", "grad norm A",
                  "grad norm B");
    if (first) strbuf_printf(out, "%zu before do not differ (-v)\n", first);
    for (size_t i = first; i < end; i++)
        step_text(out, t, i);
    if (end < t->num_steps)
        strbuf_printf(out, "and %zu more (-v, or --json)\n", t->num_steps - end);
}

static void weight_text(struct strbuf *out, const struct trained_weight *w, struct arena *a)
{
    struct strbuf name = {0};
    add_trained_name(&name, w->name);
    strbuf_printf(out, "%-60s %12" PRIu64 " %12s %12s\n", name.data,
                  statistics_different(&w->statistics),
                  number_text(a, w->statistics.max_difference),
                  number_text(a, statistics_relative_error(&w->statistics)));
    strbuf_release(&name);
}

static void weights_text(struct strbuf *out, const struct trained *t, bool verbose)
{
    const size_t count = trained_weights_differ(t);
    struct arena a;
    size_t shown = 0;
    if (!count) return;
    arena_init(&a);
    strbuf_printf(out, "\n%-60s %12s %12s %12s\n", "tensor", "elements", "max |a-b|", "rel. error");
    for (size_t i = 0; i < t->num_weights && (verbose || shown < SHOWN); i++) {
        if (t->weights[i].outcome != VALUES_DIFFER) continue;
        weight_text(out, &t->weights[i], &a);
        shown++;
    }
    if (shown < count) strbuf_printf(out, "and %zu more (-v, or --json)\n", count - shown);
    arena_release(&a);
}

void trained_text(struct strbuf *out, const struct trained *t, bool coloured, bool verbose)
{
    trained_first_line(out, t, coloured);
    sides_text(out, t);
    trained_run_text(out, t);
    configs_text(out, t);
    trained_first_differences_text(out, t);
    steps_text(out, t, verbose);
    weights_text(out, t, verbose);
}

/* ---- JSON ---- */

static void add_steps(cJSON *o, const struct trained *t)
{
    cJSON *list = cJSON_AddArrayToObject(o, "steps");
    for (size_t i = 0; i < t->num_steps; i++) {
        const struct trained_step *s = &t->steps[i];
        cJSON *j = cJSON_CreateObject();
        json_add_u64(j, "step", i + 1);
        json_add_text(j, "outcome", ids[s->outcome]);
        json_add_number(j, "loss_a", s->loss[0]);
        json_add_number(j, "loss_b", s->loss[1]);
        json_add_number(j, "grad_norm_a", s->grad_norm[0]);
        json_add_number(j, "grad_norm_b", s->grad_norm[1]);
        cJSON_AddItemToArray(list, j);
    }
}

static void add_weights(cJSON *o, const struct trained *t)
{
    cJSON *list = cJSON_AddArrayToObject(o, "tensors");
    for (size_t i = 0; i < t->num_weights; i++) {
        const struct trained_weight *w = &t->weights[i];
        cJSON *j = cJSON_CreateObject();
        json_add_text(j, "name", w->name);
        json_add_text(j, "outcome", ids[w->outcome]);
        cJSON_AddBoolToObject(j, "differs_as_loaded", w->differs_as_loaded);
        json_add_u64(j, "elements", w->numel);
        json_add_u64(j, "different", statistics_different(&w->statistics));
        json_add_number(j, "max_difference", w->statistics.max_difference);
        json_add_number(j, "relative_error", statistics_relative_error(&w->statistics));
        cJSON_AddItemToArray(list, j);
    }
}

cJSON *trained_json(const struct trained *t)
{
    const struct trained_options *p = &t->options;
    cJSON *o = cJSON_CreateObject();
    json_add_text(o, "verdict", ids[trained_outcome(t)]);
    cJSON *j = cJSON_AddObjectToObject(o, "training");
    json_add_text(j, "path_a", t->paths[0]);
    json_add_text(j, "path_b", t->paths[1]);
    json_add_number(j, "seconds", t->seconds);
    json_add_text(j, "dtype", p->dtype);
    json_add_u64(j, "sequences", p->num_sequences);
    json_add_u64(j, "length", p->length);
    json_add_number(j, "lr", p->lr);
    json_add_text(j, "optimizer", t->goes_on ? "loaded" : "new");
    if (t->step) json_add_u64(j, "first_step", (uint64_t)(t->step - t->steps) + 1);
    json_add_text(j, "first_as_loaded", t->loaded ? t->loaded->name : NULL);
    json_add_text(j, "first_tensor", t->trained ? t->trained->name : NULL);
    add_steps(j, t);
    add_weights(j, t);
    return o;
}
