#include "convert/cli/report_training.h"

#include <inttypes.h>
#include <string.h>

#include "common/checked.h"
#include "common/json.h"
#include "convert/format.h"
#include "convert/megatron/optim/training_target.h"
#include "convert/states.h"

/* ---- counting ---- */

static struct state_sums sums_of(const char *const *states, size_t count, struct arena *a)
{
    struct state_sums s = {arena_array(a, count, sizeof *s.items), count, 0};
    for (size_t i = 0; i < count; i++)
        s.items[i].name = states[i];
    return s;
}

static struct state_sum *sum_of(const struct state_sums *s, const char *state, size_t length)
{
    for (size_t i = 0; i < s->count; i++)
        if (strncmp(s->items[i].name, state, length) == 0 && !s->items[i].name[length])
            return &s->items[i];
    return NULL;
}

/* Counts a tensor if it is a state. */
static void count_state(struct state_sums *s, const struct tensor *t, enum dtype dtype)
{
    const char *state;
    size_t length;
    uint64_t bytes = 0;
    struct state_sum *sum =
        name_of_state(t->name, &state, &length) ? sum_of(s, state, length) : NULL;
    if (!sum) return;
    (void)dtype_size_bytes(dtype, t->numel, &bytes);
    sum->parameters += !name_is_padding(t->name);
    sum->bytes += bytes;
    sum->dtypes |= UINT64_C(1) << dtype;
}

struct state_sums states_of_catalog(const struct catalog *c, struct arena *a)
{
    const char **states;
    const size_t count = states_list(c, a, &states);
    struct state_sums s = sums_of(states, count, a);
    for (size_t i = 0; i < c->num_tensors; i++) {
        const struct tensor *t = &c->tensors[i];
        if (t->same_as)
            s.own_masters += !name_is_padding(t->name);
        else
            count_state(&s, t, t->dtype);
    }
    return s;
}

struct state_sums states_of_plan(const struct target *t, struct arena *a)
{
    struct state_sums s = sums_of(t->states, t->num_states, a);
    for (size_t i = 0; i < t->plan.num_copies; i++) {
        const struct tensor *x = t->plan.copies[i].source;
        count_state(&s, x, target_dtype(t, x));
    }
    return s;
}

/* ---- states as text and JSON ---- */

static bool same_count_and_dtypes(const struct state_sum *x, const struct state_sum *y)
{
    return x->parameters == y->parameters && x->dtypes == y->dtypes;
}

static void add_dtypes(struct strbuf *out, uint64_t dtypes)
{
    const char *separator = " in ";
    for (int d = NUM_DTYPES - 1; d >= 0; d--) {
        if (!(dtypes >> d & 1)) continue;
        strbuf_printf(out, "%s%s", separator, dtype_infos[d].name);
        separator = " and ";
    }
}

void states_text(struct strbuf *out, const struct state_sums *s)
{
    const struct state_sum *before = NULL;
    for (size_t i = 0; i < s->count; i++) {
        const struct state_sum *x = &s->items[i];
        if (!x->parameters) continue;
        if (before) strbuf_add_text(out, same_count_and_dtypes(before, x) ? ", " : "; ");
        strbuf_add_escaped(out, x->name, strlen(x->name));
        before = x;
        if (i + 1 < s->count && same_count_and_dtypes(x, x + 1)) continue;
        strbuf_printf(out, " of %zu parameter%s", x->parameters, x->parameters == 1 ? "" : "s");
        add_dtypes(out, x->dtypes);
    }
}

void states_json(cJSON *object, const char *name, const struct state_sums *s)
{
    cJSON *all = cJSON_AddObjectToObject(object, name);
    for (size_t i = 0; i < s->count; i++) {
        const struct state_sum *x = &s->items[i];
        if (!x->parameters) continue;
        cJSON *o = cJSON_AddObjectToObject(all, x->name);
        json_add_u64(o, "parameters", x->parameters);
        json_add_u64(o, "bytes", x->bytes);
        cJSON *dtypes = cJSON_AddArrayToObject(o, "dtypes");
        for (int d = NUM_DTYPES - 1; d >= 0; d--)
            if (x->dtypes >> d & 1)
                cJSON_AddItemToArray(dtypes, cJSON_CreateString(dtype_infos[d].name));
    }
}

/* ---- the optimizer in the plan ---- */

bool optimizer_is_left_out(const struct target *t)
{
    return t->source->training.optimizer.present && !t->options.optimizer;
}

/* Name of the format of the written states, or their files. */
static const char *optim_format_text(const struct target *t)
{
    return t->format->states_in ? t->format->states_in
                                : optim_format_names[t->options.optim_format];
}

/* States of the source written as F32. Masters made of their weights count as
 * made. */
static uint64_t count_widened(const struct target *t)
{
    uint64_t n = 0;
    for (size_t i = 0; i < t->plan.num_copies; i++) {
        const struct tensor *x = t->plan.copies[i].source;
        n += name_is_optimizer(x->name) && target_dtype(t, x) != x->dtype &&
             !catalog_find(&t->plan.made, x->name);
    }
    return n;
}

static void add_fact(struct strbuf *out, uint64_t count, const char *one, const char *many)
{
    if (count) strbuf_printf(out, "; %" PRIu64 " %s", count, count == 1 ? one : many);
}

static void optim_line(struct strbuf *out, const struct target *t, struct arena *a)
{
    const struct state_sums s = states_of_plan(t, a);
    strbuf_add_text(out, "optim    ");
    states_text(out, &s);
    strbuf_printf(out, ", %s%s", t->format->states_in ? "in " : "as ", optim_format_text(t));
    add_fact(out, t->facts.made_masters, "master is made from its weight",
             "masters are made from their weights");
    add_fact(out, t->facts.cast_masters, "weight is cast from its master",
             "weights are cast from their masters");
    add_fact(out, count_widened(t), "state tensor is widened to F32",
             "state tensors are widened to F32");
    strbuf_add_char(out, '\n');
}

static void optimizer_json(cJSON *target, const struct target *t, struct arena *a)
{
    const struct state_sums s = states_of_plan(t, a);
    cJSON *o = cJSON_AddObjectToObject(target, "optimizer");
    json_add_text(o, "format", optim_format_text(t));
    states_json(o, "states", &s);
    json_add_u64(o, "made_masters", t->facts.made_masters);
    json_add_u64(o, "cast_masters", t->facts.cast_masters);
    json_add_u64(o, "widened_states", count_widened(t));
}

/* ---- the training state in the plan ---- */

/* In JSON. */
static const char *const outcome_ids[] = {[OUTCOME_NONE] = "none",
                                          [OUTCOME_COPIED] = "carried",
                                          [OUTCOME_TRANSLATED] = "translated",
                                          [OUTCOME_MADE] = "made",
                                          [OUTCOME_DROPPED] = "dropped"};

static const char *outcome_word(enum state_outcome outcome)
{
    return outcome == OUTCOME_COPIED ? "copied" : outcome_ids[outcome];
}

/* The written training state. */
static struct training written_training(const struct target *t)
{
    struct training out = t->training;
    out.has_rng = t->outcomes[TRAINING_RNG].outcome == OUTCOME_COPIED;
    return out;
}

/* "dropped: random number states (tp 2 -> 4)"; "; " separates outcomes. */
static void add_parts(struct strbuf *out, const struct target *t, enum state_outcome outcome,
                      bool *begun)
{
    const char *separator = NULL;
    for (int p = 0; p < NUM_TRAINING_PARTS; p++) {
        if (t->outcomes[p].outcome != outcome) continue;
        if (separator)
            strbuf_add_text(out, separator);
        else
            strbuf_printf(out, "%s%s: ", *begun ? "; " : "", outcome_word(outcome));
        strbuf_add_text(out, training_part_names[p]);
        if (t->outcomes[p].why) strbuf_printf(out, " (%s)", t->outcomes[p].why);
        separator = ", ";
        *begun = true;
    }
}

static void training_text(struct strbuf *out, const struct target *t, struct arena *a)
{
    const char **lines;
    bool begun = false;
    const struct training written = written_training(t);
    const size_t count = training_lines(&written, a, &lines);
    struct strbuf parts = {0};
    for (int outcome = OUTCOME_COPIED; outcome <= OUTCOME_DROPPED; outcome++)
        add_parts(&parts, t, (enum state_outcome)outcome, &begun);
    for (size_t i = 0; i < count; i++) {
        strbuf_printf(out, "%-9s", i ? "" : "training");
        strbuf_add_escaped(out, lines[i], strlen(lines[i]));
        strbuf_add_char(out, '\n');
    }
    if (begun) strbuf_printf(out, "%-9s%s\n", count ? "" : "training", parts.data);
    strbuf_release(&parts);
}

static void parts_json(cJSON *target, const struct target *t)
{
    cJSON *parts = cJSON_AddObjectToObject(target, "training_parts");
    for (int p = 0; p < NUM_TRAINING_PARTS; p++) {
        if (t->outcomes[p].outcome == OUTCOME_NONE) continue;
        cJSON *o = cJSON_AddObjectToObject(parts, training_part_names[p]);
        json_add_text(o, "fate", outcome_ids[t->outcomes[p].outcome]);
        json_add_text(o, "why", t->outcomes[p].why);
    }
}

/* ---- both ---- */

void report_training(struct strbuf *out, const struct target *t)
{
    struct arena a;
    if (!t->num_states) return;
    arena_init(&a);
    optim_line(out, t, &a);
    training_text(out, t, &a);
    arena_release(&a);
}

void report_training_json(cJSON *target, const struct target *t)
{
    struct arena a;
    if (!t->source->training.optimizer.present) return;
    if (!t->num_states) {
        cJSON_AddNullToObject(target, "optimizer");
        return;
    }
    arena_init(&a);
    optimizer_json(target, t, &a);
    cJSON_AddItemToObject(target, "training", training_json(&t->training));
    parts_json(target, t);
    arena_release(&a);
}

size_t training_losses(const struct target *t, struct arena *a,
                       const char *lines[NUM_TRAINING_PARTS])
{
    size_t n = 0;
    for (int p = 0; p < NUM_TRAINING_PARTS; p++) {
        const char *why = t->outcomes[p].why;
        if (t->outcomes[p].outcome != OUTCOME_DROPPED) continue;
        lines[n++] = why ? arena_printf(a, "dropped: %s (%s)", training_part_names[p], why)
                         : arena_printf(a, "dropped: %s", training_part_names[p]);
    }
    return n;
}
