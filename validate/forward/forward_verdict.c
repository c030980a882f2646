/* forward_verdict.c - the result of running both sides, as text and as JSON. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/colour.h"
#include "common/json.h"
#include "validate/forward/forward.h"

enum { SHOWN_OUTPUTS = 20 };

const char *const agreement_names[] = {[AGREE_BIT_FOR_BIT] = "identical",
                                       [AGREE_BUT_FOR_ROUNDING] = "within rounding",
                                       [DISAGREE] = "DIFFERENT"};
static const char *const agreement_ids[] = {[AGREE_BIT_FOR_BIT] = "identical",
                                            [AGREE_BUT_FOR_ROUNDING] = "rounding",
                                            [DISAGREE] = "different"};

enum agreement forward_agreement(const struct forward *f)
{
    return loaded_passes(&f->loaded) ? f->agreement : DISAGREE;
}

const char *forward_word(const struct forward *f)
{
    return agreement_names[forward_agreement(f)];
}

const char *forward_id(const struct forward *f)
{
    return forward_agreement(f) == DISAGREE ? "different" : forward_word(f);
}

/* ---- text ---- */

/* "6 results"; "2 of 6 results" if B has only 2. */
static void count_text(struct strbuf *out, const struct forward *f)
{
    size_t compared = 0;
    for (size_t i = 0; i < f->outputs.count; i++)
        compared += f->outputs.items[i].compared;
    if (compared < f->outputs.count) strbuf_printf(out, "%zu of ", compared);
    strbuf_printf(out, "%zu result%s", f->outputs.count, plural(f->outputs.count));
}

void forward_line(struct strbuf *out, const struct forward *f)
{
    strbuf_printf(out, "forward: %s: ", forward_word(f));
    if (f->divergence.text) {
        strbuf_add_escaped(out, f->divergence.text, strlen(f->divergence.text));
    } else {
        bool differ = !loaded_passes(&f->loaded);
        strbuf_add_text(out, differ ? "weights in memory differ, " : "");
        count_text(out, f);
        strbuf_add_text(out, differ ? " do not" : "");
    }
    strbuf_printf(out, "; %" PRIu64 " x %" PRIu64 " tokens, %s, %.2f s\n", f->batch.num_sequences,
                  f->batch.length, elem_names[f->elem], f->seconds);
}

/* The outliers of the output with the most, if all outputs agree. */
static void outliers_text(struct strbuf *out, const struct forward *f)
{
    const struct forward_output *most = NULL;
    for (size_t i = 0; i < f->outputs.count; i++) {
        const struct forward_output *o = &f->outputs.items[i];
        if (o->compared && o->b.rows_beyond && (!most || o->b.rows_beyond > most->b.rows_beyond))
            most = o;
    }
    if (most && f->agreement != DISAGREE)
        strbuf_printf(out,
                      "  experts   %" PRIu64 " of %" PRIu64
                      " tokens of %s differ by more than rounding: routed to other experts\n",
                      most->b.rows_beyond, most->b.rows, most->name);
}

static void facts_text(struct strbuf *out, const struct forward *f)
{
    strbuf_add_text(out, "  tokens    ");
    strbuf_add_escaped(out, f->ids_are, strlen(f->ids_are));
    strbuf_add_text(out, "\n  weights   ");
    loaded_text(out, &f->loaded);
    strbuf_printf(out, "\n  rounding  %s\n", f->yardstick.text);
    if (f->logits.rows)
        strbuf_printf(out,
                      "  logits    same top-1 for %" PRIu64 " of %" PRIu64
                      " tokens; KL(A||B) mean %.3g, max %.3g\n",
                      f->logits.same_top, f->logits.rows, f->logits.kl_mean, f->logits.kl_max);
    outliers_text(out, f);
    if (!isnan(f->losses[1]))
        strbuf_printf(out, "  loss      A %.9g, B %.9g\n", f->losses[0], f->losses[1]);
}

static void output_text(struct strbuf *out, const struct forward_output *o)
{
    strbuf_printf(out, "%-26s ", o->name);
    if (!o->compared) {
        strbuf_add_text(out, "not in B\n");
        return;
    }
    strbuf_printf(out, "%10.3g %10.3g %10.3g %10.3g  %s", o->b.max, o->rounding.max,
                  difference_relative(&o->b), difference_relative_rms(&o->b),
                  agreement_names[o->agreement]);
    if (o->b.not_finite) strbuf_printf(out, "  NaN or Inf: %" PRIu64, o->b.not_finite);
    strbuf_add_char(out, '\n');
}

/* The table of outputs, from the one before the first difference on. */
static void outputs_text(struct strbuf *out, const struct forward *f,
                         const struct forward_outputs *list, const char *title, bool verbose)
{
    size_t first = 0, end;
    while (!verbose && first + 1 < list->count && list->items[first + 1].agreement != DISAGREE)
        first++;
    if (f->agreement != DISAGREE || list->items[0].agreement == DISAGREE) first = 0;
    end = verbose || list->count - first < SHOWN_OUTPUTS ? list->count : first + SHOWN_OUTPUTS;
    strbuf_printf(out, "\n%-26s %10s %10s %10s %10s\n", title, "max |a-b|", "rounding", "rel. max",
                  "rel. rms");
    if (first)
        strbuf_printf(out, "%zu before it %s not differ (-v)\n", first, first > 1 ? "do" : "does");
    for (size_t i = first; i < end; i++)
        output_text(out, &list->items[i]);
    if (end < list->count) strbuf_printf(out, "and %zu more (-v, or --json)\n", list->count - end);
}

static void coloured_line(struct strbuf *out, const struct forward *f, bool coloured)
{
    struct strbuf line = {0};
    size_t label = strlen("forward: "), word = strlen(forward_word(f));
    bool differs = forward_agreement(f) == DISAGREE;
    forward_line(&line, f);
    strbuf_add(out, line.data, label);
    strbuf_add_coloured(out,
                        !coloured ? COLOUR_NONE
                        : differs ? COLOUR_RED
                                  : COLOUR_GREEN,
                        line.data + label, word);
    strbuf_add_text(out, line.data + label + word);
    strbuf_release(&line);
}

void forward_text(struct strbuf *out, const struct forward *f, bool coloured, bool verbose)
{
    bool different = forward_agreement(f) == DISAGREE;
    coloured_line(out, f, coloured);
    facts_text(out, f);
    if (f->broken || (!different && !verbose)) return;
    outputs_text(out, f, &f->outputs, "result", verbose);
    if (f->divergence.op) outputs_text(out, f, &f->ops, "op", true);
}

/* ---- JSON ---- */

static cJSON *output_json(const struct forward_output *o)
{
    cJSON *j = cJSON_CreateObject();
    json_add_text(j, "name", o->name);
    json_add_text(j, "outcome", o->compared ? agreement_ids[o->agreement] : "missing");
    json_add_u64(j, "elements", o->a.rows * o->a.columns);
    json_add_number(j, "rounding_max", o->rounding.max);
    json_add_number(j, "rounding_rms", o->rounding.rms);
    json_add_number(j, "largest", o->b.largest);
    if (!o->compared) return j;
    json_add_u64(j, "different", o->b.different);
    json_add_u64(j, "not_finite", o->b.not_finite);
    json_add_number(j, "max_difference", o->b.max);
    json_add_number(j, "rms_difference", o->b.rms);
    json_add_number(j, "relative_max", difference_relative(&o->b));
    json_add_number(j, "relative_rms", difference_relative_rms(&o->b));
    json_add_u64(j, "rows_beyond", o->b.rows_beyond);
    json_add_u64(j, "rows_beyond_allowed", o->rounding.outliers);
    return j;
}

static void outputs_json(cJSON *o, const char *name, const struct forward_outputs *list)
{
    cJSON *items = cJSON_AddArrayToObject(o, name);
    for (size_t i = 0; i < list->count; i++)
        cJSON_AddItemToArray(items, output_json(&list->items[i]));
}

static void divergence_json(cJSON *o, const struct forward *f)
{
    const struct divergence *d = &f->divergence;
    if (!d->text) return;
    cJSON *j = cJSON_AddObjectToObject(o, "diverges");
    json_add_text(j, "text", d->text);
    if (d->first) json_add_text(j, "result", d->first->name);
    if (d->layer >= 0) json_add_u64(j, "layer", (uint64_t)d->layer);
    if (d->op) json_add_text(j, "op", strrchr(d->op->name, '.') + 1);
}

static void logits_json(cJSON *o, const struct forward *f)
{
    cJSON *j;
    json_add_number(o, "loss_a", f->losses[0]);
    json_add_number(o, "loss_b", f->losses[1]);
    if (!f->logits.rows) return;
    j = cJSON_AddObjectToObject(o, "logits");
    json_add_u64(j, "tokens", f->logits.rows);
    json_add_u64(j, "same_top", f->logits.same_top);
    json_add_number(j, "kl_mean", f->logits.kl_mean);
    json_add_number(j, "kl_max", f->logits.kl_max);
}

void forward_json(cJSON *o, const struct forward *f)
{
    cJSON *j = cJSON_AddObjectToObject(o, "forward");
    json_add_text(j, "verdict", forward_id(f));
    json_add_number(j, "seconds", f->seconds);
    json_add_text(j, "path_a", f->paths[0]);
    json_add_text(j, "path_b", f->paths[1]);
    json_add_text(j, "dtype", elem_names[f->elem]);
    json_add_u64(j, "sequences", f->batch.num_sequences);
    json_add_u64(j, "length", f->batch.length);
    json_add_text(j, "input_ids", f->ids_are);
    json_add_text(j, "rounding", f->yardstick.text);
    loaded_json(j, &f->loaded);
    divergence_json(j, f);
    logits_json(j, f);
    outputs_json(j, "results", &f->outputs);
    outputs_json(j, "ops", &f->ops);
}
