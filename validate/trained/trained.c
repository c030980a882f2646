#include "validate/trained/trained.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/numbers.h"
#include "common/text.h"
#include "train/cli/train_options.h"
#include "validate/compare/optimizer.h"

enum { USUAL_LENGTH = 64 };
/* Constant: an adapting scale would skip the first steps. */
#define LOSS_SCALE_OF_FP16 1024

void trained_release(struct trained *t)
{
    for (size_t i = 0; i < t->num_weights; i++)
        free(t->weights[i].values);
    map_release(&t->names);
    arena_release(&t->arena);
}

/* ---- outcomes ---- */

static bool is_within(const struct tolerance *t, double a, double b)
{
    return t->by_bounds && fabs(a - b) <= t->atol + t->rtol * fabs(b);
}

/* By bits, since both are finite. */
static enum outcome outcome_of_numbers(const struct tolerance *t, double a, double b)
{
    if (memcmp(&a, &b, sizeof a) == 0) return IDENTICAL;
    return is_within(t, a, b) ? WITHIN : VALUES_DIFFER;
}

static enum outcome worse(enum outcome a, enum outcome b)
{
    return a > b ? a : b;
}

enum outcome trained_outcome(const struct trained *t)
{
    enum outcome worst = IDENTICAL;
    for (size_t i = 0; i < t->num_steps; i++)
        worst = worse(worst, t->steps[i].outcome);
    for (size_t i = 0; i < t->num_weights; i++)
        worst = worse(worst, t->weights[i].outcome);
    return worst;
}

size_t trained_steps_differ(const struct trained *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->num_steps; i++)
        n += t->steps[i].outcome == VALUES_DIFFER;
    return n;
}

size_t trained_weights_differ(const struct trained *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->num_weights; i++)
        n += t->weights[i].outcome == VALUES_DIFFER;
    return n;
}

/* ---- A ---- */

static enum status keep_step(void *context, const struct step_record *r, struct error *err)
{
    struct trained *t = context;
    (void)err;
    *ARENA_PUSH(&t->arena, t->steps, t->num_steps, t->steps_capacity) =
        (struct trained_step){.loss = {r->loss.value}, .grad_norm = {r->grad_norm}};
    return OK;
}

static struct digest digest_of(const struct watched_weight *w)
{
    struct digest d = {{0}};
    digest_add_elements(&d, w->dtype, w->elements, w->numel, 0);
    return d;
}

static void keep_loaded(struct trained *t, const struct watched_weight *w)
{
    struct trained_weight *x =
        ARENA_PUSH(&t->arena, t->weights, t->num_weights, t->weights_capacity);
    *x = (struct trained_weight){
        .name = arena_copy_text(&t->arena, w->name), .numel = w->numel, .loaded = digest_of(w)};
    (void)map_add(&t->names, x->name, t->num_weights - 1, NULL);
}

static enum status keep_weight(void *context, const struct watched_weight *w, bool trained,
                               struct error *err)
{
    struct trained *t = context;
    const size_t bytes = dtype_run_bytes(w->dtype, w->numel);
    size_t at;
    if (!trained) {
        keep_loaded(t, w);
        return OK;
    }
    if (!map_get(&t->names, w->name, &at))
        return fail(err, ERR_OURS, "tensor %s: missing before training", w->name);
    void *copy = t->weights[at].values = malloc(bytes);
    if (!copy) return fail(err, ERR_MEMORY, "tensor %s: no memory for a copy", w->name);
    memcpy(copy, w->elements, bytes);
    return OK;
}

/* ---- B ---- */

static enum status compare_step(void *context, const struct step_record *r, struct error *err)
{
    struct trained *t = context;
    const struct tolerance *within = &t->options.tolerance;
    const uint64_t at = r->iteration - 1;
    if (at >= t->num_steps)
        return fail(err, ERR_OURS, "step %" PRIu64 ": A has only %zu steps", r->iteration,
                    t->num_steps);
    struct trained_step *s = &t->steps[at];
    s->loss[1] = r->loss.value;
    s->grad_norm[1] = r->grad_norm;
    s->outcome = worse(outcome_of_numbers(within, s->loss[0], s->loss[1]),
                       outcome_of_numbers(within, s->grad_norm[0], s->grad_norm[1]));
    if (s->outcome == VALUES_DIFFER && !t->step) t->step = s;
    return OK;
}

static void compare_trained(struct trained *t, struct trained_weight *x,
                            const struct watched_weight *w)
{
    const struct elements a = {w->dtype, x->values}, b = {w->dtype, w->elements};
    statistics_init(&x->statistics);
    statistics_add(&x->statistics, a, b, 0, w->numel, &t->options.tolerance);
    free(x->values);
    x->values = NULL;
    const bool is_same = !statistics_different(&x->statistics);
    const bool passes = t->options.tolerance.by_bounds && !x->statistics.outside;
    x->outcome = is_same ? IDENTICAL : passes ? WITHIN : VALUES_DIFFER;
    t->num_compared++;
}

static enum status compare_weight(void *context, const struct watched_weight *w, bool trained,
                                  struct error *err)
{
    struct trained *t = context;
    size_t at;
    if (!map_get(&t->names, w->name, &at) || t->weights[at].numel != w->numel)
        return fail(err, ERR_UNSUPPORTED, "trains tensor %s, which A lacks or has in another size",
                    w->name);
    struct trained_weight *x = &t->weights[at];
    if (!trained) {
        const struct digest d = digest_of(w);
        x->differs_as_loaded = memcmp(&d, &x->loaded, sizeof d) != 0;
    } else if (x->values) {
        compare_trained(t, x, w);
    }
    return OK;
}

/* Finds the first differing weight before and after training, in the order of
 * A's model. */
static void find_first(struct trained *t)
{
    for (size_t i = t->num_weights; i-- > 0;) {
        if (t->weights[i].differs_as_loaded) t->loaded = &t->weights[i];
        if (t->weights[i].outcome == VALUES_DIFFER) t->trained = &t->weights[i];
    }
}

/* ---- a run ---- */

static void set_options(struct train_options *to, const struct trained *t, unsigned side)
{
    const struct trained_options *o = &t->options;
    to->load = t->paths[side];
    to->mock_data = true;
    to->micro_batch_size = o->num_sequences;
    to->seq_length = o->length;
    to->train_iters = o->steps;
    to->lr = o->lr;
    to->lr_decay_style = "constant";
    to->dtype = o->dtype;
    if (strcmp(o->dtype, "fp16") == 0) to->loss_scale = LOSS_SCALE_OF_FP16;
    to->device = o->device ? o->device : "cpu";
    to->threads = o->threads;
    to->no_load_optim = !t->goes_on;
    to->allow_shifted = true; /* a note has said it */
    to->no_load_rng = true;
    to->quiet = true;
}

static void take_end(void *context, const struct train_summary *s)
{
    (void)context, (void)s;
}

static enum status run_training(struct trained *t, unsigned side, const struct engine *engine,
                                const struct train_options *o, struct error *err)
{
    const struct train_watch watch = {.keeps_weights = side == 0,
                                      .step = side ? compare_step : keep_step,
                                      .weight = side ? compare_weight : keep_weight,
                                      .context = t};
    const struct train_request q = {
        .options = o,
        .source = side_source_options(o->load, &t->options.source,
                                      t->sides[side].checkpoint.config.vocab_size),
        .model_map = t->options.model_map,
        .threads = (unsigned)o->threads,
        .progress = t->options.progress,
        .watch = &watch};
    if (!engine->train(&q, take_end, NULL, err)) return OK;
    return fail_in(err, "%c (%s)", side_letter(side), o->load);
}

static enum status train_side(struct trained *t, unsigned side, const struct engine *engine,
                              struct error *err)
{
    struct train_options o;
    struct strbuf notes = {0};
    train_options_defaults(&o);
    set_options(&o, t, side);
    const struct source_options source = side_source_options(o.load, &t->options.source, 0);
    if (source.has_ckpt_step) o.ckpt_step = source.ckpt_step;
    enum status st = train_options_finish(&o, &notes, err);
    if (!st) st = run_training(t, side, engine, &o, err);
    strbuf_release(&notes);
    train_options_release(&o);
    return st;
}

/* ---- checks ---- */

static enum status check_model_size(const struct side sides[2], const char *what, uint64_t a,
                                    uint64_t b, struct error *err)
{
    if (a == b || !a || !b) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "models of different shape: A (%s) has %s %" PRIu64 ", B (%s) has %" PRIu64,
                sides[0].checkpoint.path, what, a, sides[1].checkpoint.path, b);
}

static enum status check_model_sizes(const struct side sides[2], struct error *err)
{
    const struct model_config *a = &sides[0].checkpoint.config, *b = &sides[1].checkpoint.config;
    for (unsigned i = 0; i < 2; i++)
        if (sides[i].stored_only)
            return fail(err, ERR_UNSUPPORTED,
                        "%c (%s) cannot be trained: Ferry does not know its model", side_letter(i),
                        sides[i].checkpoint.path);
    TRY(check_model_size(sides, "num_layers", a->num_layers, b->num_layers, err));
    TRY(check_model_size(sides, "hidden_size", a->hidden_size, b->hidden_size, err));
    return check_model_size(sides, "vocab_size", a->vocab_size, b->vocab_size, err);
}

static bool has_shape_of(const struct tensor *a, const struct tensor *b)
{
    return a->num_dims == b->num_dims &&
           memcmp(a->shape, b->shape, a->num_dims * sizeof *a->shape) == 0;
}

/* Padding rows count as tokens if the vocabulary size is not known. */
static const char *padding_hint(const struct trained *t, const char *name)
{
    const bool has_rows = strcmp(name, "embedding.word_embeddings.weight") == 0 ||
                          strcmp(name, "output_layer.weight") == 0;
    const bool is_known =
        t->sides[0].checkpoint.config.vocab_size || t->sides[1].checkpoint.config.vocab_size;
    return has_rows && !is_known ? "; --true-vocab-size N leaves out padding rows" : "";
}

/* Checks that the other side has each weight of one side, with the same shape. */
static enum status check_weights(struct trained *t, unsigned side, struct error *err)
{
    const struct checkpoint *c = &t->sides[side].checkpoint,
                            *other = &t->sides[1 - side].checkpoint;
    for (size_t i = 0; i < c->catalog.num_tensors; i++) {
        const struct tensor *x = &c->catalog.tensors[i];
        if (name_is_optimizer(x->name) || name_is_padding(x->name)) continue;
        const struct tensor *y = catalog_find(&other->catalog, x->name);
        if (!y)
            return fail(err, ERR_UNSUPPORTED,
                        "models of different shape: %c (%s) has tensor %s, %c (%s) does not",
                        side_letter(side), c->path, x->name, side_letter(1 - side), other->path);
        if (!has_shape_of(x, y))
            return fail(err, ERR_UNSUPPORTED,
                        "models of different shape: tensor %s is %s in %c (%s), %s in %c (%s)%s",
                        x->name, shape_text(&t->arena, x->num_dims, x->shape), side_letter(side),
                        c->path, shape_text(&t->arena, y->num_dims, y->shape),
                        side_letter(1 - side), other->path, padding_hint(t, x->name));
    }
    return OK;
}

static uint64_t usual_length(const struct side sides[2])
{
    uint64_t length = USUAL_LENGTH;
    for (unsigned i = 0; i < 2; i++) {
        const uint64_t most = sides[i].checkpoint.config.max_position_embeddings;
        if (most && most < length) length = most;
    }
    return length;
}

/* ---- the whole ---- */

static bool has_state(const struct checkpoint *c, const char *prefix)
{
    for (size_t i = 0; i < c->catalog.num_tensors; i++)
        if (text_starts_with(c->catalog.tensors[i].name, prefix)) return true;
    return false;
}

/* Whether it has AdamW's states. With another optimizer's, both sides begin
 * with new states. */
static bool has_moments(const struct checkpoint *c)
{
    return has_state(c, "optimizer.exp_avg.") && has_state(c, "optimizer.exp_avg_sq.");
}

static enum status prepare_training(struct trained *t, struct error *err)
{
    TRY(check_model_sizes(t->sides, err));
    for (unsigned i = 0; i < 2; i++)
        TRY(check_weights(t, i, err));
    for (unsigned i = 0; i < 2 && !t->options.no_optim; i++)
        TRY(optimizer_check_read(&t->sides[i].checkpoint, err));
    t->goes_on = !t->options.no_optim && has_moments(&t->sides[0].checkpoint) &&
                 has_moments(&t->sides[1].checkpoint);
    t->configs = configs_compare(t->sides, NULL, &t->arena);
    if (!t->options.length) t->options.length = usual_length(t->sides);
    return OK;
}

enum status trained_run(struct trained *t, const char *const paths[2], const struct side sides[2],
                        const struct trained_options *o, struct error *err)
{
    const double start = seconds_now();
    const struct engine *engine;
    *t = (struct trained){.options = *o, .paths = paths, .sides = sides};
    arena_init(&t->arena);
    TRY(prepare_training(t, err));
    TRY(engine_open(&engine, err));
    for (unsigned i = 0; i < 2; i++)
        TRY(train_side(t, i, engine, err));
    if (t->num_compared != t->num_weights)
        return fail(err, ERR_UNSUPPORTED, "A trains %zu tensors, B only %zu of them",
                    t->num_weights, t->num_compared);
    find_first(t);
    t->seconds = seconds_now() - start;
    return OK;
}
