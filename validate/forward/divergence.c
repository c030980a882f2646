/* divergence.c - finds the first differing layer, and its first differing op. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "validate/forward/forward_internal.h"

// clang-format off
static const struct {
    const char *name, *text;
} ops[] = { /* in their order within a layer */
    {"attention_norm", "the norm before attention"},
    {"qkv",            "the projection to queries, keys and values"},
    {"qk_norm",        "the norm of queries and keys"},
    {"rotary",         "rotary positions"},
    {"attention",      "attention itself: its mask, window or scale"},
    {"projection",     "the projection after attention"},
    {"mlp_norm",       "the norm before the MLP, or a bias added before it"},
    {"router",         "the router of the experts"},
    {"activation",     "the first projections of the MLP, or its activation"},
    {"mlp",            "the last projection of the MLP, or the experts"},
};
// clang-format on

const char *forward_op_text(const char *name)
{
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < COUNT(ops); i++)
        if (strcmp(ops[i].name, dot + 1) == 0) return ops[i].text;
    return "";
}

/* The layer whose output is "hidden.N"; -1: none. */
static int layer_before(const char *name)
{
    return strncmp(name, "hidden.", 7) == 0 ? atoi(name + 7) - 1 : -1;
}

static const struct forward_output *first_that_disagrees(const struct forward_outputs *o)
{
    for (size_t i = 0; i < o->count; i++)
        if (o->items[i].compared && o->items[i].agreement == DISAGREE) return &o->items[i];
    return NULL;
}

/* Whether the difference starts at o: B has the output just before it, and that
 * agrees. */
static bool is_pinned(const struct forward *f, const struct forward_output *o)
{
    return o == f->outputs.items || o[-1].compared;
}

void divergence_find(struct forward *f)
{
    struct divergence *d = &f->divergence;
    d->first = first_that_disagrees(&f->outputs);
    if (d->first && is_pinned(f, d->first)) d->layer = layer_before(d->first->name);
}

/* ---- the sentence ---- */

/* The tokens that differ; "" if all do. */
static const char *rows_text(struct forward *f, const struct forward_output *o)
{
    uint64_t row = o->b.first_row;
    if (!o->b.rows_beyond || o->b.rows_beyond == o->a.rows) return "";
    return arena_printf(&f->arena,
                        ", for %" PRIu64 " of %" PRIu64
                        " tokens: the first is %d, at position %" PRIu64 " of sequence %" PRIu64,
                        o->b.rows_beyond, o->a.rows, f->ids[row], row % f->batch.length,
                        row / f->batch.length);
}

static const char *layer_text(struct forward *f)
{
    const struct divergence *d = &f->divergence;
    const char *why =
        f->results ? "B has no results for its ops" : "in the residual sum after its MLP";
    if (!d->op)
        return arena_printf(&f->arena, "layer %d diverges (%s)%s", d->layer, why,
                            rows_text(f, d->first));
    return arena_printf(&f->arena, "layer %d diverges in %s (%s)%s", d->layer,
                        strrchr(d->op->name, '.') + 1, forward_op_text(d->op->name),
                        rows_text(f, d->op));
}

/* For a B that lacks the hidden states just before the first difference. */
static const char *gap_text(struct forward *f)
{
    const struct forward_output *first = f->divergence.first, *o = first - 1;
    while (o > f->outputs.items && !o->compared)
        o--;
    if (o->compared)
        return arena_printf(&f->arena, "%s differs, %s does not, and B has nothing between them%s",
                            first->name, o->name, rows_text(f, first));
    return arena_printf(&f->arena, "%s differs, and B has nothing before it%s", first->name,
                        rows_text(f, first));
}

static const char *end_text(struct forward *f)
{
    static const char *const ends[][2] = {{"hidden.0", "the embedding differs"},
                                          {"final_norm", "the final norm differs"},
                                          {"logits", "the output layer differs"},
                                          {"loss", "the loss differs, and no logits do"}};
    const struct forward_output *first = f->divergence.first;
    const char *text = first->name;
    for (size_t i = 0; i < COUNT(ends); i++)
        if (strcmp(first->name, ends[i][0]) == 0) text = ends[i][1];
    return arena_printf(&f->arena, "%s%s", text, rows_text(f, first));
}

void divergence_tell(struct forward *f)
{
    struct divergence *d = &f->divergence;
    d->op = first_that_disagrees(&f->ops);
    if (f->broken)
        d->text = f->broken;
    else if (d->layer >= 0)
        d->text = layer_text(f);
    else if (d->first)
        d->text = is_pinned(f, d->first) ? end_text(f) : gap_text(f);
}
