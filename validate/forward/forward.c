#include "validate/forward/forward.h"
#include "convert/format.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/clock.h"
#include "common/map.h"
#include "common/progress.h"
#include "validate/forward/forward_internal.h"

/* Context of the visitors of a run's outputs. */
struct taking {
    struct forward *f;
    struct forward_outputs *to;
    bool is_part; /* ops of one layer: an op that only one side has is not an error */
};

static struct forward_output *find_output(const struct forward_outputs *o, const char *name)
{
    for (size_t i = 0; i < o->count; i++)
        if (strcmp(o->items[i].name, name) == 0) return &o->items[i];
    return NULL;
}

static struct forward_output *add_forward_output(struct forward *f, struct forward_outputs *to,
                                                 const char *name, const struct array *a)
{
    struct forward_output *o = ARENA_PUSH(&f->arena, to->items, to->count, to->capacity);
    *o = (struct forward_output){.name = arena_printf(&f->arena, "%s", name), .a = *a};
    return o;
}

static struct array array_of(const struct collected *c)
{
    return (struct array){
        .data = c->data, .wide = c->dtype == DT_F64, .rows = c->rows, .columns = c->columns};
}

static double loss_of(const struct forward *f, const struct array *logits)
{
    return logits_loss(logits, f->ids, f->batch.num_sequences, f->batch.length);
}

/* ---- A ---- */

static enum status keep_output(void *context, const struct collected *c, struct error *err)
{
    struct taking *t = context;
    struct array a = array_of(c);
    const uint64_t bytes = collected_bytes(c);
    struct forward_output *o = add_forward_output(t->f, t->to, c->name, &a);
    o->values = malloc(bytes + 1);
    o->a.data = o->values;
    if (!o->values) return fail(err, ERR_MEMORY, "no memory to keep %s of A", c->name);
    memcpy(o->values, c->data, bytes);
    if (strcmp(c->name, "logits") == 0) t->f->losses[0] = loss_of(t->f, &a);
    return OK;
}

/* The embedding comes before all experts, so routing cannot change it. */
static bool may_have_outliers(const struct forward_output *o)
{
    return strcmp(o->name, "hidden.0") != 0;
}

static enum status measure_output(void *context, const struct collected *c, struct error *err)
{
    struct taking *t = context;
    struct array second = array_of(c);
    struct yardstick y = t->f->yardstick;
    struct forward_output *o = find_output(t->to, c->name);
    if (!o || o->a.rows != c->rows || o->a.columns != c->columns)
        return fail(err, ERR_OURS, "the second run of A has another shape of %s", c->name);
    y.experts &= may_have_outliers(o);
    o->second_run = difference_of_second_run(&y, &o->a, &second);
    o->rounding = rounding_of(&y, &o->second_run);
    return OK;
}

static enum status keep_weight(void *context, const struct tensor_digest *d, struct error *err)
{
    struct taking *t = context;
    (void)err;
    loaded_take(&t->f->loaded, 0, d);
    return OK;
}

/* ---- B ---- */

static enum status compare_weight(void *context, const struct tensor_digest *d, struct error *err)
{
    struct taking *t = context;
    (void)err;
    loaded_take(&t->f->loaded, 1, d);
    return OK;
}

/* Samples logits at an odd step, so that the tokens and positions are mixed. */
static void choose_points(struct forward *f, const struct array *a, const struct array *b)
{
    uint64_t count = a->rows * a->columns, step = (count / MAX_POINTS + 1) | 1;
    f->logits_columns = a->columns;
    for (uint64_t i = 0; i < count && f->num_points < MAX_POINTS; i += step) {
        f->points[f->num_points][0] = (float)array_at(a, i);
        f->points[f->num_points++][1] = (float)array_at(b, i);
    }
}

static void compare_output(struct forward *f, struct forward_output *o, const struct array *b)
{
    o->compared = true;
    o->b = difference_of(&o->a, b, &o->rounding);
    o->agreement = agreement_of(&o->b, &o->rounding);
    if (strcmp(o->name, "logits") == 0) {
        f->logits = logits_compare(&o->a, b);
        f->losses[1] = loss_of(f, b);
        choose_points(f, &o->a, b);
    }
    free(o->values);
    o->values = NULL;
    o->a.data = NULL;
}

static enum status b_has_more(const struct forward *f, const char *name, struct error *err)
{
    return fail(err, ERR_UNSUPPORTED, "B (%s) has %s, A (%s) does not", f->paths[1], name,
                f->paths[0]);
}

static enum status compare_collected(void *context, const struct collected *c, struct error *err)
{
    struct taking *t = context;
    struct array b = array_of(c);
    struct forward_output *o = find_output(t->to, c->name);
    bool same_shape = o && o->a.rows == c->rows && o->a.columns == c->columns;
    if (same_shape)
        compare_output(t->f, o, &b);
    else if (!o && !t->is_part)
        return b_has_more(t->f, c->name, err);
    else if (!t->is_part)
        return fail(err, ERR_UNSUPPORTED,
                    "%s has %" PRIu64 " columns in A (%s), %" PRIu64 " in B (%s)", c->name,
                    o->a.columns, t->f->paths[0], c->columns, t->f->paths[1]);
    return OK;
}

/* Refuses stored outputs that A lacks: B is another model. */
static enum status check_stored(const struct taking *t, struct error *err)
{
    const struct stored *all = &t->f->results->opened.checkpoint.catalog.stored;
    for (size_t i = 0; i < all->num_tensors && !t->is_part; i++)
        if (results_is_output(all->tensors[i].name) && !find_output(t->to, all->tensors[i].name))
            return b_has_more(t->f, all->tensors[i].name, err);
    return OK;
}

static enum status compare_stored(struct taking *t, struct error *err)
{
    TRY(check_stored(t, err));
    for (size_t i = 0; i < t->to->count; i++) {
        struct forward_output *o = &t->to->items[i];
        double *values;
        if (!results_have(t->f->results, o->name) || strcmp(o->name, "loss") == 0) continue;
        TRY(results_read(t->f->results, o->name, o->a.rows, o->a.columns, &values, err));
        compare_output(t->f, o, &(struct array){values, true, o->a.rows, o->a.columns});
        free(values);
    }
    return OK;
}

/* ---- the loss: from a side's own logits, or stored ---- */

static enum status add_loss(struct forward *f, struct error *err)
{
    struct array a = {.wide = true, .rows = 1, .columns = 1};
    double *value;
    if (isnan(f->losses[0])) return OK;
    value = malloc(sizeof *value);
    if (!value) return fail(err, ERR_MEMORY, "no memory for the loss");
    *value = f->losses[0];
    a.data = value;
    add_forward_output(f, &f->outputs, "loss", &a)->values = value;
    return OK;
}

/* If logits differ by at most r, their log-sum-exp differs by at most r, and
 * the loss by at most 2 r; 0x1p-22 allows for a loss rounded to f32.
 * compare_loss() adds the share of outlier tokens, once B's logits are known. */
static void measure_loss(struct forward *f)
{
    const struct forward_output *logits = find_output(&f->outputs, "logits");
    struct forward_output *o = find_output(&f->outputs, "loss");
    if (!o) return;
    o->rounding.max = 2 * logits->rounding.max + fabs(f->losses[0]) * 0x1p-22;
    o->rounding.rms = o->rounding.max;
}

static enum status compare_loss(struct forward *f, struct error *err)
{
    const struct forward_output *logits = find_output(&f->outputs, "logits");
    struct forward_output *o = find_output(&f->outputs, "loss");
    if (o && f->results && results_have(f->results, "loss")) {
        double *stored;
        TRY(results_read(f->results, "loss", 1, 1, &stored, err));
        f->losses[1] = *stored;
        free(stored);
    }
    if (o && logits->compared && logits->agreement != DISAGREE && logits->b.rows_beyond)
        o->rounding.max = o->rounding.rms +=
            2 * logits->b.max * (double)logits->b.rows_beyond / (double)logits->b.rows;
    if (o && (f->logits.rows || !isnan(f->losses[1])))
        compare_output(f, o, &(struct array){&f->losses[1], true, 1, 1});
    return OK;
}

/* ---- runs ---- */

static enum status only_batch(void *context, uint64_t number, struct batch *b, bool *more,
                              struct error *err)
{
    const struct taking *t = context;
    (void)err;
    *b = t->f->batch;
    *more = number == 0;
    return OK;
}

/* Source options of one side. A Hugging Face folder has its own config.json and
 * no iterations; the vocabulary size is that of sides_open(). */
static struct source_options source_for(const char *path, const struct engine_model *model,
                                        const struct side *opened)
{
    struct source_options out = model->source;
    const struct format *format = format_of_path(path, NULL, NULL);
    if (format && format->has & FORMAT_CONFIG_JSON) {
        out.hf_config = NULL;
        out.has_ckpt_step = false;
    } else if (opened) {
        out.true_vocab_size = opened->checkpoint.config.vocab_size;
    }
    return out;
}

/* A run: of A, of A a second time, or of B. */
struct running {
    const struct engine *engine;
    const struct forward_options *options;
    const struct side *sides;
    struct pass_options pass;
};

/* Visitors of the outputs of a run, and of the weights in memory before it
 * (NULL: none). */
struct visitors {
    pass_visit *visit;
    weights_visit *visit_weights;
};

static enum elem_type elem_of_run(const struct forward *f, enum forward_run run)
{
    return run == SECOND_OF_A ? f->yardstick.elem : f->elem;
}

const char *forward_loading_text(struct forward *f, enum forward_run run, bool for_ops)
{
    return arena_printf(&f->arena, "loading %d of %d: %c in %s%s", (int)run + 1, f->results ? 2 : 3,
                        run == RUN_OF_B ? 'B' : 'A', elem_names[elem_of_run(f, run)],
                        for_ops ? ", again for the ops" : "");
}

static enum status run_side(const struct running *r, enum forward_run run,
                            const struct visitors *visitors, struct taking *t, struct error *err)
{
    unsigned side = run == RUN_OF_B;
    const char *path = t->f->paths[side];
    const struct engine_model *model = &r->options->model;
    struct forward_request q = {.model = *model,
                                .pass = r->pass,
                                .shape = t->f->batch,
                                .next = only_batch,
                                .visit = visitors->visit,
                                .visit_weights = visitors->visit_weights,
                                .taking.keeps = visitors->visit == keep_output,
                                .context = t};
    q.model.path = path;
    q.model.source = source_for(path, model, r->sides ? &r->sides[side] : NULL);
    q.model.options.elem = elem_of_run(t->f, run);
    q.model.loading = forward_loading_text(t->f, run, t->is_part);
    q.model.is_known = true;
    enum status st = r->engine->forward(&q, err);
    return st ? fail_in(err, "%c", side ? 'B' : 'A') : OK;
}

/* NaN in the outputs of B alone is a difference, not an error. */
static enum status run_b(const struct running *r, struct taking *t, struct error *err)
{
    const struct visitors visitors = {compare_collected, t->is_part ? NULL : compare_weight};
    if (t->f->results) return compare_stored(t, err);
    enum status st = run_side(r, RUN_OF_B, &visitors, t, err);
    if (st != ERR_NUMERIC) return st;
    t->f->broken = arena_printf(&t->f->arena, "%s", err->text);
    return OK;
}

/* An outlier token makes outliers of tokens that attend to it, in one layer of
 * A's second run and another of B. So all outputs may have as many outliers as
 * the output with the most. */
static void share_outliers(struct forward *f, struct forward_outputs *list)
{
    for (size_t i = 0; i < list->count; i++)
        f->outliers = max_u64(f->outliers, list->items[i].rounding.outliers);
    for (size_t i = 0; i < list->count; i++)
        if (may_have_outliers(&list->items[i])) list->items[i].rounding.outliers = f->outliers;
}

static enum status run_a(const struct running *r, struct taking *t, struct error *err)
{
    const struct visitors first = {keep_output, t->is_part ? NULL : keep_weight},
                          second = {measure_output, NULL};
    TRY(run_side(r, FIRST_OF_A, &first, t, err));
    TRY(run_side(r, SECOND_OF_A, &second, t, err));
    share_outliers(t->f, t->to);
    return OK;
}

static enum status run_outputs(struct running *r, struct forward *f, struct error *err)
{
    struct taking t = {.f = f, .to = &f->outputs};
    r->pass = (struct pass_options){.logits = true, .hidden = true, .trace_layer = -1};
    TRY(run_a(r, &t, err));
    TRY(add_loss(f, err));
    measure_loss(f);
    TRY(run_b(r, &t, err));
    return compare_loss(f, err);
}

static enum status run_ops(struct running *r, struct forward *f, struct error *err)
{
    struct taking t = {.f = f, .to = &f->ops, .is_part = true};
    r->pass = (struct pass_options){.trace_layer = f->divergence.layer};
    TRY(run_a(r, &t, err));
    return run_b(r, &t, err);
}

/* ---- checks ---- */

static enum status check_config_size(const struct forward *f, const char *what, uint64_t a,
                                     uint64_t b, struct error *err)
{
    if (a == b || !a || !b) return OK;
    return fail(err, ERR_UNSUPPORTED, "A (%s) has %s %" PRIu64 ", B (%s) has %" PRIu64, f->paths[0],
                what, a, f->paths[1], b);
}

static enum status check_sides(const struct forward *f, const struct side *sides, struct error *err)
{
    const struct model_config *a = &sides[0].checkpoint.config, *b = &sides[1].checkpoint.config;
    for (unsigned i = 0; i < 2; i++)
        if (sides[i].stored_only)
            return fail(err, ERR_UNSUPPORTED,
                        "%c (%s) cannot be run: Ferry does not know its model", i ? 'B' : 'A',
                        f->paths[i]);
    TRY(check_config_size(f, "num_layers", a->num_layers, b->num_layers, err));
    TRY(check_config_size(f, "hidden_size", a->hidden_size, b->hidden_size, err));
    return check_config_size(f, "vocab_size", a->vocab_size, b->vocab_size, err);
}

/* The coarsest dtype among tensors stored in two dtypes; F64 if there are none. */
static enum dtype coarsest_of_sides(const struct side *sides)
{
    struct map names = {0};
    size_t at;
    enum dtype coarsest = DT_F64;
    for (size_t i = 0; i < sides[0].num_tensors; i++)
        (void)map_add(&names, sides[0].tensors[i]->name, i, NULL);
    for (size_t i = 0; i < sides[1].num_tensors; i++) {
        const struct tensor *b = sides[1].tensors[i];
        if (!map_get(&names, b->name, &at)) continue;
        enum dtype one = sides[0].tensors[at]->dtype, other = b->dtype;
        if (one == other) continue;
        if (dtype_unit(one) > dtype_unit(coarsest)) coarsest = one;
        if (dtype_unit(other) > dtype_unit(coarsest)) coarsest = other;
    }
    map_release(&names);
    return coarsest;
}

/* Opens A to check it, if it is not open for a comparison of weights. */
static enum status open_a(struct forward *f, const struct engine_model *model, bool *experts,
                          struct error *err)
{
    struct opened o;
    const struct source_options source = source_for(f->paths[0], model, NULL);
    enum status st = opened_open(&o, f->paths[0], &source, model->model_map, false, true, err);
    *experts = !st && o.checkpoint.config.num_experts > 0;
    opened_close(&o);
    return st ? fail_in(err, "A") : OK;
}

static enum status choose_yardstick(struct forward *f, const struct engine_model *model,
                                    const struct side *sides, struct error *err)
{
    bool experts = sides && sides[0].checkpoint.config.num_experts > 0;
    if (!sides) TRY(open_a(f, model, &experts, err));
    struct sides_rounding s = {.computed = f->elem, .by_another = !sides, .experts = experts};
    if (sides)
        s.stored = coarsest_of_sides(sides);
    else
        TRY(results_dtype(f->results, &s.stored, err));
    f->yardstick = yardstick_choose(&s);
    return OK;
}

static enum status prepare_forward(struct forward *f, const char *const paths[2],
                                   const struct forward_options *o, struct results *results,
                                   const struct side *sides, struct error *err)
{
    *f = (struct forward){.paths = {paths[0], paths[1]},
                          .results = results,
                          .elem = o->model.options.elem,
                          .losses = {NAN, NAN},
                          .divergence = {.layer = -1}};
    arena_init(&f->arena);
    loaded_init(&f->loaded);
    if (!results) TRY(check_sides(f, sides, err));
    TRY(choose_yardstick(f, &o->model, sides, err));
    return forward_tokens(f, o, sides, err);
}

static enum status judge_outputs(struct forward *f, struct error *err)
{
    bool any = false;
    for (size_t i = 0; i < f->outputs.count; i++) {
        const struct forward_output *o = &f->outputs.items[i];
        if (!o->compared && !f->results && !f->broken && strcmp(o->name, "loss") != 0)
            return fail(err, ERR_UNSUPPORTED, "A (%s) has %s, B (%s) does not", f->paths[0],
                        o->name, f->paths[1]);
        any |= o->compared;
        if (o->compared && o->agreement > f->agreement) f->agreement = o->agreement;
    }
    if (f->broken) f->agreement = DISAGREE;
    if (any || f->broken) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s has none of the results of %s", f->paths[1], f->paths[0]);
}

enum status forward_run(struct forward *f, const char *const paths[2],
                        const struct forward_options *o, struct results *results,
                        const struct comparison *weights, struct error *err)
{
    const struct side *sides = weights ? weights->sides : NULL;
    struct running r = {.options = o, .sides = sides};
    double start = seconds_now();
    TRY(prepare_forward(f, paths, o, results, sides, err));
    TRY(engine_open(&r.engine, err));
    TRY(run_outputs(&r, f, err));
    loaded_judge(&f->loaded, weights);
    TRY(judge_outputs(f, err));
    divergence_find(f);
    if (f->divergence.layer >= 0) TRY(run_ops(&r, f, err));
    divergence_tell(f);
    f->seconds = seconds_now() - start;
    return OK;
}

static void release_outputs(struct forward_outputs *o)
{
    for (size_t i = 0; i < o->count; i++)
        free(o->items[i].values);
}

void forward_release(struct forward *f)
{
    release_outputs(&f->outputs);
    release_outputs(&f->ops);
    loaded_release(&f->loaded);
    free(f->ids);
    arena_release(&f->arena);
}
