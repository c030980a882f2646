/* testing_layouts.h - layouts of up to eight ranks train as one rank does: in
 * f64, each step and all weights after 20 steps. Tests only.
 *
 * Without FERRY_TEST_SHARE: CHOSEN layouts spread over all, and FERRY_TEST_ALL=1
 * takes all. With a share: a share of few layouts (choose_pairs) in which each
 * pair of values of two axes meets. */
#ifndef FERRY_TRAIN_TRAINER_TESTING_LAYOUTS_H
#define FERRY_TRAIN_TRAINER_TESTING_LAYOUTS_H

#include <stdlib.h>

#include "common/count.h"
#include "train/trainer/testing_reference.h"

enum { MICRO_BATCHES = 4, MAX_STEPS = REFERENCE_STEPS, CHOSEN = 30 };

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

/* All layouts of up to eight ranks; returns their number. list: NULL: they are
 * counted. */
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

static uint64_t num_layers = 8; /* of all models here */

static void set_layers(struct model_config *c)
{
    c->num_layers = num_layers;
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
    test_session_open(&s, model, ELEM_F64, &o, set_layers);
    assert_ok(run_steps(&s, size, r->results));
    reference_keep(r, &s);
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
    set_layers(&s.config);
    options.config = &s.config;
    assert_ok(comm_local_open(&s.comm, groups_world_size(&sizes), &err));
    enum status st = test_session_start(&s, &options, &o, false);
    if (!st) st = run_steps(&s, size, results);
    if (!st) st = compare_steps(results, r->results, size->steps);
    if (!st) st = reference_compare(r, &s);
    if (!test_session_end(&s, st)) return true;
    print_error("%s, %s: %s\n", model, name, err.text);
    return false;
}

/* ---- layouts that pair all values of two axes ---- */

enum { NUM_AXES = 9, MOST_PER_AXIS = 5 };

/* The value of each axis of a layout, below MOST_PER_AXIS. */
static void values_of(const struct layout_case *c, unsigned values[NUM_AXES])
{
    const struct layout_options *l = &c->options.layout;
    const unsigned all[NUM_AXES] = {(unsigned)l->tp,
                                    (unsigned)l->pp,
                                    (unsigned)l->dp,
                                    (unsigned)l->virtual_stages,
                                    (unsigned)l->ep,
                                    l->etp != l->tp,
                                    c->shards,
                                    c->options.sequence_parallel,
                                    (unsigned)c->recompute.granularity};
    for (unsigned i = 0; i < NUM_AXES; i++) {
        assert_true(all[i] < MOST_PER_AXIS);
        values[i] = all[i];
    }
}

typedef bool pair_seen[NUM_AXES][MOST_PER_AXIS][NUM_AXES][MOST_PER_AXIS];

/* Number of pairs of values that the layout adds to those seen; mark: marks
 * them as seen. */
static unsigned new_pairs(const struct layout_case *c, pair_seen seen, bool mark)
{
    unsigned values[NUM_AXES], count = 0;
    values_of(c, values);
    for (unsigned a = 0; a < NUM_AXES; a++)
        for (unsigned b = a + 1; b < NUM_AXES; b++) {
            bool *at = &seen[a][values[a]][b][values[b]];
            count += !*at;
            *at = *at || mark;
        }
    return count;
}

/* Moves layouts to the front of the list until they have each pair of values
 * that any layout has; returns their number. Greedy: the next layout adds most
 * pairs. */
static size_t choose_pairs(struct layout_case *list, size_t count)
{
    static pair_seen seen;
    memset(seen, 0, sizeof seen);
    for (size_t n = 0; n < count; n++) {
        size_t best = n;
        for (size_t i = n + 1; i < count; i++)
            if (new_pairs(&list[i], seen, false) > new_pairs(&list[best], seen, false)) best = i;
        if (!new_pairs(&list[best], seen, true)) return n;
        const struct layout_case chosen = list[best];
        list[best] = list[n];
        list[n] = chosen;
    }
    return count;
}

/* Moves `most` layouts, spread over the list, to its front. */
static void spread_layouts(struct layout_case *list, size_t count, size_t most)
{
    struct layout_case *spread = must_calloc(count, sizeof *spread);
    assert_true(count % 101);
    for (size_t i = 0; i < count; i++)
        spread[i] = list[i * 101 % count];
    memcpy(list, spread, most * sizeof *list);
    free(spread);
}

static inline void train_layouts(const char *model, bool has_experts)
{
    const struct size size = {4, 8, MAX_STEPS};
    const size_t count = list_layouts(has_experts, NULL);
    struct layout_case *list = must_calloc(count, sizeof *list);
    struct reference *r = make_reference(model, &size);
    size_t failed = 0, most = getenv("FERRY_TEST_ALL") ? count : CHOSEN;
    (void)list_layouts(has_experts, list);
    assert_true(count > CHOSEN);
    if (test_is_share())
        most = choose_pairs(list, count);
    else
        spread_layouts(list, count, most);
    for (size_t i = 0; i < most; i++)
        if (test_takes(i, most)) failed += !train_layout(r, model, &size, &list[i]);
    reference_release(r);
    free(r);
    free(list);
    if (failed) fail_msg("%s: %zu of %zu layouts train otherwise", model, failed, most);
}

#endif
