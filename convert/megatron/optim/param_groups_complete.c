/* param_groups_complete.c - fills what a training state lacks for Megatron. */
#include <math.h>
#include <string.h>

#include "common/count.h"
#include "common/strbuf.h"
#include "common/text.h"
#include "convert/megatron/optim/param_groups_internal.h"

/* Sets *to to x if x is given. */
static void set_given(double *to, double x)
{
    if (isfinite(x)) *to = x;
}

/* Sets *to if it is unset. */
static void fill_missing(double *to, double x)
{
    if (!isfinite(*to)) *to = x;
}

static void fill_count(uint64_t *to, uint64_t n)
{
    if (!*to) *to = n;
}

static void set_given_count(uint64_t *to, double x)
{
    if (x >= 0 && x < 9e18) *to = (uint64_t)x;
}

/* ---- groups ---- */

static void make_vectors_of(struct training *t, struct param_group matrices, struct arena *a)
{
    matrices.members = "vectors";
    matrices.wd_mult = matrices.weight_decay = 0;
    *training_add_group(t, a) = matrices;
}

/* Makes Megatron's groups. */
static void make_groups(struct training *t, struct arena *a)
{
    if (!t->num_groups) training_add_group(t, a)->members = "all";
    for (size_t i = 0, n = t->num_groups; i < n; i++) {
        if (!text_equal(t->groups[i].members, "all") || t->groups[i].is_expert_parallel) continue;
        t->groups[i].members = "matrices";
        make_vectors_of(t, t->groups[i], a);
    }
}

/* Whether the group has no weight decay, by Megatron's rule. */
static bool is_of_vectors(const struct param_group *g)
{
    return g->members && text_starts_with(g->members, "vectors");
}

/* Replaces a group's rate by a flag if it is unset or the schedule's. */
static void set_given_rate(double *of_group, double of_schedule, double flag)
{
    if (!isfinite(*of_group) || (*of_group >= of_schedule && *of_group <= of_schedule))
        set_given(of_group, flag);
}

/* old: the schedule before flags were applied. */
static void flag_group(struct param_group *g, const struct training_given *f,
                       const struct training *old)
{
    fill_missing(&g->wd_mult, is_of_vectors(g) ? 0 : 1);
    fill_missing(&g->lr_mult, 1);
    set_given_rate(&g->max_lr, old->max_lr, f->lr);
    set_given_rate(&g->min_lr, old->min_lr, f->min_lr);
    set_given(&g->weight_decay, f->weight_decay * g->wd_mult);
    if (g->optimizer && strcmp(g->optimizer, "adam")) return;
    set_given(&g->beta1, f->adam_beta1);
    set_given(&g->beta2, f->adam_beta2);
    set_given(&g->eps, f->adam_eps);
}

static void fill_group(struct param_group *g, const struct training *t)
{
    fill_missing(&g->max_lr, t->max_lr);
    fill_missing(&g->min_lr, t->min_lr);
    fill_missing(&g->lr, g->max_lr * g->lr_mult);
    fill_missing(&g->weight_decay, t->start_wd * g->wd_mult);
    fill_count(&g->step, t->step);
}

/* ---- the schedule ---- */

static void flag_schedule(struct training *t, const struct training_given *f)
{
    set_given(&t->max_lr, f->lr);
    set_given(&t->min_lr, f->min_lr);
    set_given(&t->start_wd, f->weight_decay);
    set_given(&t->end_wd, f->weight_decay);
    if (f->lr_decay_style) t->lr_decay_style = f->lr_decay_style;
    set_given(&t->lr_warmup_steps, f->lr_warmup);
    set_given_count(&t->lr_decay_steps, f->lr_decay);
}

static void fill_schedule(struct training *t)
{
    for (size_t i = 0; i < t->num_groups; i++) {
        const struct param_group *g = &t->groups[i];
        if (g->is_decoupled_lr || text_equal(g->members, "embeddings")) continue;
        fill_missing(&t->max_lr, g->max_lr);
        fill_missing(&t->min_lr, g->min_lr);
        if (!(g->wd_mult >= 1 && g->wd_mult <= 1)) continue;
        fill_missing(&t->start_wd, g->weight_decay);
        fill_missing(&t->end_wd, g->weight_decay);
    }
    if (!t->wd_incr_style) t->wd_incr_style = "constant";
    fill_count(&t->wd_incr_steps, t->lr_decay_steps);
    fill_count(&t->num_steps, t->consumed_train_samples);
}

/* ---- what is unknown ---- */

static void name_unknown(struct strbuf *out, const char *name)
{
    if (out->length) strbuf_add_text(out, ", ");
    strbuf_add_text(out, name);
}

static bool is_derived(const struct field *f)
{
    /* the schedule's position may be 0; weight decay grows over lr_decay_steps
     * by default */
    return text_equal(f->name, "num_steps") || text_equal(f->name, "wd_incr_steps");
}

/* Whether a group's field is needed by this kind of optimizer and is not in a
 * schedule. */
static bool is_needed(const struct field *f, const struct training *t)
{
    static const char *const adam[] = {"lr", "weight_decay", "beta1", "beta2", "eps"};
    static const char *const others[] = {"lr", "weight_decay"};
    const bool is_adam = !t->optimizer || text_equal(t->optimizer, "adam");
    const char *const *names = is_adam ? adam : others;
    for (size_t i = 0; i < (is_adam ? COUNT(adam) : COUNT(others)); i++)
        if (text_equal(names[i], f->name)) return true;
    return false;
}

static bool all_have(const struct training *t, const struct field *f)
{
    for (size_t i = 0; i < t->num_groups; i++)
        if (!training_field_given(f, &t->groups[i])) return false;
    return true;
}

static const char *unknown_fields(const struct training *t, struct arena *a)
{
    struct strbuf names = {0};
    for (size_t i = 0; i < num_training_fields; i++) {
        const struct field *f = &training_fields[i].field;
        if (training_fields[i].part == TRAINING_SCHEDULE && !is_derived(f) &&
            !training_field_given(f, t))
            name_unknown(&names, f->name);
    }
    for (size_t i = 0; i < num_group_fields; i++)
        if (is_needed(&group_fields[i], t) && !all_have(t, &group_fields[i]))
            name_unknown(&names, group_fields[i].name);
    const char *out = names.length ? arena_text(a, names.data, names.length) : NULL;
    strbuf_release(&names);
    return out;
}

/* ---- all ---- */

const char *training_complete(struct training *t, const struct training_given *f,
                              bool from_megatron, struct arena *a)
{
    if (!from_megatron || !t->num_groups) make_groups(t, a);
    const struct training old = *t;
    flag_schedule(t, f);
    for (size_t i = 0; i < t->num_groups; i++)
        flag_group(&t->groups[i], f, &old);
    fill_schedule(t);
    for (size_t i = 0; i < t->num_groups; i++)
        fill_group(&t->groups[i], t);
    if (!t->optimizer) t->optimizer = "adam";
    return unknown_fields(t, a);
}
