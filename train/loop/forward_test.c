/* Results of the engine beside those of transformers (tests/golden/hf), and
 * results at parallel layouts beside those of one rank. */
#include "train/loop/engine.h"

#include <inttypes.h>
#include <math.h>

#include "ckpt/panel.h"
#include "common/count.h"
#include "convert/open.h"
#include "kernels/cpu/cast.h"
#include "tests/testing.h"

extern const struct engine ferry_engine;

static struct error err;

/* Outputs by name, as doubles. */
struct outputs {
    struct {
        char name[64];
        uint64_t count;
        enum dtype dtype;
        double *values;
    } items[256];
    size_t count, num_pieces;
};

static void release_outputs(struct outputs *o)
{
    for (size_t i = 0; i < o->count; i++)
        free(o->items[i].values);
    o->count = o->num_pieces = 0;
}

/* An output, or the next piece of the last one. */
static enum status take(void *context, const struct collected *c, struct error *e)
{
    struct outputs *o = context;
    const size_t k = c->first_row ? o->count - 1 : o->count++;
    (void)e;
    o->num_pieces++;
    if (!c->first_row) {
        snprintf(o->items[k].name, sizeof o->items[k].name, "%s", c->name);
        o->items[k].values = malloc(c->rows * c->columns * sizeof(double) + 1);
        o->items[k].count = 0;
        o->items[k].dtype = c->dtype;
    }
    assert_string_equal(o->items[k].name, c->name);
    assert_int_equal(o->items[k].count, c->first_row * c->columns);
    assert_int_equal(cast_elements(o->items[k].values + o->items[k].count, DT_F64, c->data,
                                   c->dtype, c->num_rows * c->columns),
                     0);
    o->items[k].count += c->num_rows * c->columns;
    return OK;
}

/* ---- what transformers computed ---- */

struct golden {
    struct opened opened;
    int32_t *ids;
    struct batch batch;
};

static double *read_golden(struct golden *g, const char *name, uint64_t *count)
{
    const struct stored_tensor *s = stored_find(&g->opened.checkpoint.catalog.stored, name);
    struct tensor *t;
    if (!s) return NULL;
    assert_ok(catalog_wrap_stored(&g->opened.checkpoint.catalog, &g->opened.checkpoint.arena, s, &t,
                                  &err));
    double *values = malloc(t->numel * sizeof *values);
    assert_non_null(values);
    assert_ok(panel_read_numbers(&g->opened.checkpoint.catalog, t, t->numel, values, &err));
    *count = t->numel;
    return values;
}

static void open_golden(struct golden *g, const char *model)
{
    const struct source_options none = {0};
    char path[128];
    uint64_t count;
    snprintf(path, sizeof path, "tests/golden/hf/%s/logits.safetensors", model);
    assert_ok(opened_open(&g->opened, path, &none, NULL, true, true, &err));
    double *ids = read_golden(g, "input_ids", &count);
    g->ids = calloc(count, sizeof *g->ids);
    for (uint64_t i = 0; i < count; i++)
        g->ids[i] = (int32_t)ids[i];
    free(ids);
    g->batch = (struct batch){.num_sequences = 2, .length = count / 2, .ids = g->ids};
}

static void close_golden(struct golden *g)
{
    free(g->ids);
    opened_close(&g->opened);
}

/* ---- runs ---- */

static enum status one_batch(void *context, uint64_t number, struct batch *b, bool *more,
                             struct error *e)
{
    (void)context;
    (void)b;
    (void)e;
    *more = number == 0;
    return OK;
}

/* The batch travels as the request's shape, with its ids. */
static const struct batch *current_batch;

static enum status next_batch(void *context, uint64_t number, struct batch *b, bool *more,
                              struct error *e)
{
    *b = *current_batch;
    return one_batch(context, number, b, more, e);
}

static struct forward_request request_of(const char *path, const struct model_options *o,
                                         const struct batch *b, struct outputs *out)
{
    current_batch = b;
    return (struct forward_request){.model = {.path = path,
                                              .options = *o,
                                              .threads = 2,
                                              .on_gpu = test_on_gpu(),
                                              .progress = PROGRESS_NONE,
                                              .quiet = true},
                                    .pass = {.logits = true, .hidden = true, .trace_layer = -1},
                                    .shape = *b,
                                    .next = next_batch,
                                    .visit = take,
                                    .context = out};
}

static double largest(const double *x, uint64_t n)
{
    double most = 0;
    for (uint64_t i = 0; i < n; i++)
        most = fmax(most, fabs(x[i]));
    return most;
}

/* The root of the mean square of b - a, of that of a. */
static double relative(const double *a, const double *b, uint64_t n)
{
    double difference = 0, whole = 0;
    for (uint64_t i = 0; i < n; i++) {
        difference += (b[i] - a[i]) * (b[i] - a[i]);
        whole += a[i] * a[i];
    }
    return sqrt(difference / whole);
}

static double distance(const double *a, const double *b, uint64_t n)
{
    double most = 0;
    for (uint64_t i = 0; i < n; i++)
        most = isnan(a[i] - b[i]) ? INFINITY : fmax(most, fabs(a[i] - b[i]));
    return most;
}

static const char *const models[] = {"llama2", "llama3.1", "llama3.2", "mistral",  "qwen2.5",
                                     "qwen3",  "gpt2",     "mixtral",  "qwen3-moe"};
enum { NUM_MODELS = COUNT(models) };

/* Everything that the golden file has under a name of ours, by the largest
 * difference or its mean; how many that are. */
static unsigned compare_golden(struct golden *g, const struct outputs *out, const char *model,
                               bool mean, double tolerance)
{
    unsigned compared = 0;
    for (size_t i = 0; i < out->count; i++) {
        uint64_t count;
        double *expected = read_golden(g, out->items[i].name, &count);
        if (!expected) continue;
        compared++;
        assert_int_equal(count, out->items[i].count);
        double d = distance(expected, out->items[i].values, count) / largest(expected, count);
        if (mean) d = relative(expected, out->items[i].values, count);
        if (!(d <= tolerance)) fail_msg("%s: %s differs by %.2e", model, out->items[i].name, d);
        free(expected);
    }
    return compared;
}

/* Transformers computed in f32; our f64 is as near to that as f32 is to the
 * truth. */
static void logits_and_hidden_states_are_those_of_transformers(void **state)
{
    (void)state;
    for (unsigned k = 0; k < (test_is_share() ? 1 : 2) * NUM_MODELS; k++) {
        const char *model = models[k % NUM_MODELS];
        struct model_options o = {.elem = k < NUM_MODELS ? ELEM_F32 : ELEM_F64};
        struct outputs out = {0};
        struct golden g;
        char path[128];
        open_golden(&g, model);
        snprintf(path, sizeof path, "tests/golden/hf/%s", model);
        struct forward_request q = request_of(path, &o, &g.batch, &out);
        assert_ok(ferry_engine.forward(&q, &err));
        assert_true(compare_golden(&g, &out, model, false, 1e-5) >= 4);
        release_outputs(&out);
        close_golden(&g);
    }
}

/* For tests/gpu/check_parity.py: the logits as doubles, MODEL.f64 in the folder
 * that FERRY_TEST_LOGITS names. */
static void write_logits(const struct outputs *o, const char *model)
{
    const char *folder = getenv("FERRY_TEST_LOGITS");
    char path[4096];
    for (size_t i = 0; folder && i < o->count; i++) {
        if (strcmp(o->items[i].name, "logits") != 0) continue;
        snprintf(path, sizeof path, "%s/%s.f64", folder, model);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        assert_int_equal(fwrite(o->items[i].values, sizeof(double), o->items[i].count, f),
                         o->items[i].count);
        assert_int_equal(fclose(f), 0);
    }
}

/* The golden models in a type of 16 bits, beside what transformers computed in
 * f32. */
static void run_rounded(enum elem_type elem, double tolerance)
{
    for (unsigned k = 0; k < NUM_MODELS; k++) {
        struct model_options o = {.elem = elem};
        struct outputs out = {0};
        struct golden g;
        char path[128];
        open_golden(&g, models[k]);
        snprintf(path, sizeof path, "tests/golden/hf/%s", models[k]);
        struct forward_request q = request_of(path, &o, &g.batch, &out);
        assert_ok(ferry_engine.forward(&q, &err));
        assert_true(compare_golden(&g, &out, models[k], true, tolerance) >= 4);
        if (elem == ELEM_BF16) write_logits(&out, models[k]);
        release_outputs(&out);
        close_golden(&g);
    }
}

/* 8 bits a number, over a few layers. A rounding may send a token to another
 * expert. */
static void bf16_is_as_far_from_f32_as_its_rounding(void **state)
{
    (void)state;
    run_rounded(ELEM_BF16, 0.1);
}

/* 11 bits a number */
static void f16_is_eight_times_as_near(void **state)
{
    (void)state;
    run_rounded(ELEM_F16, 0.0125);
}

/* ---- parallel layouts ---- */

struct case_of_layout {
    unsigned tp, pp, vpp, cp, dp, ep, etp;
    bool sp;
    enum cp_kind kind;
    const char *
        stages; /* the pipeline written out: vpp of a model whose layers pp * vpp does not divide */
    const char *model; /* NULL: of all */
};

static bool fits(const char *model, const struct case_of_layout *c)
{
    bool moe = strcmp(model, "mixtral") == 0 || strcmp(model, "qwen3-moe") == 0;
    if (c->model && strcmp(c->model, model) != 0) return false;
    return moe || (c->ep <= 1 && (c->etp == 0 || c->etp == c->tp));
}

static bool any_fits(const char *model, const struct case_of_layout *cases, size_t num_cases)
{
    for (size_t i = 0; i < num_cases; i++)
        if (fits(model, &cases[i])) return true;
    return false;
}

/* Where few are run, every seventh of all cases of all models. */
static bool is_run(const char *model, const struct case_of_layout *c)
{
    static size_t number;
    if (!fits(model, c)) return false;
    return !test_few() || test_is_share() || number++ % 7 == 0;
}

static const char *layout_name(const struct case_of_layout *c)
{
    static char text[96];
    snprintf(text, sizeof text, "TP%u PP%u VPP%u %s CP%u DP%u EP%u ETP%u%s%s", c->tp, c->pp, c->vpp,
             c->stages ? c->stages : "", c->cp, c->dp, c->ep, c->etp, c->sp ? " SP" : "",
             c->kind == CP_RING ? " ring" : "");
    return text;
}

static struct model_options options_of(const struct case_of_layout *c, enum elem_type elem)
{
    return (struct model_options){.layout = {.tp = c->tp,
                                             .pp = c->pp,
                                             .ep = c->ep,
                                             .etp = c->etp,
                                             .cp = c->cp,
                                             .dp = c->dp,
                                             .virtual_stages = c->vpp,
                                             .pipeline_layout = c->stages},
                                  .sequence_parallel = c->sp,
                                  .cp_kind = c->kind,
                                  .elem = elem};
}

static void compare_layout(const char *model, const struct outputs *serial,
                           const struct outputs *parallel, const char *layout, double tolerance)
{
    assert_int_equal(serial->count, parallel->count);
    for (size_t i = 0; i < serial->count; i++) {
        size_t k = 0;
        while (k < parallel->count && strcmp(parallel->items[k].name, serial->items[i].name) != 0)
            k++;
        assert_true(k < parallel->count);
        uint64_t n = serial->items[i].count;
        assert_int_equal(n, parallel->items[k].count);
        double d = distance(serial->items[i].values, parallel->items[k].values, n) /
                   largest(serial->items[i].values, n);
        if (!(d <= tolerance))
            fail_msg("%s at %s: %s differs by %.2e of its largest", model, layout,
                     serial->items[i].name, d);
    }
}

static bool does_not_divide(const char *message)
{
    return strstr(message, "not a multiple") || strstr(message, "not divisible") ||
           strstr(message, "does not divide");
}

/* How many of the cases the model can be cut by. */
static unsigned run_layouts(const char *model, const struct case_of_layout *cases, size_t num_cases,
                            enum elem_type elem, double tolerance)
{
    unsigned count = 0;
    struct golden g;
    struct outputs serial = {0};
    char path[128];
    if (!any_fits(model, cases, num_cases)) return 0;
    open_golden(&g, model);
    snprintf(path, sizeof path, "tests/golden/hf/%s", model);
    struct model_options alone = {.elem = elem};
    struct forward_request q = request_of(path, &alone, &g.batch, &serial);
    assert_ok(ferry_engine.forward(&q, &err));
    for (size_t i = 0; i < num_cases; i++) {
        struct outputs parallel = {0};
        struct model_options o = options_of(&cases[i], elem);
        if (!is_run(model, &cases[i])) continue;
        q = request_of(path, &o, &g.batch, &parallel);
        enum status st = ferry_engine.forward(&q, &err);
        if (st == ERR_UNSUPPORTED && does_not_divide(err.text)) continue;
        if (st) fail_msg("%s at %s: %s", model, layout_name(&cases[i]), err.text);
        count++;
        compare_layout(model, &serial, &parallel, layout_name(&cases[i]), tolerance);
        release_outputs(&parallel);
    }
    release_outputs(&serial);
    close_golden(&g);
    return count;
}

// clang-format off
static const struct case_of_layout chosen[] = {
    {.tp = 2},
    {.tp = 2, .sp = true},
    {.tp = 4},
    {.tp = 4, .sp = true},
    {.pp = 2},
    {.pp = 3},
    {.pp = 4},
    {.pp = 2, .stages = "Et|t|t|L", .model = "llama3.1"},
    {.tp = 2, .pp = 2},
    {.tp = 2, .pp = 2, .sp = true},
    {.tp = 2, .pp = 3, .sp = true},
    {.tp = 2, .pp = 4},
    {.tp = 2, .pp = 2, .sp = true, .stages = "Et|t|t|L", .model = "llama3.1"},
    {.cp = 2},
    {.cp = 2, .kind = CP_RING},
    {.cp = 3, .kind = CP_RING},
    {.cp = 4},
    {.cp = 5},
    {.cp = 8, .kind = CP_RING},
    {.tp = 2, .cp = 2, .sp = true},
    {.tp = 2, .cp = 3},
    {.pp = 2, .cp = 2, .kind = CP_RING},
    {.tp = 2, .cp = 2, .pp = 2, .sp = true, .kind = CP_RING},
    {.dp = 2},
    {.dp = 3, .pp = 2},
    {.dp = 2, .tp = 2, .cp = 2, .sp = true},
    {.dp = 4, .cp = 2},
    {.tp = 1, .ep = 2},
    {.tp = 1, .ep = 4},
    {.tp = 2, .ep = 2, .etp = 1},
    {.tp = 2, .ep = 2, .etp = 1, .sp = true},
    {.tp = 2, .ep = 2, .etp = 2, .sp = true},
    {.tp = 2, .ep = 2, .etp = 2},
    {.tp = 2, .ep = 4, .etp = 1, .sp = true},
    {.tp = 2, .ep = 4, .etp = 2, .sp = true},
    {.tp = 1, .ep = 2, .etp = 2},
    {.tp = 1, .ep = 2, .etp = 4},
    {.tp = 2, .etp = 1},
    {.tp = 1, .etp = 2},
    {.tp = 2, .pp = 2, .ep = 2, .etp = 1, .sp = true},
    {.pp = 2, .ep = 4},
    {.cp = 2, .ep = 2},
    {.cp = 2, .ep = 4, .etp = 2, .kind = CP_RING},
    {.cp = 2, .ep = 2, .tp = 2, .etp = 2, .sp = true, .kind = CP_RING},
};
/* Each axis, each collective, and the axes that meet in one op: 29 ranks. */
static const struct case_of_layout fewest_chosen[] = {
    {.model = "llama3.1",  .tp = 2, .sp = true},
    {.model = "llama3.1",  .pp = 2, .stages = "Et|t|t|L"},
    {.model = "llama3.1",  .cp = 2},
    {.model = "llama3.1",  .cp = 3, .kind = CP_RING},
    {.model = "llama3.1",  .dp = 2},
    {.model = "gpt2",      .tp = 2},
    {.model = "mixtral",   .ep = 2},
    {.model = "mixtral",   .tp = 2, .ep = 2, .etp = 1, .sp = true},
    {.model = "mixtral",   .tp = 1, .etp = 2},
    {.model = "mixtral",   .cp = 2, .ep = 2},
    {.model = "qwen3-moe", .tp = 2, .pp = 2, .ep = 2, .etp = 1, .sp = true},
    {.model = "qwen3-moe", .cp = 2, .ep = 2, .tp = 2, .etp = 2, .sp = true, .kind = CP_RING},
};
// clang-format on
enum { NUM_CHOSEN = COUNT(chosen) };
enum { NUM_FEWEST = COUNT(fewest_chosen) };

static void layouts_compute_what_one_rank_computes(void **state)
{
    (void)state;
    const unsigned least = test_is_share() ? NUM_FEWEST : test_few() ? 21 : 181;
    unsigned count = 0;
    for (unsigned k = 0; k < NUM_MODELS; k++)
        count += run_layouts(models[k], test_is_share() ? fewest_chosen : chosen,
                             test_is_share() ? NUM_FEWEST : NUM_CHOSEN, ELEM_F64, 1e-12);
    print_message("%u layouts\n", count);
    assert_true(count >= least);
}

/* `make test-all`: whatever fits eight ranks. */
static void all_layouts_compute_what_one_rank_computes(void **state)
{
    (void)state;
    static const unsigned sizes[] = {1, 2, 4};
    enum { NUM_SIZES = 3, CASES = NUM_SIZES * NUM_SIZES * NUM_SIZES * NUM_SIZES * NUM_SIZES * 8 };
    static struct case_of_layout all[CASES];
    size_t count = 0;
    if (!getenv("FERRY_TEST_ALL")) skip();
    for (unsigned i = 0; i < CASES; i++) {
        struct case_of_layout c = {.tp = sizes[i % 3],
                                   .pp = sizes[i / 3 % 3],
                                   .cp = sizes[i / 9 % 3],
                                   .ep = sizes[i / 27 % 3],
                                   .etp = sizes[i / 81 % 3],
                                   .sp = i / 243 % 2,
                                   .kind = i / 486 % 2 ? CP_RING : CP_ALL_GATHER,
                                   .vpp = i / 972 % 2 ? 2 : 0};
        struct model_options o = options_of(&c, ELEM_F64);
        struct group_sizes s = model_group_sizes(&o);
        bool same = (c.sp && c.tp == 1) || (c.kind == CP_RING && c.cp == 1) || (c.vpp && c.pp == 1);
        if (groups_world_size(&s) <= 8 && !same) all[count++] = c;
    }
    unsigned ran = 0;
    for (unsigned k = 0; k < NUM_MODELS; k++)
        ran += run_layouts(models[k], all, count, ELEM_F64, 1e-12);
    print_message("%u of %zu layouts of %d models\n", ran, count, NUM_MODELS);
}

static void layouts_in_f32_are_as_near_as_f32_is(void **state)
{
    (void)state;
    static const struct case_of_layout few[] = {
        {.tp = 2, .sp = true}, {.tp = 2, .pp = 2}, {.cp = 2, .kind = CP_RING}, {.tp = 1, .ep = 2}};
    if (test_few()) skip();
    for (unsigned k = 0; k < NUM_MODELS; k++)
        assert_true(run_layouts(models[k], few, COUNT(few), ELEM_F32, 1e-5) >= 2);
}

/* More tokens than the golden ones, so that what is written behind a rank's
 * part is behind a block of memory, too. */
static void a_large_batch_is_cut_as_a_small_one_is(void **state)
{
    (void)state;
    enum { SEQUENCES = 40, LENGTH = 60 };
    static int32_t ids[SEQUENCES * LENGTH];
    struct batch b = {.num_sequences = SEQUENCES, .length = LENGTH, .ids = ids};
    static const struct case_of_layout cases[] = {{.cp = 2}, {.cp = 8}, {.dp = 7}, {.tp = 2}};
    uint64_t r = test_seed();
    if (test_few()) skip();
    for (unsigned i = 0; i < SEQUENCES * LENGTH; i++)
        ids[i] = (int32_t)test_below(&r, 200);
    struct outputs serial = {0}, parallel = {0};
    struct model_options alone = {.elem = ELEM_F64};
    struct forward_request q = request_of("tests/golden/hf/llama2", &alone, &b, &serial);
    assert_ok(ferry_engine.forward(&q, &err));
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct model_options o = options_of(&cases[i], ELEM_F64);
        q = request_of("tests/golden/hf/llama2", &o, &b, &parallel);
        assert_ok(ferry_engine.forward(&q, &err));
        compare_layout("llama2", &serial, &parallel, layout_name(&cases[i]), 1e-12);
        release_outputs(&parallel);
    }
    release_outputs(&serial);
}

/* The sum over all targets of log(sum exp(logits)) - logit. */
static double loss_of_logits(const double *logits, const int32_t *targets, uint64_t rows,
                             uint64_t columns)
{
    double loss = 0;
    for (uint64_t i = 0; i < rows; i++, logits += columns) {
        double sum = 0;
        for (uint64_t k = 0; k < columns && targets[i] >= 0; k++)
            sum += exp(logits[k]);
        if (targets[i] >= 0) loss += log(sum) - logits[targets[i]];
    }
    return loss;
}

/* However many logits are made at once, and whichever ranks have the tokens. */
static void check_losses(const char *model, const struct case_of_layout *cases, size_t num_cases)
{
    enum { SEQUENCES = 3, LENGTH = 9, TOKENS = SEQUENCES * LENGTH };
    static const uint64_t head_rows[] = {0, 1, 7};
    int32_t ids[TOKENS], targets[TOKENS];
    struct batch b = {.num_sequences = SEQUENCES, .length = LENGTH, .ids = ids, .targets = targets};
    uint64_t r = test_seed();
    for (unsigned i = 0; i < TOKENS; i++) {
        ids[i] = (int32_t)test_below(&r, 100);
        targets[i] = i % 5 ? (int32_t)test_below(&r, 100) : -1;
    }
    char path[64];
    snprintf(path, sizeof path, "tests/golden/hf/%s", model);
    struct outputs logits = {0}, loss = {0};
    struct model_options alone = {.elem = ELEM_F64};
    struct forward_request q = request_of(path, &alone, &b, &logits);
    q.pass.hidden = false;
    assert_ok(ferry_engine.forward(&q, &err));
    assert_int_equal(logits.count, 1);
    const double expected =
        loss_of_logits(logits.items[0].values, targets, TOKENS, logits.items[0].count / TOKENS);
    for (size_t i = 0; i < num_cases; i++)
        for (size_t k = 0; k < COUNT(head_rows); k++) {
            struct model_options o = options_of(&cases[i], ELEM_F64);
            q = request_of(path, &o, &b, &loss);
            q.pass =
                (struct pass_options){.loss = true, .trace_layer = -1, .head_rows = head_rows[k]};
            assert_ok(ferry_engine.forward(&q, &err));
            assert_int_equal(loss.count, 1);
            assert_int_equal(loss.items[0].count, 1);
            if (!(fabs(loss.items[0].values[0] / expected - 1) < 1e-12))
                fail_msg("%s, %s, %" PRIu64 " rows at once: %.15g, logits say %.15g", model,
                         layout_name(&cases[i]), head_rows[k], loss.items[0].values[0], expected);
            release_outputs(&loss);
        }
    release_outputs(&logits);
}

static void losses_are_those_of_the_logits(void **state)
{
    static const struct case_of_layout cases[] = {
        {.tp = 1}, {.tp = 2, .sp = true}, {.cp = 2}, {.dp = 2}, {.tp = 2, .pp = 3}};
    (void)state;
    check_losses("llama3.2", cases, test_is_share() ? 2 : COUNT(cases));
    check_losses("gpt2", cases, test_is_share() ? 2 : 4); /* rows of its vocabulary are padded */
}

/* A row of logits and less; some rows of each; more than there is. */
static void outputs_in_pieces_are_those_that_are_whole(void **state)
{
    static const uint64_t bytes[] = {2200, 6000, 1 << 20};
    (void)state;
    for (unsigned k = 0; k < COUNT(bytes) * NUM_ELEM_TYPES; k++) {
        struct model_options o = {.elem = k % NUM_ELEM_TYPES};
        struct outputs whole = {0}, pieces = {0};
        struct golden g;
        open_golden(&g, "llama3.1");
        struct forward_request q = request_of("tests/golden/hf/llama3.1", &o, &g.batch, &whole);
        assert_ok(ferry_engine.forward(&q, &err));
        q.context = &pieces;
        q.taking.piece_bytes = bytes[k / NUM_ELEM_TYPES];
        assert_ok(ferry_engine.forward(&q, &err));
        compare_layout("llama3.1", &whole, &pieces, "one rank", 0);
        assert_int_equal(whole.num_pieces, whole.count);
        /* Hidden states that are cast; all, where they come from a GPU. */
        const bool are_copied = test_on_gpu() || o.elem == ELEM_BF16 || o.elem == ELEM_F16;
        if (bytes[k / NUM_ELEM_TYPES] < 1 << 20 && are_copied)
            assert_true(pieces.num_pieces > pieces.count + 4);
        else
            assert_int_equal(pieces.num_pieces, pieces.count);
        release_outputs(&whole);
        release_outputs(&pieces);
        close_golden(&g);
    }
}

/* Logits first, hidden states behind them. Those that the head's product rounds
 * itself may be sums in another order, on a GPU. */
static void check_logits_of(enum elem_type elem, enum dtype dtype, const struct outputs *plain,
                            const struct outputs *rounded)
{
    static const double units[NUM_DTYPES] = {[DT_BF16] = 0x1p-8, [DT_F16] = 0x1p-11};
    const double unit = test_on_gpu() && elem_dtype(elem) == dtype ? units[dtype] : 0;
    assert_int_equal(plain->count, rounded->count);
    for (size_t i = 0; i < plain->count; i++) {
        const bool are_logits = strcmp(plain->items[i].name, "logits") == 0;
        const uint64_t n = plain->items[i].count;
        double *values = plain->items[i].values;
        char *cast = malloc(n * sizeof *values + 1);
        assert_non_null(cast);
        assert_int_equal(rounded->items[i].dtype, are_logits ? dtype : DT_F32);
        if (are_logits) {
            (void)cast_elements(cast, dtype, values, DT_F64, n);
            (void)cast_elements(values, DT_F64, cast, dtype, n);
        }
        assert_true(distance(values, rounded->items[i].values, n) <= unit * largest(values, n));
        free(cast);
    }
}

static void logits_have_the_dtype_that_is_asked_for(void **state)
{
    static const struct case_of_layout layouts[] = {{.tp = 1}, {.tp = 2}, {.cp = 2, .pp = 3}};
    static const enum elem_type elems[] = {ELEM_F32, ELEM_BF16, ELEM_F16};
    static const enum dtype dtypes[] = {DT_F32, DT_BF16, DT_F16};
    (void)state;
    for (unsigned k = 0; k < 27; k++) {
        const enum elem_type elem = elems[k % 3];
        const enum dtype dtype = dtypes[k / 3 % 3];
        struct model_options o = options_of(&layouts[k / 9], elem);
        struct outputs plain = {0}, rounded = {0};
        struct golden g;
        open_golden(&g, "llama3.1");
        struct forward_request q = request_of("tests/golden/hf/llama3.1", &o, &g.batch, &plain);
        assert_ok(ferry_engine.forward(&q, &err));
        q.context = &rounded;
        q.taking.piece_bytes = k % 2 ? 3000 : 0;
        q.pass.logits_dtype = dtype;
        assert_ok(ferry_engine.forward(&q, &err));
        check_logits_of(elem, dtype, &plain, &rounded);
        release_outputs(&plain);
        release_outputs(&rounded);
        close_golden(&g);
    }
}

static void logits_of_f64_are_given_in_f64_alone(void **state)
{
    struct model_options o = {.elem = ELEM_F64};
    struct outputs out = {0};
    struct golden g;
    (void)state;
    open_golden(&g, "gpt2");
    struct forward_request q = request_of("tests/golden/hf/gpt2", &o, &g.batch, &out);
    q.pass.logits_dtype = DT_BF16;
    assert_fails(ferry_engine.forward(&q, &err), ERR_UNSUPPORTED,
                 "logits in bfloat16: a model computed in f64");
    close_golden(&g);
}

/* Threads of a process do not come along when it forks. */
static void ranks_can_be_started_after_threads_were(void **state)
{
    (void)state;
    struct golden g;
    if (test_is_share()) skip();
    open_golden(&g, "gpt2");
    for (unsigned i = 0; i < 4; i++) {
        struct outputs out = {0};
        struct model_options o = {.elem = ELEM_F32, .layout = {.tp = 1 + i % 2}};
        struct forward_request q = request_of("tests/golden/hf/gpt2", &o, &g.batch, &out);
        q.model.threads = 8;
        assert_ok(ferry_engine.forward(&q, &err));
        assert_true(compare_golden(&g, &out, "gpt2", false, 1e-5) >= 4);
        release_outputs(&out);
    }
    close_golden(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_and_hidden_states_are_those_of_transformers),
        cmocka_unit_test(bf16_is_as_far_from_f32_as_its_rounding),
        cmocka_unit_test(f16_is_eight_times_as_near),
        cmocka_unit_test(layouts_compute_what_one_rank_computes),
        cmocka_unit_test(all_layouts_compute_what_one_rank_computes),
        cmocka_unit_test(layouts_in_f32_are_as_near_as_f32_is),
        cmocka_unit_test(a_large_batch_is_cut_as_a_small_one_is),
        cmocka_unit_test(losses_are_those_of_the_logits),
        cmocka_unit_test(outputs_in_pieces_are_those_that_are_whole),
        cmocka_unit_test(logits_have_the_dtype_that_is_asked_for),
        cmocka_unit_test(logits_of_f64_are_given_in_f64_alone),
        cmocka_unit_test(ranks_can_be_started_after_threads_were),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
