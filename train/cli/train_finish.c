/* train_finish.c - completes a line after parsing. */
#include "train/cli/train_finish.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/text.h"
#include "train/cli/train_names.h"

/* ---- problems and notes ---- */

/* Leaves space in struct error for "and 12 more, above". */
enum { MAX_PROBLEM_BYTES = sizeof((struct error *)NULL)->text - 64 };

static char *text_of(const char *fmt, va_list args)
{
    char text[sizeof((struct error *)NULL)->text];
    vsnprintf(text, sizeof text, fmt, args);
    struct strbuf escaped = {0};
    for (const char *t = text; *t; t++)
        strbuf_add_char(&escaped, (unsigned char)*t < ' ' ? '?' : *t);
    return escaped.data;
}

void train_problem(struct train_finish *x, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char *text = text_of(fmt, args);
    va_end(args);
    x->num_problems++;
    if (x->problems.length + strlen(text) < MAX_PROBLEM_BYTES) {
        strbuf_printf(&x->problems, "\n  %s", text);
        x->num_shown++;
    } else {
        strbuf_printf(&x->rest, "%s\n", text);
    }
    free(text);
}

void train_note(struct train_finish *x, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char *text = text_of(fmt, args);
    va_end(args);
    if (!x->o->quiet) strbuf_printf(x->notes, "%s\n", text);
    free(text);
}

/* ---- options without effect, and refused ones ---- */

static bool was_before(const struct arg_list *l, size_t i)
{
    const size_t length = strcspn(l->items[i], "=");
    for (size_t k = 0; k < i; k++)
        if (strcspn(l->items[k], "=") == length && !strncmp(l->items[k], l->items[i], length))
            return true;
    return false;
}

static void note_no_effect(struct train_finish *x)
{
    const struct arg_list *l = &x->o->no_effect;
    struct strbuf names = {0};
    for (size_t i = 0; i < l->count; i++)
        if (!was_before(l, i))
            strbuf_printf(&names, "%s%.*s", names.length ? ", " : "",
                          (int)strcspn(l->items[i], "="), l->items[i]);
    if (names.length && !x->o->quiet)
        strbuf_printf(x->notes, "without effect here: %s\n", names.data);
    strbuf_release(&names);
}

static void refuse_options(struct train_finish *x)
{
    const struct arg_list *l = &x->o->refused;
    for (size_t i = 0; i < l->count; i++)
        if (!was_before(l, i))
            train_problem(x, "%.*s: %s", (int)strcspn(l->items[i], "="), l->items[i],
                          train_refused_reason(l->items[i]));
}

/* Whether the name has a later pair: the last one counts. */
static bool comes_again(const struct arg_list *l, size_t i)
{
    for (size_t k = i + 2; k < l->count; k += 2)
        if (text_equal(l->items[k], l->items[i])) return true;
    return false;
}

static void refuse_values(struct train_finish *x)
{
    const struct arg_list *l = &x->o->limited;
    for (size_t i = 0; i + 1 < l->count; i += 2) {
        const char *names = l->items[i], *value = l->items[i + 1];
        const char *reason = comes_again(l, i) ? NULL : train_limited_reason(names, value);
        if (reason) train_problem(x, "%.*s %s: %s", (int)strcspn(names, " "), names, value, reason);
    }
}

/* A folder that describes the model overrides the line. */
static void note_model_options(struct train_finish *x)
{
    struct strbuf names = {0};
    train_add_model_options(&names, x->o);
    if (names.length)
        train_note(x, "without effect here, since the folder describes the model (%s): %s",
                   x->o->use_checkpoint_args ? "--use-checkpoint-args" : "no --num-layers",
                   names.data);
    strbuf_release(&names);
}

/* ---- the whole ---- */

/* Bounds sizes before memory is allocated for each layer and expert. */
static bool is_model_bounded(struct train_options *o)
{
    return train_line(o, "num_layers")->number <= MAX_LAYERS &&
           train_line(o, "num_experts")->number <= MAX_EXPERTS &&
           train_line(o, "hidden_size")->number <= UINT32_MAX &&
           train_line(o, "num_attention_heads")->number <= MAX_HEADS;
}

MUST_CHECK static enum status report_problems(const struct train_finish *x, struct error *err)
{
    const char *first = x->problems.data ? x->problems.data + strspn(x->problems.data, "\n ") : "";
    if (x->num_problems == 1 && x->num_shown == 1) return fail(err, ERR_USAGE, "%s", first);
    const size_t more = x->num_problems - x->num_shown;
    char rest[40] = "";
    if (more) snprintf(rest, sizeof rest, "\n  and %zu more, above", more);
    return fail(err, ERR_USAGE, "the options do not fit together:%s%s",
                x->problems.data ? x->problems.data : "", rest);
}

enum status train_options_finish(struct train_options *o, struct strbuf *notes, struct error *err)
{
    struct train_finish x = {.o = o, .notes = notes};
    refuse_options(&x);
    refuse_values(&x);
    train_complete(&x);
    train_check(&x);
    if (o->has_model && is_model_bounded(o))
        train_make_model(&x);
    else if (o->has_model)
        train_problem(&x,
                      "the model exceeds %d layers, %d experts, %d heads or a hidden size of 32 "
                      "bits",
                      MAX_LAYERS, MAX_EXPERTS, MAX_HEADS);
    else
        note_model_options(&x);
    note_no_effect(&x);
    enum status st = x.num_problems ? report_problems(&x, err) : OK;
    if (st) strbuf_clear(notes);
    if (x.rest.length) strbuf_add_text(notes, x.rest.data);
    strbuf_release(&x.problems);
    strbuf_release(&x.rest);
    return st;
}
