/* Steps with activations computed again, beside steps that keep them: the same
 * bits in less memory. And sums over micro-batches. */
#include "train/backward/recompute.h"

#include <math.h>
#include <stdlib.h>

#include "common/count.h"
#include "train/trainer/testing_step.h"

enum { STEPS = 3, MICRO_BATCHES = 2, SEQUENCES = 2, LENGTH = 12 };

/* ---- the same bits ---- */

struct policy {
    const char *name;
    struct recompute_options options;
};

/* The first keeps everything. */
static const struct policy policies[] = {
    {"none", {.granularity = RECOMPUTE_NONE}},
    {"core attention", {.granularity = RECOMPUTE_SELECTIVE, .modules = RECOMPUTE_CORE_ATTENTION}},
    {"norms", {.granularity = RECOMPUTE_SELECTIVE, .modules = RECOMPUTE_NORMS}},
    {"activations", {.granularity = RECOMPUTE_SELECTIVE, .modules = RECOMPUTE_ACTIVATIONS}},
    {"the MLP", {.granularity = RECOMPUTE_SELECTIVE, .modules = RECOMPUTE_MLP}},
    {"all modules", {.granularity = RECOMPUTE_SELECTIVE, .modules = 15}},
    {"each layer", {.granularity = RECOMPUTE_FULL, .num_layers = 1}},
    {"groups of two layers", {.granularity = RECOMPUTE_FULL, .num_layers = 2}},
    {"one group", {.granularity = RECOMPUTE_FULL, .num_layers = 9}},
    {"the first layer",
     {.granularity = RECOMPUTE_FULL, .method = RECOMPUTE_BLOCK, .num_layers = 1}},
    {"two layers", {.granularity = RECOMPUTE_FULL, .method = RECOMPUTE_BLOCK, .num_layers = 2}},
};

/* Results of three steps. */
struct outcome {
    struct step_result results[STEPS];
    char *regions[NUM_VALUE_CLASSES];
    uint64_t bytes[NUM_VALUE_CLASSES];
};

static void release_outcome(struct outcome *o)
{
    for (unsigned k = 0; k < NUM_VALUE_CLASSES; k++)
        free(o->regions[k]);
}

/* Gradients of the last step, and all that the optimizer writes. */
static void take_regions(struct outcome *o, const struct step *s)
{
    for (unsigned k = 0; k <= VALUE_MOMENT_2; k++) {
        o->bytes[k] = s->region_bytes[k];
        o->regions[k] = malloc(o->bytes[k] + 1);
        if (o->bytes[k]) memcpy(o->regions[k], s->regions[k], o->bytes[k]);
    }
}

static void run_step(struct test_session *s, unsigned step, struct step_result *r)
{
    const struct step_control c = {
        .lr = 1e-2, .weight_decay = 0.1, .update = step + 1, .factor = 1, .clip = 1};
    for (unsigned k = 0; k < MICRO_BATCHES; k++) {
        struct test_tokens t;
        const uint64_t first = (step * MICRO_BATCHES + k) * SEQUENCES;
        const double weight = 1.0 / (SEQUENCES * LENGTH * MICRO_BATCHES);
        const struct micro_batch b = {.batch = test_tokens_make(&t, s, SEQUENCES, first, weight),
                                      .loss_scale = 1,
                                      .router_scale = 1.0 / MICRO_BATCHES,
                                      .first = k == 0};
        test_micro_batch(&s->step, &b);
    }
    assert_ok(step_update(&s->step, &c, &err));
    assert_ok(step_wait(&s->step, r, &err));
    assert_false(r->skipped);
}

static struct outcome train(const char *model, enum elem_type elem, const struct policy *p)
{
    struct step_options o = test_step_options(SEQUENCES, LENGTH);
    struct test_session s;
    struct outcome out = {0};
    o.recompute = p->options;
    o.training = (struct training_shape){.hidden_dropout = 0.1,
                                         .attention_dropout = 0.1,
                                         .dropout_seed = 3,
                                         .balance_coefficient = 0.01,
                                         .z_coefficient = 0.01,
                                         .balance_length = LENGTH};
    test_session_open(&s, model, elem, &o, NULL);
    for (unsigned i = 0; i < STEPS; i++)
        run_step(&s, i, &out.results[i]);
    take_regions(&out, &s.step);
    test_session_close(&s);
    return out;
}

static void compare(const struct outcome *kept, const struct outcome *again, const char *model,
                    const char *policy)
{
    for (unsigned i = 0; i < STEPS; i++) {
        const struct step_result *a = &kept->results[i], *b = &again->results[i];
        if (a->loss != b->loss || a->balance != b->balance || a->z_loss != b->z_loss ||
            a->grad_norm != b->grad_norm)
            fail_msg("%s, %s recomputed: step %u differs", model, policy, i + 1);
    }
    for (unsigned k = 0; k <= VALUE_MOMENT_2; k++) {
        assert_int_equal(kept->bytes[k], again->bytes[k]);
        if (memcmp(kept->regions[k], again->regions[k], kept->bytes[k]))
            fail_msg("%s, %s recomputed: region %u differs", model, policy, k);
    }
}

static void train_each_way(const char *model, enum elem_type elem)
{
    struct outcome kept = train(model, elem, &policies[0]);
    assert_true(kept.results[2].loss != kept.results[0].loss);
    for (size_t i = 1; i < COUNT(policies); i++) {
        struct outcome again = train(model, elem, &policies[i]);
        compare(&kept, &again, model, policies[i].name);
        release_outcome(&again);
    }
    release_outcome(&kept);
}

static void recomputed_steps_have_the_same_bits(void **state)
{
    static const char *const models[] = {"llama3.1", "gpt2", "mixtral", "qwen3-moe"};
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++) {
        if (!test_takes(i, COUNT(models))) continue;
        train_each_way(models[i], ELEM_F32);
        train_each_way(models[i], ELEM_BF16);
    }
}

/* ---- less memory ---- */

static void deep(struct model_config *c)
{
    c->num_layers = 6;
}

/* Layouts of which one rank is measured. */
struct layout_case {
    const char *name, *model;
    struct layout_options layout;
    bool sequence_parallel;
};

static const struct layout_case layouts[] = {
    {.name = "alone", .model = "llama3.1"},
    {.name = "alone", .model = "gpt2"},
    {.name = "alone", .model = "mixtral"},
    {.name = "tp2", .model = "llama3.1", .layout = {.tp = 2}},
    {.name = "tp2 sp", .model = "gpt2", .layout = {.tp = 2}, .sequence_parallel = true},
    {.name = "tp2 sp ep2",
     .model = "mixtral",
     .layout = {.tp = 2, .ep = 2, .etp = 1},
     .sequence_parallel = true},
};

/* Rank 0 of a layout, which is measured and never run. */
static void simulate(struct test_session *s, const struct layout_case *l, const struct policy *p)
{
    struct step_options o = test_step_options(1, 128);
    struct model_options options = {.elem = ELEM_BF16,
                                    .layout = l->layout,
                                    .sequence_parallel = l->sequence_parallel,
                                    .config = &s->config};
    o.recompute = p->options;
    test_session_read(s, l->model);
    deep(&s->config);
    assert_ok(model_simulate(&s->model, NULL, &options, 0, &err));
    assert_ok(step_make(&s->step, &s->model, &o, &err));
}

static void forget(struct test_session *s)
{
    step_release(&s->step);
    model_close(&s->model);
    opened_close(&s->opened);
}

/* Bytes of activations; *calls: of the program. */
static uint64_t activations_of(const struct layout_case *l, const struct policy *p, size_t *calls)
{
    struct test_session s;
    simulate(&s, l, p);
    const uint64_t bytes = s.step.region_bytes[VALUE_SCRATCH];
    *calls = s.step.chunks[0].micro[0].program.num_calls;
    forget(&s);
    return bytes;
}

static void recomputed_activations_take_no_memory(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT(layouts); k++) {
        size_t calls, more;
        const uint64_t kept = activations_of(&layouts[k], &policies[0], &calls);
        for (size_t i = 1; i < COUNT(policies); i++) {
            const uint64_t bytes = activations_of(&layouts[k], &policies[i], &more);
            if (bytes >= kept || more <= calls)
                fail_msg("%s %s, %s recomputed: %zu calls, %zu bytes; kept: %zu calls, %zu bytes",
                         layouts[k].model, layouts[k].name, policies[i].name, more, (size_t)bytes,
                         calls, (size_t)kept);
        }
    }
}

/* The copies of rows that forward calls of layers make, and those that are made
 * of them again. */
static void count_copies(const struct layout_case *l, unsigned *once, unsigned *again)
{
    struct test_session s;
    simulate(&s, l, &policies[0]);
    const struct program *p = &s.step.chunks[0].micro[MICRO_FIRST].program;
    for (size_t k = 0; k < p->num_calls; k++) {
        const struct call *c = &p->calls[k];
        if (!(op_row(c->op)->flags & OP_IS_COPY) || c->layer < 0) continue;
        *again += strstr(c->label, ".again") != NULL;
        if (k >= s.step.chunks[0].forward_calls || p->values[c->out[0]].type == OPERAND_INT)
            continue;
        *once += 1;
        if (p->values[c->out[0]].last >= s.step.chunks[0].forward_calls)
            fail_msg("%s %s: %s is kept", l->model, l->name, p->values[c->out[0]].name);
    }
    forget(&s);
}

/* Rows in the order of experts, or of other ranks: copies of what is kept
 * anyway. */
static void what_only_moves_numbers_is_not_kept(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(layouts); i++) {
        unsigned once = 0, again = 0;
        count_copies(&layouts[i], &once, &again);
        const bool has_copies =
            strcmp(layouts[i].model, "mixtral") == 0 || layouts[i].sequence_parallel;
        assert_int_equal(once > 0, has_copies);
        assert_int_equal(again > 0, has_copies);
    }
}

static void groups_of_no_layers_are_refused(void **state)
{
    const struct recompute_options o = {.granularity = RECOMPUTE_FULL};
    struct program p = {0};
    (void)state;
    assert_fails(recompute(&p, &o, 0, &err), ERR_USAGE,
                 "--recompute-num-layers 0: expected at least 1");
}

/* ---- sums over micro-batches ---- */

/* The gradients of four sequences, `at_once` in a micro-batch; on the heap. */
static double *summed(const char *model, uint64_t at_once, double *loss, uint64_t *count)
{
    struct step_options o = test_step_options(at_once, LENGTH);
    struct test_session s;
    o.training.hidden_dropout = o.training.attention_dropout = 0.1;
    test_session_open(&s, model, ELEM_F64, &o, NULL);
    for (uint64_t i = 0; i < 4; i += at_once) {
        struct test_tokens t;
        const struct micro_batch b = {
            .batch = test_tokens_make(&t, &s, at_once, i, 1), .loss_scale = 0.5, .first = i == 0};
        test_micro_batch(&s.step, &b);
    }
    assert_ok(step_wait_loss(&s.step, loss, &err));
    *count = s.step.numel;
    double *gradients = malloc(*count * sizeof *gradients);
    memcpy(gradients, s.step.regions[VALUE_GRADIENT], *count * sizeof *gradients);
    test_session_close(&s);
    return gradients;
}

static void gradients_are_summed_over_micro_batches(void **state)
{
    static const char *const models[] = {"qwen3", "gpt2", "mixtral"};
    (void)state;
    for (size_t k = 0; k < COUNT(models); k++) {
        double loss[2], off = 0, whole = 0;
        uint64_t count;
        double *once = summed(models[k], 4, &loss[0], &count);
        double *four = summed(models[k], 1, &loss[1], &count);
        for (uint64_t i = 0; i < count; i++) {
            off += (once[i] - four[i]) * (once[i] - four[i]);
            whole += once[i] * once[i];
        }
        assert_true(whole > 0 && loss[0] > 0);
        if (!(off <= 1e-24 * whole) || !(fabs(loss[0] - loss[1]) <= 1e-12 * loss[0]))
            fail_msg("%s: gradients of norm %g differ by %g, losses by %g", models[k], sqrt(whole),
                     sqrt(off), loss[0] - loss[1]);
        free(once);
        free(four);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recomputed_steps_have_the_same_bits),
        cmocka_unit_test(recomputed_activations_take_no_memory),
        cmocka_unit_test(what_only_moves_numbers_is_not_kept),
        cmocka_unit_test(groups_of_no_layers_are_refused),
        cmocka_unit_test(gradients_are_summed_over_micro_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
