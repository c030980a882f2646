#include "train/trainer/lr_schedule.h"

#include <inttypes.h>
#include <math.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/text.h"

#define PI 3.141592653589793 /* math.pi */

/* ---- styles ---- */

/* The remaining share of max_lr - min_lr after a share r of the decay. */
static double linear_rest(double r)
{
    return 1.0 - r;
}

static double cosine_rest(double r)
{
    return 0.5 * (cos(PI * r) + 1.0);
}

/* volatile: a compiler that knows the base emits exp2(-r), which may round
 * differently. */
static double exponential_rest(double r)
{
    static const volatile double half = 0.5;
    return 2.0 * pow(half, r) - 1.0;
}

static double minus_sqrt_rest(double r)
{
    return 1.0 - sqrt(r);
}

static double constant_lr(const struct lr_schedule *s, double steps, double max_lr, double min_lr);
static double inverse_sqrt_lr(const struct lr_schedule *s, double steps, double max_lr,
                              double min_lr);
static double linear_lr(const struct lr_schedule *s, double steps, double max_lr, double min_lr);
static double cosine_lr(const struct lr_schedule *s, double steps, double max_lr, double min_lr);
static double wsd_lr(const struct lr_schedule *s, double steps, double max_lr, double min_lr);

struct decay_style {
    const char *name;
    double (*lr)(const struct lr_schedule *s, double steps, double max_lr, double min_lr);
};

struct rest_style {
    const char *name;
    double (*rest)(double ratio);
};

// clang-format off
#define DECAY_STYLES(X)                      \
    X("constant",            constant_lr)     \
    X("linear",              linear_lr)       \
    X("cosine",              cosine_lr)       \
    X("inverse-square-root", inverse_sqrt_lr) \
    X("WSD",                 wsd_lr)
#define WSD_STYLES(X)                   \
    X("linear",      linear_rest)      \
    X("cosine",      cosine_rest)      \
    X("exponential", exponential_rest) \
    X("minus_sqrt",  minus_sqrt_rest)
// clang-format on
#define STYLE_ROW(name, function) {name, function},
#define STYLE_NAME(name, function) name,

static const struct decay_style decay_rows[] = {DECAY_STYLES(STYLE_ROW)};
static const struct rest_style wsd_rows[] = {WSD_STYLES(STYLE_ROW)};
const char *const lr_decay_styles[] = {DECAY_STYLES(STYLE_NAME) NULL};
const char *const lr_wsd_decay_styles[] = {WSD_STYLES(STYLE_NAME) NULL};
const char *const wd_incr_styles[] = {"constant", "linear", "cosine", NULL};

/* The list's text that equals name; NULL: none. */
static const char *style_find(const char *const *list, const char *name)
{
    for (; *list; list++)
        if (text_equal(*list, name)) return *list;
    return NULL;
}

/* ---- learning rate ---- */

static double constant_lr(const struct lr_schedule *s, double steps, double max_lr, double min_lr)
{
    (void)s, (void)steps, (void)min_lr;
    return max_lr;
}

static double inverse_sqrt_lr(const struct lr_schedule *s, double steps, double max_lr,
                              double min_lr)
{
    const double warmup = s->warmup_steps > 1 ? s->warmup_steps : 1;
    const double lr = max_lr * pow(warmup, 0.5) / pow(steps > 1 ? steps : 1, 0.5);
    return lr > min_lr ? lr : min_lr;
}

/* The share of the decay already done. */
static double decay_ratio(const struct lr_schedule *s, double steps)
{
    return (steps - s->warmup_steps) / ((double)s->decay_steps - s->warmup_steps);
}

/* Two statements: a fused multiply-add would round differently. */
static double interpolate(double from, double share, double range)
{
    const volatile double part = share * range;
    return from + part;
}

static double linear_lr(const struct lr_schedule *s, double steps, double max_lr, double min_lr)
{
    return interpolate(min_lr, linear_rest(decay_ratio(s, steps)), max_lr - min_lr);
}

static double cosine_lr(const struct lr_schedule *s, double steps, double max_lr, double min_lr)
{
    return interpolate(min_lr, cosine_rest(decay_ratio(s, steps)), max_lr - min_lr);
}

static double wsd_lr(const struct lr_schedule *s, double steps, double max_lr, double min_lr)
{
    const double anneal_start = (double)s->decay_steps - (double)s->wsd_decay_steps;
    double rest = 1.0;
    for (size_t i = 0; steps > anneal_start && i < COUNT(wsd_rows); i++)
        if (text_equal(wsd_rows[i].name, s->wsd_style))
            rest = wsd_rows[i].rest((steps - anneal_start) / (double)s->wsd_decay_steps);
    return interpolate(min_lr, rest, max_lr - min_lr);
}

double lr_schedule_lr_between(const struct lr_schedule *s, uint64_t num_steps, double max_lr,
                              double min_lr)
{
    const double steps = (double)num_steps;
    if (s->warmup_steps > 0 && steps <= s->warmup_steps) {
        const volatile double part = (max_lr - s->init_lr) * steps / s->warmup_steps;
        return s->init_lr + part;
    }
    if (num_steps > s->decay_steps && !text_equal(s->decay_style, "constant")) return min_lr;
    for (size_t i = 0; i < COUNT(decay_rows); i++)
        if (text_equal(decay_rows[i].name, s->decay_style))
            return decay_rows[i].lr(s, steps, max_lr, min_lr);
    return NAN; /* lr_schedule_start refuses other styles */
}

double lr_schedule_lr(const struct lr_schedule *s, uint64_t num_steps)
{
    return lr_schedule_lr_between(s, num_steps, s->max_lr, s->min_lr);
}

double lr_schedule_weight_decay(const struct lr_schedule *s, uint64_t num_steps)
{
    if (num_steps > s->wd_incr_steps || text_equal(s->wd_incr_style, "constant")) return s->end_wd;
    const double ratio = (double)num_steps / (double)s->wd_incr_steps;
    const double share =
        text_equal(s->wd_incr_style, "cosine") ? 0.5 * (cos(PI * (1 - ratio)) + 1.0) : ratio;
    return interpolate(s->start_wd, share, s->end_wd - s->start_wd);
}

void lr_schedule_step(struct lr_schedule *s, uint64_t increment)
{
    s->num_steps += increment;
    s->lr = lr_schedule_lr(s, s->num_steps);
    s->weight_decay = lr_schedule_weight_decay(s, s->num_steps);
}

/* ---- the user's options ---- */

/* count iterations of global_batch_size samples. */
static enum status samples_of(uint64_t *samples, const char *option, uint64_t count,
                              uint64_t global_batch_size, struct error *err)
{
    if (!mul_u64(count, global_batch_size, samples))
        return fail(err, ERR_USAGE,
                    "%s %" PRIu64 " times a batch size of %" PRIu64 " exceeds 64 bits", option,
                    count, global_batch_size);
    return OK;
}

static enum status check_lengths(const struct lr_lengths *l, struct error *err)
{
    const bool by_samples = l->train_samples > 0;
    if (by_samples == (l->train_iters > 0))
        return fail(err, ERR_USAGE, "give one of --train-iters and --train-samples");
    const uint64_t other_unit = by_samples
                                    ? l->decay_iters | l->warmup_iters | l->wsd_decay_iters
                                    : l->decay_samples | l->warmup_samples | l->wsd_decay_samples;
    if (other_unit)
        return fail(err, ERR_USAGE,
                    "with --train-%s give the lengths of the learning rate schedule as "
                    "--lr-...-%s",
                    by_samples ? "samples" : "iters", by_samples ? "samples" : "iters");
    if (!isnan(l->warmup_fraction) && (l->warmup_iters || l->warmup_samples))
        return fail(err, ERR_USAGE,
                    "give one of --lr-warmup-fraction and --lr-warmup-iters or -samples");
    return OK;
}

enum status lr_schedule_set_lengths(struct lr_schedule *s, const struct lr_lengths *l,
                                    uint64_t global_batch_size, struct error *err)
{
    TRY(check_lengths(l, err));
    const bool by_samples = l->train_samples > 0;
    const uint64_t unit = by_samples ? 1 : global_batch_size;
    const uint64_t whole = by_samples ? l->train_samples : l->train_iters;
    const uint64_t decay = by_samples ? l->decay_samples : l->decay_iters;
    uint64_t warmup;
    TRY(samples_of(&s->decay_steps, by_samples ? "--lr-decay-samples" : "--lr-decay-iters",
                   decay ? decay : whole, unit, err));
    TRY(samples_of(&s->wd_incr_steps, by_samples ? "--train-samples" : "--train-iters", whole, unit,
                   err));
    TRY(samples_of(&s->wsd_decay_steps, "--lr-wsd-decay-iters",
                   by_samples ? l->wsd_decay_samples : l->wsd_decay_iters, unit, err));
    TRY(samples_of(&warmup, "--lr-warmup-iters", by_samples ? l->warmup_samples : l->warmup_iters,
                   unit, err));
    s->warmup_steps =
        isnan(l->warmup_fraction) ? (double)warmup : l->warmup_fraction * (double)s->decay_steps;
    return OK;
}

static enum status check_style(const char **style, const char *option, const char *const *list,
                               struct error *err)
{
    const char *known = style_find(list, *style);
    if (!known)
        return fail(err, ERR_USAGE, "%s %s is not a known style", option,
                    *style ? *style : "(none)");
    *style = known;
    return OK;
}

static enum status check_rates(const struct lr_schedule *s, struct error *err)
{
    if (!(isfinite(s->max_lr) && s->min_lr >= 0))
        return fail(err, ERR_USAGE, "--lr %g, --min-lr %g: must be numbers of at least 0",
                    s->max_lr, s->min_lr);
    if (!(s->max_lr >= s->min_lr))
        return fail(err, ERR_USAGE, "--min-lr %g is above --lr %g", s->min_lr, s->max_lr);
    if (!(s->init_lr <= s->max_lr))
        return fail(err, ERR_USAGE, "--lr-warmup-init %g is above --lr %g", s->init_lr, s->max_lr);
    return OK;
}

static enum status check_steps(const struct lr_schedule *s, struct error *err)
{
    if (!s->decay_steps) return fail(err, ERR_USAGE, "the learning rate decays over 0 samples");
    if (!(s->warmup_steps >= 0 && s->warmup_steps < (double)s->decay_steps))
        return fail(err, ERR_USAGE,
                    "the learning rate's warm-up of %g samples is not shorter than its decay of "
                    "%" PRIu64 ", which includes it (--lr-warmup-..., --lr-decay-...)",
                    s->warmup_steps, s->decay_steps);
    if (text_equal(s->decay_style, "WSD") && !s->wsd_decay_steps)
        return fail(err, ERR_USAGE,
                    "--lr-decay-style WSD needs --lr-wsd-decay-iters or --lr-wsd-decay-samples");
    return OK;
}

static enum status check_weight_decay(const struct lr_schedule *s, struct error *err)
{
    if (!(s->start_wd >= 0 && s->end_wd >= s->start_wd && isfinite(s->end_wd)))
        return fail(err, ERR_USAGE,
                    "--start-weight-decay %g, --end-weight-decay %g: must be numbers of at least "
                    "0, the end not below the start",
                    s->start_wd, s->end_wd);
    const bool constant = text_equal(s->wd_incr_style, "constant");
    if (constant && s->start_wd != s->end_wd)
        return fail(err, ERR_USAGE,
                    "--weight-decay-incr-style constant conflicts with a weight decay from %g to "
                    "%g",
                    s->start_wd, s->end_wd);
    if (!constant && !s->wd_incr_steps)
        return fail(err, ERR_USAGE, "weight decay increases over 0 samples");
    return OK;
}

/* Replaces the styles by static texts. */
static enum status check_schedule(struct lr_schedule *s, struct error *err)
{
    TRY(check_style(&s->decay_style, "--lr-decay-style", lr_decay_styles, err));
    TRY(check_style(&s->wd_incr_style, "--weight-decay-incr-style", wd_incr_styles, err));
    if (text_equal(s->decay_style, "WSD"))
        TRY(check_style(&s->wsd_style, "--lr-wsd-decay-style", lr_wsd_decay_styles, err));
    TRY(check_rates(s, err));
    TRY(check_steps(s, err));
    return check_weight_decay(s, err);
}

enum status lr_schedule_start(struct lr_schedule *s, struct error *err)
{
    TRY(check_schedule(s, err));
    s->num_steps = 0;
    lr_schedule_step(s, 0);
    return OK;
}

/* ---- checkpoints ---- */

/* A member of the schedule and the field of struct training that holds it. */
struct shared_field {
    struct field ours, theirs;
    const char *title; /* Megatron-LM's words */
};

// clang-format off
#define SHARED(ours, theirs, title) {FIELD_ROW(struct lr_schedule, ours), FIELD_ROW(struct training, theirs), title}
static const struct shared_field lr_fields[] = {
    SHARED(max_lr,       max_lr,          "learning rate"),
    SHARED(min_lr,       min_lr,          "minimum learning rate"),
    SHARED(warmup_steps, lr_warmup_steps, "warm-up of the learning rate, in samples"),
    SHARED(decay_steps,  lr_decay_steps,  "decay of the learning rate, in samples"),
    SHARED(decay_style,  lr_decay_style,  "learning rate decay style"),
};
static const struct shared_field weight_decay_fields[] = {
    SHARED(start_wd,      start_wd,      "start weight decay"),
    SHARED(end_wd,        end_wd,        "end weight decay"),
    SHARED(wd_incr_steps, wd_incr_steps, "increase of the weight decay, in samples"),
    SHARED(wd_incr_style, wd_incr_style, "weight decay increase style"),
};
// clang-format on

/* 17 digits distinguish any two numbers; 15 suffice for most, and are those
 * that a user wrote. */
static enum status refuse_difference(const struct shared_field *f, const struct lr_schedule *s,
                                     const struct training *t, struct error *err)
{
    const char *ours = NULL, *theirs = NULL;
    struct arena a;
    arena_init(&a);
    for (int digits = 15; digits <= 17 && text_equal(ours, theirs); digits++) {
        const struct scalar_style style = {.digits = digits, .none = "none"};
        ours = scalar_text(field_get(&f->ours, s), &style, &a);
        theirs = scalar_text(field_get(&f->theirs, t), &style, &a);
    }
    const enum status st =
        fail(err, ERR_USAGE,
             "%s: %s is given, but the checkpoint has %s; --override-opt_param-scheduler takes the "
             "given one, --use-checkpoint-opt_param-scheduler the checkpoint's",
             f->title, ours, theirs);
    arena_release(&a);
    return st;
}

/* Takes or compares the fields that t has. */
static enum status take_fields(struct lr_schedule *s, const struct shared_field *fields,
                               size_t count, const struct training *t,
                               enum lr_schedule_conflict conflict, struct error *err)
{
    if (conflict == LR_CONFLICT_USES_GIVEN) return OK;
    for (const struct shared_field *f = fields; f < fields + count; f++) {
        const struct scalar theirs = field_get(&f->theirs, t);
        if (!training_field_given(&f->theirs, t)) continue;
        if (conflict == LR_CONFLICT_FAILS && !scalar_equal(field_get(&f->ours, s), theirs))
            return refuse_difference(f, s, t, err);
        field_set(&f->ours, s, theirs);
    }
    return OK;
}

static uint64_t steps_of(const struct training *t, enum lr_schedule_conflict conflict)
{
    return conflict == LR_CONFLICT_USES_GIVEN && t->consumed_train_samples
               ? t->consumed_train_samples
               : t->num_steps;
}

/* Megatron-LM takes weight decay after the step. */
enum status lr_schedule_load(struct lr_schedule *s, const struct training *t,
                             enum lr_schedule_conflict conflict, struct error *err)
{
    struct lr_schedule next = *s;
    next.num_steps = 0;
    TRY(take_fields(&next, lr_fields, COUNT(lr_fields), t, conflict, err));
    lr_schedule_step(&next, steps_of(t, conflict));
    TRY(take_fields(&next, weight_decay_fields, COUNT(weight_decay_fields), t, conflict, err));
    if (check_schedule(&next, err)) return fail_in(err, "the schedule of the checkpoint");
    *s = next;
    return OK;
}

static void save_fields(const struct lr_schedule *s, const struct shared_field *fields,
                        size_t count, struct training *t)
{
    for (const struct shared_field *f = fields; f < fields + count; f++)
        field_set(&f->theirs, t, field_get(&f->ours, s));
}

void lr_schedule_save(const struct lr_schedule *s, struct training *t)
{
    save_fields(s, lr_fields, COUNT(lr_fields), t);
    save_fields(s, weight_decay_fields, COUNT(weight_decay_fields), t);
    t->num_steps = s->num_steps;
}
