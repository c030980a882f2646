/* checkpoint_test.c - checkpoints of other programs, loaded as a run does and
 * saved as it would. */
#include <signal.h>
#include <sys/resource.h>

#include "common/count.h"
#include "common/text.h"
#include "convert/megatron/optim/rng_read.h"
#include "convert/testing_convert.h"
#include "train/trainer/testing_state.h"
#include "validate/validate_commands.h"

#define MEGATRON "tests/golden/megatron/"
#define PLAIN "tests/golden/megatron-training/fp32-plain-optimizer"
/* The memory that a process of many tests has in use counts, too. */
#define ROOM "--max-memory=4GiB"

static enum status save(struct test_state *x, const char *dir, const struct format *format,
                        const struct checkpoint_target *how)
{
    struct checkpoint_target to = how ? *how : (struct checkpoint_target){.quiet = true};
    to.quiet = true;
    to.dir = dir;
    to.format = format;
    to.maps = &x->maps;
    to.threads = 2;
    return checkpoint_save(&x->s, &to, &err);
}

/* The folder that a root has of the iteration. */
static const char *iteration_in(const char *dir, unsigned n)
{
    return path_join(&scratch, dir, arena_printf(&scratch, "iter_%07u", n));
}

/* Parameter by parameter: other sources have them in another order. */
static void assert_same_parameter(const struct test_state *x, const struct test_state *y,
                                  const struct parameter *p, int kind)
{
    const uint64_t bytes = dtype_bytes(x->s.dtype[kind]);
    const uint64_t weight = dtype_bytes(x->s.dtype[HELD_WEIGHT]);
    size_t at;
    assert_true(map_get(&y->parameters.names, p->name, &at));
    const struct parameter *q = &y->parameters.items[at];
    assert_int_equal(p->numel, q->numel);
    if (memcmp((char *)x->s.data[kind] + p->offset / weight * bytes,
               (char *)y->s.data[kind] + q->offset / weight * bytes, p->numel * bytes))
        fail_msg("%s: other elements in region %d", p->name, kind);
}

static void assert_same_regions(const struct test_state *x, const struct test_state *y)
{
    assert_int_equal(x->parameters.count, y->parameters.count);
    for (int k = 0; k < NUM_HELD; k++) {
        assert_int_equal(!x->s.data[k], !y->s.data[k]);
        for (size_t i = 0; x->s.data[k] && i < x->parameters.count; i++)
            assert_same_parameter(x, y, &x->parameters.items[i], k);
    }
}

static void assert_same_training(const struct training *x, const struct training *y)
{
    struct training_difference *d;
    const size_t n = training_differences(x, y, &scratch, &d);
    if (n) fail_msg("%s: %s and %s", d->field, d->values[0], d->values[1]);
}

/* ---- there and back ---- */

static const struct {
    struct test_loading load;
    bool has_optimizer;
} goldens[] = {
    {{PLAIN, ELEM_F32, false, 0}, true},
    {{PLAIN, ELEM_F32, false, 100}, true}, /* with rows of padding, which were trained */
    {{MEGATRON "llama-HEAD-dp-reshardable-tp2dp2/checkpoint", ELEM_BF16, false, 43}, true},
    {{MEGATRON "llama-HEAD-fully-reshardable-dp2/checkpoint", ELEM_BF16, false, 43}, true},
    {{MEGATRON "llama-0.12.0-model-space-tp2dp2/checkpoint", ELEM_BF16, false, 43}, true},
    {{MEGATRON "llama-HEAD-torch-optimizer-tp2pp2/checkpoint", ELEM_BF16, false, 43}, true},
    {{MEGATRON "mixtral-HEAD-torch-tp2ep2/checkpoint", ELEM_BF16, false, 43}, false},
    {{MEGATRON "gpt2-HEAD-tp2pp2/checkpoint", ELEM_F64, false, 43}, false},
    {{"tests/golden/hf/qwen3-moe", ELEM_F32, false, 0}, false},
};

/* Saves what was loaded, and loads that: all elements and fields are the same. */
static void save_and_load(struct test_state *x, const struct test_loading *load,
                          const struct format *format)
{
    static struct test_state y;
    struct test_loading again = *load;
    const char *dir = in_scratch(format->name);
    assert_ok(save(x, dir, format, NULL));
    again.path = dir;
    assert_ok(test_state_open(&y, &again, &err));
    if (format != &format_hf) assert_same_regions(x, &y);
    assert_null(y.loaded.note);
    assert_true(y.loaded.has_optimizer);
    assert_same_training(&y.loaded.training, &x->loaded.training);
    assert_int_equal(y.s.padded_rows,
                     format == &format_hf ? y.config.vocab_size : x->s.padded_rows);
    test_state_close(&y);
    assert_ok(path_remove(dir, &err));
}

static void what_was_loaded_is_saved(void **state)
{
    const struct format *const formats[] = {&format_torch_dist, &format_torch, &format_hf};
    static struct test_state x;
    (void)state;
    for (size_t i = 0; i < COUNT(goldens); i++) {
        print_message("%s\n", goldens[i].load.path);
        assert_ok(test_state_open(&x, &goldens[i].load, &err));
        assert_int_equal(x.loaded.has_optimizer, goldens[i].has_optimizer);
        assert_int_equal(x.loaded.note == NULL, goldens[i].has_optimizer);
        for (size_t k = 0; k < COUNT(formats); k++)
            save_and_load(&x, &goldens[i].load, formats[k]);
        test_state_close(&x);
    }
}

/* ---- random numbers ---- */

/* The states of all ranks as a text. */
static const char *rng_text(const struct checkpoint *c)
{
    struct strbuf text = {0};
    struct rng_kept *kept;
    size_t count;
    const char *why;
    assert_ok(rng_states_read(c, &kept, &count, &why, &scratch, &err));
    assert_null(why);
    assert_int_equal(count, c->layout.tp * c->layout.pp);
    for (size_t i = 0; i < count; i++) {
        strbuf_printf(&text, "%u %u:", (unsigned)kept[i].pp_rank, (unsigned)kept[i].tp_rank);
        value_print(&text, kept[i].states, 1 << 20);
    }
    const char *copy = arena_copy_text(&scratch, text.data);
    strbuf_release(&text);
    return copy;
}

/* The state of numpy's generator in that text. */
static const char *numpy_in(const char *text)
{
    const char *begin = strstr(text, "'np_rng_state'"), *end = strstr(text, "'torch_rng_state'");
    assert_true(begin && end > begin);
    return arena_text(&scratch, begin, (size_t)(end - begin));
}

/* The text of the states that a run resumed from x saves. */
static const char *rng_saved(struct test_state *x, const struct format *format)
{
    static struct test_state y;
    const char *dir = in_scratch(format->name);
    const struct test_loading again = {.path = dir, .elem = x->parameters.elem};
    assert_ok(save(x, dir, format, NULL));
    assert_ok(test_state_open(&y, &again, &err));
    const char *text = rng_text(&y.c);
    test_state_close(&y);
    assert_ok(path_remove(dir, &err));
    return text;
}

static void states_of_random_numbers_go_on(void **state)
{
    static const struct {
        const char *path;
        enum elem_type elem;
        uint64_t tp, pp;
    } cases[] = {{PLAIN, ELEM_F32, 1, 1},
                 {MEGATRON "llama-HEAD-torch-optimizer-tp2pp2/checkpoint", ELEM_BF16, 2, 2}};
    const struct format *const formats[] = {&format_torch_dist, &format_torch};
    static struct test_state x;
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct test_loading how = {.path = cases[i].path, .elem = cases[i].elem};
        struct rng_kept *kept;
        const char *why;
        assert_ok(test_state_open(&x, &how, &err));
        const char *had = rng_text(&x.c);
        x.s.layout = (struct layout_options){.tp = cases[i].tp, .pp = cases[i].pp};
        const char *made = rng_saved(&x, &format_torch_dist); /* from the seed */
        assert_string_not_equal(made, had);
        if (i == 0) assert_string_equal(numpy_in(made), numpy_in(had)); /* which drew none */
        assert_ok(rng_states_read(&x.c, &kept, &x.s.num_rng, &why, &scratch, &err));
        x.s.rng = kept;
        for (size_t k = 0; k < COUNT(formats); k++)
            assert_string_equal(rng_saved(&x, formats[k]), had);
        test_state_close(&x);
    }
}

/* A checkpoint without is made by --no-save-rng. */
static void states_that_are_not_there_are_not_kept(void **state)
{
    static struct test_state x, y;
    const struct test_loading how = {.path = PLAIN, .elem = ELEM_F32};
    const struct format *const formats[] = {&format_torch_dist, &format_torch};
    (void)state;
    for (size_t i = 0; i < COUNT(formats); i++) {
        const struct test_loading again = {.path = in_scratch("without"), .elem = ELEM_F32};
        struct rng_kept *kept;
        size_t count;
        const char *why;
        assert_ok(test_state_open(&x, &how, &err));
        x.s.no_rng = true;
        assert_ok(save(&x, again.path, formats[i], NULL));
        assert_ok(test_state_open(&y, &again, &err));
        assert_false(y.c.training.run.has_rng);
        assert_ok(rng_states_read(&y.c, &kept, &count, &why, &scratch, &err));
        assert_int_equal(count, 0);
        assert_string_equal(why, "not every rank has them");
        test_state_close(&y);
        test_state_close(&x);
        assert_ok(path_remove(again.path, &err));
    }
}

/* The same by another reader: ferry verify compares weights, states and
 * training. */
static void verify_finds_it_the_same(void **state)
{
    static struct test_state x;
    (void)state;
    for (size_t i = 0; i < COUNT(goldens); i++) {
        const char *vocab = arena_printf(&scratch, "--true-vocab-size=%u",
                                         (unsigned)goldens[i].load.true_vocab_size);
        const char *dir = in_scratch("saved");
        if (!goldens[i].has_optimizer) continue;
        assert_ok(test_state_open(&x, &goldens[i].load, &err));
        assert_ok(save(&x, dir, &format_torch_dist, NULL));
        if (RUN(command_verify, ROOM, goldens[i].load.path, dir,
                goldens[i].load.true_vocab_size ? vocab : NULL))
            fail_msg("%s: %s %s", goldens[i].load.path, said, err.text);
        ((float *)x.s.data[HELD_EXP_AVG])[0] += 1;
        assert_ok(
            save(&x, dir, &format_torch_dist, &(struct checkpoint_target){.overwrite = true}));
        assert_int_equal(RUN(command_verify, "-q", ROOM, goldens[i].load.path, dir,
                             goldens[i].load.true_vocab_size ? vocab : NULL),
                         DIFFERENT);
        assert_ok(path_remove(dir, &err));
        test_state_close(&x);
    }
}

/* Ten steps later, in another phase of the schedule. */
static void go_on(struct training *t)
{
    t->iteration += 10;
    t->step += 9;
    t->consumed_train_samples += 80;
    t->consumed_valid_samples += 16;
    t->skipped_train_samples = 8;
    t->floating_point_operations *= 2;
    t->num_steps += 80;
    t->max_lr = 0.02;
    t->loss_scale = 4096;
    t->growth_tracker = 7;
    t->hysteresis_tracker = 1;
    for (size_t i = 0; i < t->num_groups; i++) {
        t->groups[i].step += 9;
        t->groups[i].lr = 0.015;
        t->groups[i].max_lr = 0.02;
    }
}

/* The origin's training state differs from the run's later one. */
static void a_later_state_is_saved_as_the_run_has_it(void **state)
{
    const struct format *const formats[] = {&format_torch_dist, &format_torch, &format_hf};
    static struct test_state x, y;
    double lr = 0;
    (void)state;
    assert_ok(test_state_open(&x, &(struct test_loading){PLAIN, ELEM_F32, false, 100}, &err));
    go_on(&x.loaded.training);
    cJSON *args = json_tree("{'lr': 0.02, 'train_iters': 500, 'distributed_backend': 'gloo'}");
    x.s.args = args;
    for (size_t i = 0; i < COUNT(formats); i++) {
        const char *dir = in_scratch(formats[i]->name);
        assert_ok(save(&x, dir, formats[i], NULL));
        assert_ok(test_state_open(&y, &(struct test_loading){dir, ELEM_F32, false, 100}, &err));
        assert_same_training(&y.loaded.training, &x.loaded.training);
        test_state_close(&y);
    }
    assert_ok(test_state_open(
        &y, &(struct test_loading){in_scratch("torch_dist"), ELEM_F32, false, 100}, &err));
    const struct value *of = value_get(y.c.training.common, "args");
    assert_true(value_as_float(value_get(of, "lr"), &lr) && lr == 0.02);
    assert_int_equal(value_get(of, "train_iters")->integer, 500);
    assert_int_equal(value_get(of, "consumed_train_samples")->integer, 160);
    assert_int_equal(value_get(of, "seq_length")->integer, 32); /* the origin's */
    test_state_close(&y);
    cJSON_Delete(args);
    test_state_close(&x);
}

/* A state as a run sets it up by itself. */
static void set_up(struct training *t)
{
    static const char *const members[] = {"matrices", "vectors"};
    training_init(t);
    t->iteration = t->step = 3;
    t->consumed_train_samples = t->num_steps = 24;
    t->floating_point_operations = 1e9;
    t->optimizer = "adam";
    t->max_lr = 1e-3;
    t->min_lr = 1e-4;
    t->lr_decay_style = "cosine";
    t->lr_warmup_steps = 16;
    t->lr_decay_steps = 80;
    t->start_wd = t->end_wd = 0.1;
    t->wd_incr_style = "constant";
    t->wd_incr_steps = 80;
    for (size_t i = 0; i < COUNT(members); i++) {
        struct param_group *g = training_add_group(t, &scratch);
        g->members = members[i];
        g->step = 3;
        g->lr = 9e-4;
        g->max_lr = 1e-3;
        g->min_lr = 1e-4;
        g->beta1 = 0.9;
        g->beta2 = 0.95;
        g->eps = 1e-8;
        g->wd_mult = i ? 0 : 1;
        g->weight_decay = i ? 0 : 0.1;
        g->lr_mult = 1;
    }
}

/* A run from scratch: its origin has a config and no tensors. What it writes
 * has no more rows than it has, whatever the default divisor. */
static void a_run_from_scratch_is_saved(void **state)
{
    static struct test_state x, y;
    struct training run;
    (void)state;
    for (int legacy = 0; legacy < 2; legacy++) {
        const char *dir = in_scratch(legacy ? "legacy" : "dist");
        assert_ok(test_state_open(
            &x, &(struct test_loading){"tests/golden/hf/qwen2.5", ELEM_BF16, false, 0}, &err));
        const struct checkpoint scratch_origin = {.config = x.config,
                                                  .params = x.params,
                                                  .family = x.c.family,
                                                  .hf_folder = x.c.hf_folder,
                                                  .config_origin = CONFIG_OF_JSON};
        set_up(&run);
        x.s.origin = &scratch_origin;
        x.s.training = &run;
        for (uint64_t i = 0; i < x.parameters.bytes / 2; i++)
            ((float *)x.s.data[HELD_EXP_AVG])[i] = (float)i;
        assert_ok(save(&x, dir, legacy ? &format_torch : &format_torch_dist, NULL));
        assert_ok(test_state_open(&y, &(struct test_loading){dir, ELEM_BF16, false, 0}, &err));
        assert_int_equal(y.s.padded_rows, x.config.vocab_size);
        assert_same_regions(&x, &y);
        assert_same_training(&y.loaded.training, &run);
        assert_true(y.c.training.run.has_rng);
        test_state_close(&x);
        test_state_close(&y);
    }
}

/* ---- what is made ---- */

static const float *region(const struct test_state *x, enum held_kind kind)
{
    assert_int_equal(x->s.dtype[kind], DT_F32);
    return x->s.data[kind];
}

/* The first element of a parameter in a region. */
static uint64_t element_of(const struct test_state *x, const char *name)
{
    size_t at;
    assert_true(map_get(&x->parameters.names, name, &at));
    return x->parameters.items[at].offset / dtype_bytes(x->s.dtype[HELD_WEIGHT]);
}

static void assert_made(const struct test_state *x)
{
    const uint16_t *weights = x->s.data[HELD_WEIGHT];
    for (size_t i = 0; i < x->parameters.count; i++) {
        const struct parameter *p = &x->parameters.items[i];
        for (uint64_t k = p->offset / 2; k < p->offset / 2 + p->numel; k++) {
            assert_true(region(x, HELD_MASTER)[k] == (float)dtype_load(DT_BF16, weights, k));
            assert_true(region(x, HELD_EXP_AVG)[k] == 0);
            assert_true(region(x, HELD_EXP_AVG_SQ)[k] == 0);
        }
    }
}

static void without_an_optimizer_masters_are_the_weights(void **state)
{
    static struct test_state x;
    (void)state;
    assert_ok(test_state_open(
        &x, &(struct test_loading){"tests/golden/hf/mixtral", ELEM_BF16, false, 0}, &err));
    assert_made(&x);
    assert_false(x.loaded.has_optimizer);
    assert_string_equal(x.loaded.note, "the checkpoint has no optimizer: masters are the weights, "
                                       "first moments are 0, second moments are 0");
    test_state_close(&x);
    /* rows of padding too: those of this checkpoint are 0.25 */
    assert_ok(test_state_open(
        &x, &(struct test_loading){MEGATRON "gpt2-HEAD-tp2pp2/checkpoint", ELEM_BF16, false, 43},
        &err));
    assert_made(&x);
    const uint64_t first = element_of(&x, "embedding.word_embeddings.weight");
    assert_true(x.s.padded_rows > 43);
    assert_true(region(&x, HELD_MASTER)[first + 43 * x.config.hidden_size] == 0.25f);
    test_state_close(&x);
}

static void an_optimizer_that_is_left_out_is_made(void **state)
{
    static struct test_state x;
    (void)state;
    assert_ok(test_state_open(&x,
                              &(struct test_loading){MEGATRON
                                                     "llama-HEAD-fully-reshardable-dp2/checkpoint",
                                                     ELEM_BF16, true, 43},
                              &err));
    assert_made(&x);
    assert_true(text_starts_with(x.loaded.note, "the optimizer is not loaded: masters are"));
    assert_int_equal(x.loaded.training.step, 2); /* the caller's to take or leave */
    test_state_close(&x);
}

/* A run in f32 goes on from the masters of one in bf16. */
static void a_weight_of_another_type_is_its_master(void **state)
{
    static struct test_state x, y;
    const char *path = MEGATRON "llama-HEAD-dp-reshardable-tp2dp2/checkpoint";
    bool differs = false;
    (void)state;
    assert_ok(test_state_open(&x, &(struct test_loading){path, ELEM_BF16, false, 43}, &err));
    assert_ok(test_state_open(&y, &(struct test_loading){path, ELEM_F32, false, 43}, &err));
    for (size_t i = 0; i < x.parameters.count; i++) {
        const uint64_t at = element_of(&x, x.parameters.items[i].name),
                       to = element_of(&y, x.parameters.items[i].name);
        for (uint64_t k = 0; k < x.parameters.items[i].numel; k++) {
            const double narrow = dtype_load(DT_BF16, x.s.data[HELD_WEIGHT], at + k);
            const float wide = region(&y, HELD_WEIGHT)[to + k];
            assert_true(wide == region(&x, HELD_MASTER)[at + k]);
            differs |= wide != (float)narrow;
        }
    }
    assert_true(differs);
    test_state_close(&x);
    test_state_close(&y);
    /* without its optimizer there is no master */
    assert_ok(test_state_open(&x, &(struct test_loading){path, ELEM_BF16, true, 43}, &err));
    assert_ok(test_state_open(&y, &(struct test_loading){path, ELEM_F32, true, 43}, &err));
    assert_true(region(&y, HELD_WEIGHT)[0] == (float)dtype_load(DT_BF16, x.s.data[HELD_WEIGHT], 0));
    test_state_close(&x);
    test_state_close(&y);
}

/* Some states are there, others not: a folder of a run without a second moment. */
static void some_missing_states_are_named(void **state)
{
    static struct test_state x;
    const char *dir = in_scratch("saved");
    (void)state;
    assert_ok(test_state_open(&x, &(struct test_loading){PLAIN, ELEM_F32, false, 0}, &err));
    free(x.s.data[HELD_EXP_AVG_SQ]);
    x.s.data[HELD_EXP_AVG_SQ] = NULL;
    assert_ok(save(&x, dir, &format_torch_dist, NULL));
    test_state_close(&x);
    assert_ok(test_state_open(&x, &(struct test_loading){dir, ELEM_F32, false, 0}, &err));
    assert_true(x.loaded.has_optimizer);
    assert_int_equal(x.loaded.made[HELD_EXP_AVG], 0);
    assert_int_equal(x.loaded.made[HELD_EXP_AVG_SQ], x.parameters.count);
    assert_true(text_starts_with(x.loaded.note, "the checkpoint lacks them: second moments are 0 "
                                                "of 27 parameters ("));
    test_state_close(&x);
}

/* ---- SGD ---- */

/* Its momentum is momentum_buffer; without any, groups and schedule are kept
 * all the same. */
static void sgd_keeps_momentum_and_schedule(void **state)
{
    static struct test_state x, y;
    (void)state;
    for (int momentum = 0; momentum < 2; momentum++) {
        const char *dir = in_scratch(momentum ? "momentum" : "none");
        assert_ok(test_state_open(&x, &(struct test_loading){PLAIN, ELEM_F32, false, 0}, &err));
        const struct checkpoint_target to = {.no_optimizer = false};
        cJSON *args = json_tree("{'optimizer': 'sgd'}");
        x.loaded.training.optimizer = "sgd";
        x.s.args = args;
        for (int k = momentum ? HELD_EXP_AVG_SQ : HELD_EXP_AVG; k < NUM_HELD; k++) {
            free(x.s.data[k]);
            x.s.data[k] = NULL;
        }
        assert_ok(save(&x, dir, &format_torch_dist, &to));
        assert_ok(test_state_open(&y, &(struct test_loading){dir, ELEM_F32, false, 0}, &err));
        assert_same_training(&y.loaded.training, &x.loaded.training);
        assert_string_equal(y.loaded.training.optimizer, "sgd");
        assert_int_equal(y.loaded.made[HELD_EXP_AVG], momentum ? 0 : 27);
        if (momentum) assert_same_parameter(&x, &y, &x.parameters.items[0], HELD_EXP_AVG);
        assert_non_null(
            catalog_find(&y.c.catalog, momentum ? "optimizer.momentum_buffer.output_layer.weight"
                                                : "optimizer.param.output_layer.weight"));
        cJSON_Delete(args);
        test_state_close(&x);
        test_state_close(&y);
    }
}

/* ---- refusals ---- */

static void what_cannot_be_loaded_is_refused(void **state)
{
    static struct test_state x;
    struct checkpoint_loaded out;
    const struct checkpoint_load_options o = {.load = {.threads = 1, .progress = PROGRESS_NONE}};
    (void)state;
    assert_ok(test_state_open(&x, &(struct test_loading){PLAIN, ELEM_F32, false, 0}, &err));
    struct tensor *t = catalog_find(&x.c.catalog, "output_layer.weight");
    const struct tensor kept = *t;
    const uint64_t other[] = {32, 128};
    t->shape = other;
    assert_fails(checkpoint_load(&x.s, &x.c, &o, &out, &scratch, &err), ERR_UNSUPPORTED,
                 "output_layer.weight has shape [32, 128], the model needs [128, 32]");
    *t = kept;
    x.c.training.optimizer.unread = "some reason";
    assert_fails(checkpoint_load(&x.s, &x.c, &o, &out, &scratch, &err), ERR_UNSUPPORTED,
                 "cannot be read: some reason; --no-load-optim leaves it out");
    x.c.training.optimizer.unread = NULL;
    x.parameters.items[0].tensors = (const char *const[]){"decoder.none.weight"};
    assert_fails(checkpoint_load(&x.s, &x.c, &o, &out, &scratch, &err), ERR_UNSUPPORTED,
                 "the checkpoint has no tensor decoder.none.weight");
    test_state_close(&x);
}

/* ---- which checkpoint ---- */

static struct checkpoint_found find(const char *path, uint64_t step)
{
    struct checkpoint_found found;
    assert_ok(checkpoint_find(&found, path, step != UINT64_MAX, step, &scratch, &err));
    return found;
}

static void the_checkpoint_that_is_there_is_found(void **state)
{
    static struct test_state x;
    const char *dist = in_scratch("dist"), *hf = in_scratch("hf"), *none = in_scratch("none");
    struct checkpoint_found f;
    (void)state;
    assert_ok(test_state_open(&x, &(struct test_loading){PLAIN, ELEM_F32, false, 100}, &err));
    for (uint64_t n = 8; n < 12; n++) {
        x.loaded.training.iteration = n;
        assert_ok(save(&x, dist, &format_torch_dist, NULL));
        assert_ok(save(&x, hf, &format_hf, NULL));
    }
    test_state_close(&x);
    f = find(dist, UINT64_MAX);
    assert_true(f.found && f.iteration == 11 && f.format == &format_torch_dist);
    assert_string_equal(f.path, iteration_in(dist, 11));
    assert_int_equal(find(dist, 9).iteration, 9);
    assert_string_equal(find(iteration_in(dist, 8), UINT64_MAX).path, iteration_in(dist, 8));
    f = find(hf, UINT64_MAX);
    assert_true(f.found && f.iteration == 11 && f.format == &format_hf);
    assert_string_equal(find(hf, 8).path, iteration_in(hf, 8));
    assert_int_equal(find(iteration_in(hf, 9), UINT64_MAX).iteration, 9);
    assert_int_equal(find("tests/golden/hf/gpt2", UINT64_MAX).iteration, -1);
    assert_true(find("tests/golden/hf/gpt2", UINT64_MAX).found);
    assert_false(find(none, UINT64_MAX).found);
    assert_false(find(hf, 77).found);
    assert_ok(folder_create(none, &err));
    assert_false(find(none, UINT64_MAX).found);
    assert_fails(checkpoint_find(&f, dist, true, 77, &scratch, &err), ERR_IO, "iter_0000077");
    assert_fails(checkpoint_find_to_load(&f, none, false, 0, &scratch, &err), ERR_IO,
                 "has no model");
    assert_fails(checkpoint_find_to_load(&f, hf, true, 77, &scratch, &err), ERR_IO,
                 "has no iteration 77");
    assert_fails(checkpoint_find_to_load(&f, in_scratch("gone"), false, 0, &scratch, &err), ERR_IO,
                 "no such folder");
    assert_ok(path_remove(path_join(&scratch, dist, "latest_checkpointed_iteration.txt"), &err));
    assert_ok(path_remove(path_join(&scratch, dist, "latest_train_state.pt"), &err));
    assert_fails(checkpoint_find(&f, dist, false, 0, &scratch, &err), ERR_UNSUPPORTED,
                 "without a tracker file");
    assert_int_equal(find(dist, 9).iteration, 9);
}

static void half_a_checkpoint_is_refused(void **state)
{
    struct checkpoint_found f;
    (void)state;
    assert_ok(folder_create(in_scratch("root"), &err));
    write_scratch("root/latest_checkpointed_iteration.txt", "20");
    assert_fails(checkpoint_find(&f, in_scratch("root"), false, 0, &scratch, &err), ERR_IO,
                 "missing folder iter_0000020, named by the tracker file");
    write_scratch("root/latest_checkpointed_iteration.txt", "twenty");
    assert_fails(checkpoint_find(&f, in_scratch("root"), false, 0, &scratch, &err), ERR_CORRUPT,
                 "neither a number");
}

/* ---- the destination ---- */

static const char *tracker(const char *dir)
{
    struct strbuf text = {0};
    assert_ok(file_read_all(path_join(&scratch, dir, "latest_checkpointed_iteration.txt"), 100,
                            &text, &err));
    const char *out = arena_text(&scratch, text.data, text.length);
    strbuf_release(&text);
    return out;
}

static enum status check(const struct checkpoint_target *to, uint64_t last)
{
    return checkpoint_check_target(to, &(struct checkpoint_saves){.last = last}, &err);
}

static void an_iteration_that_is_there_stays(void **state)
{
    static struct test_state x;
    const struct format *const formats[] = {&format_torch_dist, &format_torch, &format_hf};
    (void)state;
    assert_ok(test_state_open(&x, &(struct test_loading){PLAIN, ELEM_F32, false, 100}, &err));
    for (size_t i = 0; i < COUNT(formats); i++) {
        const char *dir = in_scratch(formats[i]->name);
        const struct checkpoint_target to = {.dir = dir, .format = formats[i]},
                                       over = {.dir = dir, .format = formats[i], .overwrite = true};
        assert_ok(check(&to, 10));
        assert_false(path_exists(dir));
        assert_ok(save(&x, dir, formats[i], NULL));
        assert_fails(check(&to, 10), ERR_EXISTS,
                     "iter_0000010: exists and is not empty; --overwrite replaces it");
        assert_fails(save(&x, dir, formats[i], NULL), ERR_EXISTS, "--overwrite replaces it");
        assert_ok(check(&to, 11));
        assert_fails(checkpoint_check_target(
                         &to, &(struct checkpoint_saves){.interval = 5, .last = 12}, &err),
                     ERR_EXISTS, "iter_0000010");
        assert_ok(checkpoint_check_target(
            &to, &(struct checkpoint_saves){.after = 10, .interval = 5, .last = 12}, &err));
        assert_ok(checkpoint_check_target(
            &to, &(struct checkpoint_saves){.interval = 4, .last = 12}, &err));
        assert_ok(check(&over, 10));
        assert_ok(save(&x, dir, formats[i], &over));
        write_scratch(arena_printf(&scratch, "%s/iter_0000010/notes.txt", formats[i]->name),
                      "mine");
        assert_fails(check(&over, 10), ERR_EXISTS, "notes.txt");
    }
    test_state_close(&x);
}

/* A root may hold other files, as those of TensorBoard. */
static void only_so_many_iterations_stay(void **state)
{
    static struct test_state x;
    const char *dir = in_scratch("root");
    const struct checkpoint_target three = {.keep_last = 3};
    (void)state;
    assert_ok(folder_create(in_scratch("root/tensorboard"), &err));
    assert_ok(folder_create(in_scratch("root/iter_0000001.old"), &err));
    assert_ok(folder_create(in_scratch("root/.iter_0000002.ferry-removed/x"), &err));
    assert_ok(test_state_open(&x, &(struct test_loading){PLAIN, ELEM_F32, false, 0}, &err));
    x.loaded.training.iteration = 90;
    assert_ok(save(&x, dir, &format_torch_dist, NULL));
    for (uint64_t n = 10; n < 15; n++) {
        x.loaded.training.iteration = n;
        assert_ok(save(&x, dir, &format_torch_dist, &three));
        assert_string_equal(tracker(dir), arena_printf(&scratch, "%u", (unsigned)n));
    }
    for (unsigned n = 10; n < 15; n++)
        assert_int_equal(path_exists(iteration_in(dir, n)), n >= 12);
    assert_true(path_exists(iteration_in(dir, 90))); /* is not older */
    assert_true(path_exists(in_scratch("root/tensorboard")));
    assert_true(path_exists(in_scratch("root/iter_0000001.old")));
    assert_false(path_exists(in_scratch("root/.iter_0000002.ferry-removed")));
    test_state_close(&x);
}

/* A file that may not grow fails as one on a full disk does. */
static void a_full_disk_leaves_what_was_there(void **state)
{
    static struct test_state x;
    const char *dir = in_scratch("root");
    struct rlimit kept, small = {.rlim_cur = 300000};
    (void)state;
    assert_ok(test_state_open(&x, &(struct test_loading){PLAIN, ELEM_F32, false, 0}, &err));
    assert_ok(save(&x, dir, &format_torch_dist, NULL));
    x.loaded.training.iteration = 20;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &kept), 0);
    small.rlim_max = kept.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum status st = save(&x, dir, &format_torch_dist, &(struct checkpoint_target){.keep_last = 1});
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &kept), 0);
    assert_int_equal(st, ERR_IO);
    if (!strstr(err.text, "__0_0.distcp: ")) fail_msg("no file is named: %s", err.text);
    assert_string_equal(tracker(dir), "10");
    struct name_list list;
    assert_ok(folder_list(dir, &scratch, &list, &err));
    assert_int_equal(list.count, 3); /* the iteration, and two trackers */
    assert_int_equal(RUN(command_verify, "-q", ROOM, PLAIN, dir), OK);
    test_state_close(&x);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(what_was_loaded_is_saved),
        TEST(states_of_random_numbers_go_on),
        TEST(states_that_are_not_there_are_not_kept),
        TEST(verify_finds_it_the_same),
        TEST(a_later_state_is_saved_as_the_run_has_it),
        TEST(a_run_from_scratch_is_saved),
        TEST(without_an_optimizer_masters_are_the_weights),
        TEST(an_optimizer_that_is_left_out_is_made),
        TEST(a_weight_of_another_type_is_its_master),
        TEST(some_missing_states_are_named),
        TEST(sgd_keeps_momentum_and_schedule),
        TEST(what_cannot_be_loaded_is_refused),
        TEST(the_checkpoint_that_is_there_is_found),
        TEST(half_a_checkpoint_is_refused),
        TEST(an_iteration_that_is_there_stays),
        TEST(only_so_many_iterations_stay),
        TEST(a_full_disk_leaves_what_was_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
