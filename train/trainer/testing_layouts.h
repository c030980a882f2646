/* testing_layouts.h - layouts of up to eight ranks train as one rank does: in f64, each step and
 * all weights after 20 steps. A part of them, spread over all; FERRY_TEST_ALL=1: all. Tests only.
 */
#ifndef FERRY_TRAIN_TRAINER_TESTING_LAYOUTS_H
#define FERRY_TRAIN_TRAINER_TESTING_LAYOUTS_H

#include <math.h>
#include <stdlib.h>

#include "ckpt/testing_view.h"
#include "common/count.h"
#include "common/memory.h"
#include "train/trainer/testing_step.h"

enum { LAYERS = 8, MICRO_BATCHES = 4, MAX_STEPS = 20, MAX_TENSORS = 1024, CHOSEN = 30 };

static const double tolerance = 1e-10;

/* ---- a run ---- */

/* The shape of a micro-batch, and how many steps are made. */
struct size {
    uint64_t sequences, length;
    unsigned steps;
};

struct stream {
    const struct size *size;
    const struct model *model;
    int32_t *ids, *targets;
    double *weights;
    uint64_t *samples, first;
};

static void stream_open(struct stream *x, const struct test_session *s, const struct size *size)
{
    const uint64_t tokens = size->sequences * size->length;
    *x = (struct stream){.size = size,
                         .model = &s->model,
                         .ids = must_calloc(tokens, sizeof *x->ids),
                         .targets = must_calloc(tokens, sizeof *x->targets),
                         .weights = must_calloc(tokens, sizeof *x->weights),
                         .samples = must_calloc(size->sequences, sizeof *x->samples)};
}

static void stream_close(struct stream *x)
{
    free(x->ids);
    free(x->targets);
    free(x->weights);
    free(x->samples);
}

static enum status next_batch(void *context, uint64_t number, struct micro_batch *b,
                              struct error *ignored)
{
    struct stream *x = context;
    const uint64_t length = x->size->length, tokens = x->size->sequences * length,
                   first = (x->first + number) * tokens;
    (void)ignored;
    for (uint64_t i = 0; i < tokens; i++) {
        x->ids[i] = (int32_t)(random_uniform(7, first + i) * (double)x->model->config.vocab_size);
        x->targets[i] =
            (int32_t)(random_uniform(8, first + i) * (double)x->model->config.vocab_size);
        x->weights[i] = 1.0 / (double)(tokens * MICRO_BATCHES);
        x->samples[i / length] = (first + i) / length;
    }
    *b = (struct micro_batch){.batch = {.num_sequences = x->size->sequences,
                                        .length = length,
                                        .ids = x->ids,
                                        .targets = x->targets,
                                        .weights = x->weights,
                                        .samples = x->samples},
                              .loss_scale = 1};
    return OK;
}

static enum status run_steps(struct test_session *s, const struct size *size,
                             struct step_result *results)
{
    struct stream x;
    enum status st = OK;
    stream_open(&x, s, size);
    for (unsigned k = 0; k < size->steps && !st; k++) {
        const struct step_control c = {
            .lr = 1e-3, .weight_decay = 0.1, .update = k + 1, .factor = 1, .clip = 0.5};
        x.first = k * MICRO_BATCHES;
        st = step_run(&s->step, MICRO_BATCHES, false, next_batch, &x, &err);
        if (!st) st = step_update(&s->step, &c, &err);
        if (!st) st = step_wait(&s->step, &results[k], &err);
    }
    stream_close(&x);
    return st;
}

/* ---- one rank ---- */

struct trained {
    const char *name;
    uint64_t numel;
    double *values;
};

struct reference {
    struct step_result results[MAX_STEPS];
    struct trained tensors[MAX_TENSORS];
    size_t count;
};

typedef enum status visit_element(void *context, const char *tensor, uint64_t at, double value);

/* Elements of this rank's part of each tensor, by their places in the whole. */
static enum status visit_weights(const struct test_session *s, visit_element *visit, void *context)
{
    const struct parameters *p = &s->model.parameters;
    uint64_t a, b;
    for (size_t i = 0; i < p->count; i++) {
        const struct parameter *x = &p->items[i];
        for (uint64_t t = 0; x->tensors && t < x->num_tensors; t++)
            for (unsigned k = 0; k < x->cut->count; k++)
                for (uint64_t e = 0; e < pair_count(&x->cut->pairs[k]); e++) {
                    pair_element(&x->cut->pairs[k], e, &a, &b);
                    b += test_first(&s->step, x) + t * (x->numel / x->num_tensors);
                    TRY(visit(context, x->tensors[t], a, test_get(&s->step, VALUE_PARAMETER, b)));
                }
    }
    return OK;
}

static struct trained *find_tensor(struct reference *r, const char *name)
{
    for (size_t i = 0; i < r->count; i++)
        if (strcmp(r->tensors[i].name, name) == 0) return &r->tensors[i];
    return NULL;
}

static enum status keep_element(void *context, const char *tensor, uint64_t at, double value)
{
    struct reference *r = context;
    struct trained *t = find_tensor(r, tensor);
    if (!t) {
        t = &r->tensors[r->count++];
        assert_true(r->count < MAX_TENSORS);
        *t = (struct trained){.name = strdup(tensor)};
    }
    if (at >= t->numel) {
        t->values = must_realloc(t->values, (at + 1) * 2 * sizeof *t->values);
        t->numel = at + 1;
    }
    t->values[at] = value;
    return OK;
}

static inline void release_reference(struct reference *r)
{
    for (size_t i = 0; i < r->count; i++) {
        free((char *)(uintptr_t)r->tensors[i].name);
        free(r->tensors[i].values);
    }
    free(r);
}

/* ---- the comparison ---- */

static bool near(double got, double want)
{
    return fabs(got - want) <= tolerance * fabs(want);
}

static enum status compare_element(void *context, const char *tensor, uint64_t at, double value)
{
    const struct trained *t = find_tensor(context, tensor);
    if (!t) return fail(&err, DIFFERENT, "%s: one rank has none", tensor);
    if (at >= t->numel || fabs(value - t->values[at]) <= tolerance) return OK; /* or padding */
    return fail(&err, DIFFERENT, "%s[%lu] is %.15g, not %.15g", tensor, (unsigned long)at, value,
                t->values[at]);
}

static enum status compare_results(const struct step_result *got, const struct step_result *want,
                                   unsigned steps)
{
    for (unsigned i = 0; i < steps; i++)
        if (!near(got[i].loss, want[i].loss) || !near(got[i].grad_norm, want[i].grad_norm) ||
            !near(got[i].params_norm, want[i].params_norm) || got[i].skipped)
            return fail(&err, DIFFERENT,
                        "step %u: loss %.15g, norm %.15g; of one rank %.15g, %.15g", i + 1,
                        got[i].loss, got[i].grad_norm, want[i].loss, want[i].grad_norm);
    return OK;
}

/* ---- layouts ---- */

struct layout_case {
    struct model_options options;
    struct recompute_options recompute;
    bool shards;
};

static void describe(const struct layout_case *c, char text[128])
{
    const struct layout_options *l = &c->options.layout;
    snprintf(text, 128, "tp%lu%s pp%lu vpp%lu dp%lu%s ep%lu etp%lu recompute %d",
             (unsigned long)l->tp, c->options.sequence_parallel ? " sp" : "", (unsigned long)l->pp,
             (unsigned long)l->virtual_stages, (unsigned long)l->dp, c->shards ? " sharded" : "",
             (unsigned long)l->ep, (unsigned long)l->etp, (int)c->recompute.granularity);
}

static const struct recompute_options policies[] = {
    {.granularity = RECOMPUTE_NONE, .num_layers = 1},
    {.granularity = RECOMPUTE_SELECTIVE, .modules = RECOMPUTE_NORMS | RECOMPUTE_MLP},
    {.granularity = RECOMPUTE_FULL, .num_layers = 1},
};

static bool is_possible(const struct layout_options *l, bool sp, bool has_experts)
{
    if (l->tp * l->pp * l->dp > 8 || l->tp * l->pp * l->dp == 1) return false;
    if ((sp && l->tp == 1) || (l->virtual_stages > 1 && l->pp == 1)) return false;
    if (!has_experts) return l->ep == 1 && l->etp == l->tp;
    return l->tp * l->dp % (l->ep * l->etp) == 0;
}

/* All layouts of up to eight ranks; returns their number. list: NULL: they are counted. */
static size_t list_layouts(bool has_experts, struct layout_case *list)
{
    static const unsigned sizes[] = {1, 2, 4};
    size_t count = 0;
    for (unsigned i = 0; i < 3 * 3 * 3 * 2 * 2 * 2 * 2 * 2 * 3; i++) {
        unsigned n = i;
        const unsigned tp = sizes[n % 3], pp = sizes[n / 3 % 3], dp = sizes[n / 9 % 3];
        n /= 27;
        const bool sp = n % 2;
        const struct layout_options l = {.tp = tp,
                                         .pp = pp,
                                         .dp = dp,
                                         .virtual_stages = 1 + n / 2 % 2,
                                         .ep = 1 + n / 4 % 2,
                                         .etp = n / 8 % 2 ? 1 : tp};
        const bool shards = n / 16 % 2;
        if ((n / 8 % 2 && tp == 1) || (shards && dp == 1) || !is_possible(&l, sp, has_experts))
            continue;
        if (list)
            list[count] =
                (struct layout_case){{.elem = ELEM_F64, .layout = l, .sequence_parallel = sp},
                                     policies[n / 32 % 3],
                                     shards};
        count++;
    }
    return count;
}

static void eight_layers(struct model_config *c)
{
    c->num_layers = LAYERS;
    c->num_query_groups = c->num_attention_heads;
}

static struct step_options options_of(const struct size *size)
{
    struct step_options o = test_step_options(size->sequences, size->length);
    o.schedule = SCHEDULE_1F1B;
    o.micro_batches = MICRO_BATCHES;
    o.training.hidden_dropout = 0.1;
    return o;
}

static inline struct reference *make_reference(const char *model, const struct size *size)
{
    struct reference *r = must_calloc(1, sizeof *r);
    const struct step_options o = options_of(size);
    struct test_session s;
    test_session_open(&s, model, ELEM_F64, &o, eight_layers);
    assert_ok(run_steps(&s, size, r->results));
    assert_ok(visit_weights(&s, keep_element, r));
    test_session_close(&s);
    return r;
}

/* Whether it trains as one rank does; what differs is printed. */
static inline bool train_layout(struct reference *r, const char *model, const struct size *size,
                                const struct layout_case *c)
{
    struct model_options options = c->options;
    struct step_options o = options_of(size);
    struct step_result results[MAX_STEPS];
    struct test_session s;
    const struct group_sizes sizes = model_group_sizes(&options);
    char name[128];
    o.recompute = c->recompute;
    o.shards_states = c->shards;
    o.bucket_numel = 5000; /* several, of parts of parameters */
    describe(c, name);
    test_session_read(&s, model);
    eight_layers(&s.config);
    options.config = &s.config;
    assert_ok(comm_local_open(&s.comm, groups_world_size(&sizes), &err));
    enum status st = test_session_start(&s, &options, &o, false);
    if (!st) st = run_steps(&s, size, results);
    if (!st) st = compare_results(results, r->results, size->steps);
    if (!st) st = visit_weights(&s, compare_element, r);
    if (!test_session_end(&s, st)) return true;
    print_error("%s, %s: %s\n", model, name, err.text);
    return false;
}

/* Spread over the list, each once. */
static inline void train_layouts(const char *model, bool has_experts)
{
    const struct size size = {4, 8, MAX_STEPS};
    const size_t count = list_layouts(has_experts, NULL);
    struct layout_case *list = must_calloc(count, sizeof *list);
    struct reference *r = make_reference(model, &size);
    const size_t most = getenv("FERRY_TEST_ALL") ? count : test_fewest() ? CHOSEN / 10 : CHOSEN;
    (void)list_layouts(has_experts, list);
    assert_true(count > CHOSEN && count % 101);
    size_t failed = 0;
    for (size_t i = 0; i < most; i++)
        failed += !train_layout(r, model, &size, &list[i * 101 % count]);
    release_reference(r);
    free(list);
    if (failed) fail_msg("%s: %zu of %zu layouts train otherwise", model, failed, most);
}

#endif
