/* Gradients of whole models, beside those of transformers (tests/golden/hf) and
 * beside differences of the loss. */
#include "train/backward/backward.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "ckpt/panel.h"
#include "ckpt/testing_view.h"
#include "common/count.h"
#include "train/trainer/testing_step.h"

/* ---- what transformers computed ---- */

enum { GOLDEN_SEQUENCES = 2, GOLDEN_LENGTH = 20 };

struct golden {
    struct opened opened;
    int32_t ids[GOLDEN_SEQUENCES * GOLDEN_LENGTH], targets[GOLDEN_SEQUENCES * GOLDEN_LENGTH];
    double weights[GOLDEN_SEQUENCES * GOLDEN_LENGTH];
};

/* On the heap; NULL: there is none. */
static double *read_golden(struct golden *g, const char *kind, const char *name, uint64_t *count)
{
    struct checkpoint *c = &g->opened.checkpoint;
    char full[256];
    struct tensor *t;
    snprintf(full, sizeof full, "%s%s", kind, name);
    const struct stored_tensor *s = stored_find(&c->catalog.stored, full);
    if (!s) return NULL;
    assert_ok(catalog_wrap_stored(&c->catalog, &c->arena, s, &t, &err));
    double *values = malloc((t->numel + 1) * sizeof *values);
    assert_non_null(values);
    assert_ok(panel_read_numbers(&c->catalog, t, t->numel, values, &err));
    *count = t->numel;
    return values;
}

/* The mean loss of the ids that have one behind them. */
static struct batch open_golden(struct golden *g, const char *model)
{
    const struct source_options none = {0};
    char path[128];
    uint64_t count;
    snprintf(path, sizeof path, "tests/golden/hf/%s/logits.safetensors", model);
    assert_ok(opened_open(&g->opened, path, &none, NULL, true, true, &err));
    double *ids = read_golden(g, "", "input_ids", &count);
    assert_int_equal(count, COUNT(g->ids));
    for (uint64_t i = 0; i < count; i++) {
        const bool last = i % GOLDEN_LENGTH == GOLDEN_LENGTH - 1;
        g->ids[i] = (int32_t)ids[i];
        g->targets[i] = last ? -1 : (int32_t)ids[i + 1];
        g->weights[i] = last ? 0 : 1.0 / (GOLDEN_SEQUENCES * (GOLDEN_LENGTH - 1));
    }
    free(ids);
    return (struct batch){.num_sequences = GOLDEN_SEQUENCES,
                          .length = GOLDEN_LENGTH,
                          .ids = g->ids,
                          .targets = g->targets,
                          .weights = g->weights};
}

/* ---- our gradients under their names ---- */

/* A stored tensor. */
struct gradient {
    const struct stored_tensor *stored;
    uint64_t numel;
    double *values; /* on the heap */
};

/* The gradients of a model, in the order of its files. */
struct gradients {
    struct gradient items[128];
    size_t count;
};

static void begin_gradients(struct gradients *g, const struct stored *stored)
{
    g->count = stored->num_tensors;
    assert_true(g->count <= COUNT(g->items));
    for (size_t i = 0; i < g->count; i++) {
        struct gradient *x = &g->items[i];
        *x = (struct gradient){.stored = &stored->tensors[i], .numel = 1};
        for (unsigned d = 0; d < x->stored->num_dims; d++)
            x->numel *= x->stored->shape[d];
        x->values = calloc(x->numel + 1, sizeof *x->values);
    }
}

static void release_gradients(struct gradients *g)
{
    for (size_t i = 0; i < g->count; i++)
        free(g->items[i].values);
}

static bool has_byte(const struct gradient *x, uint32_t file, uint64_t byte)
{
    const struct stored_piece *p = &x->stored->pieces[0];
    return p->file == file && byte >= p->offset_bytes &&
           byte < p->offset_bytes + dtype_run_bytes(x->stored->dtype, x->numel);
}

/* The element of a stored tensor that a byte of a file begins. *last: the
 * tensor of the byte before. */
static double *element_of(const struct gradients *g, uint32_t file, uint64_t byte, size_t *last)
{
    for (size_t i = 0; i <= g->count && !has_byte(&g->items[*last], file, byte); i++) {
        if (i == g->count) fail_msg("byte %" PRIu64 " of file %u is in no tensor", byte, file);
        *last = i % g->count;
    }
    const struct gradient *x = &g->items[*last];
    return &x->values[(byte - x->stored->pieces[0].offset_bytes) / dtype_bytes(x->stored->dtype)];
}

/* logical: [t->numel] */
static void put_gradient(const struct gradients *g, const struct tensor *t, const double *logical)
{
    uint64_t a, b;
    size_t last = 0;
    for (size_t k = 0; k < t->num_pieces; k++) {
        const struct piece *p = &t->pieces[k];
        const struct pair pair = pair_unpack(&p->pair);
        for (uint64_t e = 0; e < pair_count(&pair); e++) {
            pair_element(&pair, e, &a, &b);
            *element_of(g, p->file, p->offset_bytes + dtype_run_bytes(p->dtype, b), &last) =
                logical[a];
        }
    }
}

static void put_gradients(const struct gradients *g, const struct test_session *s)
{
    const struct parameters *p = &s->model.parameters;
    uint64_t a, b;
    for (size_t i = 0; i < p->count; i++)
        for (size_t k = 0; k < p->items[i].num_parts; k++) {
            const struct parameter_part *part = &p->items[i].parts[k];
            double *logical = calloc(part->tensor->numel + 1, sizeof *logical);
            assert_int_equal(pair_count(&part->part), part->tensor->numel); /* one rank, one part */
            for (uint64_t e = 0; e < part->tensor->numel; e++) {
                pair_element(&part->part, e, &a, &b);
                logical[a] =
                    test_get(&s->step, VALUE_GRADIENT, test_first(&s->step, &p->items[i]) + b);
            }
            put_gradient(g, part->tensor, logical);
            free(logical);
        }
}

/* ---- the comparison ---- */

static double norm_of(const double *x, uint64_t count)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static void compare_gradient(struct golden *g, const struct gradient *x, const char *model)
{
    uint64_t count;
    const char *name = x->stored->name;
    double *norm = read_golden(g, "gradnorm.", name, &count);
    double *whole = read_golden(g, "grad.", name, &count);
    if (!norm) fail_msg("%s: %s has no gradient there", model, name);
    if (!(fabs(norm_of(x->values, x->numel) - *norm) <= 1e-5 * *norm))
        fail_msg("%s: the gradient of %s has norm %.9g, not %.9g", model, name,
                 norm_of(x->values, x->numel), *norm);
    if (whole) assert_int_equal(count, x->numel);
    for (uint64_t i = 0; whole && i < count; i++)
        whole[i] -= x->values[i];
    if (whole && !(norm_of(whole, count) <= 1e-5 * *norm))
        fail_msg("%s: the gradient of %s, of norm %g, is off by %g", model, name, *norm,
                 norm_of(whole, count));
    free(norm);
    free(whole);
}

static void compare_model(const char *model, enum elem_type elem)
{
    struct golden g;
    struct gradients ours;
    struct test_session s;
    struct step_result r;
    uint64_t count;
    const struct step_options o = test_step_options(GOLDEN_SEQUENCES, GOLDEN_LENGTH);
    const struct step_control control = {.lr = 0, .update = 1, .factor = 1};
    const struct micro_batch b = {.batch = open_golden(&g, model), .loss_scale = 1, .first = true};
    test_session_open(&s, model, elem, &o, NULL);
    test_micro_batch(&s.step, &b);
    assert_ok(step_update(&s.step, &control, &err));
    assert_ok(step_wait(&s.step, &r, &err));
    begin_gradients(&ours, &s.opened.checkpoint.catalog.stored);
    put_gradients(&ours, &s);
    for (size_t i = 0; i < ours.count; i++)
        compare_gradient(&g, &ours.items[i], model);
    double *norm = read_golden(&g, "", "grad_norm", &count);
    double *loss = read_golden(&g, "", "loss", &count);
    if (!(fabs(r.grad_norm - *norm) <= 1e-5 * *norm) || !(fabs(r.loss - *loss) <= 1e-5 * *loss))
        fail_msg("%s: loss %.9g, norm %.9g, not %.9g and %.9g", model, r.loss, r.grad_norm, *loss,
                 *norm);
    free(norm);
    free(loss);
    release_gradients(&ours);
    test_session_close(&s);
    opened_close(&g.opened);
}

static void gradients_are_those_of_transformers(void **state)
{
    static const char *const models[] = {"llama2", "llama3.1", "llama3.2", "mistral",  "qwen2.5",
                                         "qwen3",  "gpt2",     "mixtral",  "qwen3-moe"};
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++) {
        if (!test_takes(i, COUNT(models))) continue;
        compare_model(models[i], ELEM_F32);
        compare_model(models[i], ELEM_F64);
    }
}

/* ---- differences of the loss ---- */

enum { SEQUENCES = 3, LENGTH = 12, ELEMENTS = 2 }; /* elements: of each parameter that are tried */

/* Scale of the gradients of router losses. */
static const double router_scale = 0.75;

/* A model and what trains it. */
struct variant {
    const char *name, *model;
    test_change *change;
    double hidden_dropout, attention_dropout, balance_coefficient, z_coefficient;
    uint64_t balance_length;
    bool documents; /* that begin anywhere */
    bool positions; /* that begin anew where no document does */
};

static void as_it_is(struct model_config *c)
{
    (void)c;
}

/* Activations are smooth, as differences need it. */
static void scaled_by_layer(struct model_config *c)
{
    c->softmax_scale = 0.4;
    c->softmax_scale_by_layer = true;
    c->activation_func = "quick_gelu";
}

static void gated_with_biases(struct model_config *c)
{
    c->gated_linear_unit = true;
    c->activation_func = "gelu";
    c->sliding_window = 5;
}

static void of_one_group(struct model_config *c)
{
    c->num_query_groups = 1;
    c->rotary_percent = 0.5;
    c->rotary_interleaved = true;
}

static void chosen_before_softmax(struct model_config *c)
{
    c->moe_router_pre_softmax = false;
}

static void chosen_after_softmax(struct model_config *c)
{
    c->moe_router_pre_softmax = true;
}

static const struct variant variants[] = {
    {.name = "learned positions, biases, tied", .model = "gpt2", .change = as_it_is},
    {.name = "softmax scale by layer", .model = "gpt2", .change = scaled_by_layer},
    {.name = "gate with biases, window", .model = "gpt2", .change = gated_with_biases},
    {.name = "groups of heads", .model = "llama3.1", .change = as_it_is},
    {.name = "part of a head rotated", .model = "llama3.2", .change = of_one_group},
    {.name = "heads without groups", .model = "llama2", .change = as_it_is},
    {.name = "sliding window", .model = "mistral", .change = as_it_is, .documents = true},
    {.name = "bias of qkv", .model = "qwen2.5", .change = as_it_is, .positions = true},
    {.name = "norms of heads", .model = "qwen3", .change = as_it_is, .documents = true},
    {.name = "experts, softmax last", .model = "mixtral", .change = chosen_before_softmax},
    {.name = "experts, softmax first", .model = "mixtral", .change = chosen_after_softmax},
    {.name = "balanced experts",
     .model = "mixtral",
     .change = as_it_is,
     .balance_coefficient = 0.7},
    {.name = "experts balanced in each sequence",
     .model = "mixtral",
     .change = chosen_after_softmax,
     .balance_coefficient = 0.7,
     .balance_length = LENGTH},
    {.name = "small logits of routers",
     .model = "mixtral",
     .change = as_it_is,
     .z_coefficient = 0.05},
    {.name = "all at once",
     .model = "qwen3-moe",
     .change = as_it_is,
     .hidden_dropout = 0.1,
     .attention_dropout = 0.1,
     .balance_coefficient = 0.3,
     .z_coefficient = 0.02,
     .balance_length = LENGTH,
     .documents = true},
    {.name = "dropout of hidden states",
     .model = "gpt2",
     .change = as_it_is,
     .hidden_dropout = 0.1},
    {.name = "dropout of attention",
     .model = "qwen3",
     .change = as_it_is,
     .attention_dropout = 0.1},
    {.name = "dropout and documents",
     .model = "gpt2",
     .change = as_it_is,
     .hidden_dropout = 0.1,
     .attention_dropout = 0.1,
     .documents = true},
};

static struct batch variant_batch(struct test_tokens *t, const struct test_session *s,
                                  const struct variant *v)
{
    struct batch b = test_tokens_make(t, s, SEQUENCES, 3, 1);
    for (uint64_t i = 0; i < SEQUENCES * LENGTH; i++) {
        t->weights[i] = i % 5 == 2 ? 0 : 0.5 + 0.1 * (double)(i % 7);
        t->starts[i] = i % LENGTH == 0 || i == 4 || i == LENGTH + 7 || i == LENGTH + 8;
        t->positions[i] = (int32_t)(i % LENGTH % 7);
    }
    if (v->documents) b.starts = t->starts, b.any_starts = true;
    if (v->positions) b.positions = t->positions;
    return b;
}

/* The calls up to the last one of those that make the losses: most of backward
 * is behind it. */
static size_t calls_of_losses(const struct program *p, const struct training_values *t)
{
    for (size_t k = p->num_calls; k > 0; k--)
        for (size_t i = 0; i < MAX_OUTPUTS; i++) {
            const value_id y = p->calls[k - 1].out[i];
            if (y != NO_VALUE && (y == t->loss_sum || y == t->balance_sum || y == t->z_sum))
                return k;
        }
    return 0;
}

/* The loss that gradients are of. */
static double total_loss(struct test_session *s)
{
    const struct training_values *t = &s->step.chunks[0].micro[0].train;
    const struct training_shape *x = &s->step.options.training;
    const struct run *r = &s->step.last_run;
    assert_ok(run_queue(r, 0, calls_of_losses(r->program, t), &err));
    const double routers = x->balance_coefficient * test_sum(&s->step, t->balance_sum) +
                           x->z_coefficient * test_sum(&s->step, t->z_sum);
    return test_sum(&s->step, t->loss_sum) + router_scale * routers;
}

/* The derivative by weight i, from four losses about it. */
static double difference(struct test_session *s, uint64_t i)
{
    const double h = 5e-4, w = test_get(&s->step, VALUE_PARAMETER, i);
    double at[4];
    for (int k = 0; k < 4; k++) {
        test_set_weight(&s->step, i, w + h * (k < 2 ? k - 2 : k - 1));
        at[k] = total_loss(s);
    }
    test_set_weight(&s->step, i, w);
    return (at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * h);
}

/* Elements of a parameter: of the table of tokens rows that are there.
 * gradients: the region. */
static void check_parameter(struct test_session *s, const struct micro_batch *b,
                            const struct parameter *x, const double *gradients, const char *name)
{
    const uint64_t first = test_first(&s->step, x), seed = random_stream(5, x->name);
    const double typical = norm_of(gradients + first, x->numel) / sqrt((double)x->numel);
    if (!(typical > 0)) fail_msg("%s: %s has no gradient", name, x->name);
    for (unsigned k = 0; k < ELEMENTS; k++) {
        uint64_t e = (uint64_t)(random_uniform(seed, k) * (double)x->numel);
        if (x->spec->padded && k == 0) e = (uint64_t)b->batch.ids[k] * x->shape[1] + k;
        const double got = gradients[first + e], want = difference(s, first + e);
        if (!(fabs(got - want) <= 1e-6 * (fabs(want) + typical)))
            fail_msg("%s: the gradient of %s[%" PRIu64 "] is %.12g, differences say %.12g", name,
                     x->name, e, got, want);
    }
}

static void check_variant(const struct variant *v)
{
    struct step_options o = test_step_options(SEQUENCES, LENGTH);
    struct test_session s;
    struct test_tokens t;
    o.training = (struct training_shape){.hidden_dropout = v->hidden_dropout,
                                         .attention_dropout = v->attention_dropout,
                                         .dropout_seed = 11,
                                         .balance_coefficient = v->balance_coefficient,
                                         .z_coefficient = v->z_coefficient,
                                         .balance_length = v->balance_length};
    o.shape.any_starts = v->documents;
    test_session_open(&s, v->model, ELEM_F64, &o, v->change);
    const struct micro_batch b = {.batch = variant_batch(&t, &s, v),
                                  .loss_scale = 1,
                                  .router_scale = router_scale,
                                  .first = true};
    test_micro_batch(&s.step, &b);
    double *gradients = malloc(s.step.numel * sizeof *gradients);
    memcpy(gradients, s.step.regions[VALUE_GRADIENT], s.step.numel * sizeof *gradients);
    for (size_t i = 0; i < s.model.parameters.count; i++)
        if (s.model.parameters.items[i].tensors)
            check_parameter(&s, &b, &s.model.parameters.items[i], gradients, v->name);
    free(gradients);
    test_session_close(&s);
}

static void gradients_are_differences_of_the_loss(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(variants); i++)
        if (test_takes(i, COUNT(variants))) check_variant(&variants[i]);
}

/* ---- scales and types ---- */

/* The gradients of a model with experts, as doubles on the heap. */
static double *gradients_of(enum elem_type elem, bool are_elem, double scale, uint64_t *count)
{
    struct step_options o = test_step_options(SEQUENCES, LENGTH);
    struct test_session s;
    struct test_tokens t;
    o.training.balance_coefficient = 0.3;
    o.training.z_coefficient = 0.1;
    o.gradients_are_elem = are_elem;
    test_session_open(&s, "mixtral", elem, &o, NULL);
    for (uint64_t k = 0; k < 2; k++) {
        const struct micro_batch b = {.batch = test_tokens_make(&t, &s, SEQUENCES, k, 0.5),
                                      .loss_scale = scale,
                                      .router_scale = scale,
                                      .first = k == 0};
        test_micro_batch(&s.step, &b);
    }
    *count = s.step.numel;
    double *gradients = malloc(*count * sizeof *gradients);
    for (uint64_t i = 0; i < *count; i++)
        gradients[i] = test_get(&s.step, VALUE_GRADIENT, i);
    test_session_close(&s);
    return gradients;
}

static void gradients_are_multiplied_by_the_scales(void **state)
{
    uint64_t count;
    (void)state;
    double *once = gradients_of(ELEM_F64, false, 1, &count);
    double *scaled = gradients_of(ELEM_F64, false, 1024, &count); /* exact: a power of two */
    for (uint64_t i = 0; i < count; i++)
        assert_true(scaled[i] == 1024 * once[i]);
    assert_true(norm_of(once, count) > 0);
    free(once);
    free(scaled);
}

static void gradients_may_be_of_the_type_of_weights(void **state)
{
    uint64_t count;
    (void)state;
    double *wide = gradients_of(ELEM_BF16, false, 1, &count);
    double *narrow = gradients_of(ELEM_BF16, true, 1, &count);
    const double norm = norm_of(wide, count);
    for (uint64_t i = 0; i < count; i++)
        narrow[i] -= wide[i];
    assert_true(norm_of(narrow, count) > 0);
    assert_true(norm_of(narrow, count) < 0.01 * norm);
    free(wide);
    free(narrow);
}

/* ---- refusals ---- */

static value_id emit(struct program *p, unsigned op, struct emission e)
{
    value_id y = NO_VALUE;
    e.op = op;
    e.label = "layers.3.call";
    e.layer = 3;
    e.out[0] = &y;
    assert_ok(program_emit(p, &e, &err));
    return y;
}

#define IN(...) .in = {__VA_ARGS__}, .num_in = sizeof((value_id[]){__VA_ARGS__}) / sizeof(value_id)

/* The loss of x w^T. scaled: x goes through an op without a rule. */
static enum status make_backward(struct program *p, const struct groups *groups, bool scaled,
                                 bool has_unused)
{
    static const uint64_t tokens[] = {2}, pairs[] = {2, 4}, gates[] = {2, 1}, rows[] = {8, 4};
    const union op_params vocab = {.vocab = {.valid = 8}};
    size_t forward_calls;
    value_id in_gradient;
    program_init(p, ELEM_F32, groups);
    value_id x = program_add_value(p, VALUE_INPUT, OPERAND_ELEM, 2, pairs, "x"),
             gate = program_add_value(p, VALUE_INPUT, OPERAND_ELEM, 2, gates, "gate"),
             w = program_add_value(p, VALUE_PARAMETER, OPERAND_ELEM, 2, rows, "w"),
             targets = program_add_value(p, VALUE_INPUT, OPERAND_INT, 1, tokens, "targets"),
             weights = program_add_value(p, VALUE_INPUT, OPERAND_REAL, 1, tokens, "weights"),
             scale = program_add_value(p, VALUE_INPUT, OPERAND_REAL, 1, (uint64_t[]){1}, "scale");
    if (has_unused) (void)program_add_value(p, VALUE_PARAMETER, OPERAND_ELEM, 2, rows, "unused");
    if (scaled) x = emit(p, OP_SIGMOID_SCALE, (struct emission){IN(x, gate)});
    const struct backward b = {.stage = {NO_VALUE, NO_VALUE, NO_VALUE},
                               .head = p->num_calls,
                               .head_chunks = 1,
                               .loss_scale = scale,
                               .router_scale = NO_VALUE};
    value_id logits = emit(p, OP_MATMUL,
                           (struct emission){IN(x, w), .type = OPERAND_REAL,
                                             .params.matmul = {.transpose_b = true, .alpha = 1}});
    value_id max = emit(p, OP_VOCAB_MAX, (struct emission){IN(logits), .params = vocab});
    value_id sums =
        emit(p, OP_VOCAB_SUM, (struct emission){IN(logits, max, targets), .params = vocab});
    value_id loss = emit(p, OP_TOKEN_LOSS, (struct emission){IN(sums, targets)});
    (void)emit(p, OP_WEIGHTED_SUM, (struct emission){IN(loss, weights)});
    return backward_make(p, &b, &forward_calls, &in_gradient, &err);
}

static void what_has_no_gradient_is_refused(void **state)
{
    const struct group_sizes one = {1, 1, 1, 1, 1, 1};
    struct groups groups;
    struct program p;
    (void)state;
    assert_ok(groups_simulate(&groups, &one, 0, &err));
    assert_ok(make_backward(&p, &groups, false, false));
    program_release(&p);
    assert_fails(make_backward(&p, &groups, true, false), ERR_UNSUPPORTED,
                 "layers.3.call: sigmoid_scale has no gradient");
    program_release(&p);
    assert_fails(make_backward(&p, &groups, false, true), ERR_OURS,
                 "unused: no call makes its gradient");
    program_release(&p);
    groups_close(&groups);
}

static void coded_weights_have_no_gradients(void **state)
{
    const struct weight_coding coding = {.group = 32};
    const struct backward none = {.head = 0};
    const struct groups groups = {.sizes = {.tp = 1}};
    struct program p;
    size_t calls;
    value_id in;
    (void)state;
    program_init(&p, ELEM_F32, &groups);
    const value_id w =
        program_add_value(&p, VALUE_PARAMETER, OPERAND_ELEM, 2, (uint64_t[]){4, 32}, "w");
    p.values[w].coding = &coding;
    assert_fails(backward_make(&p, &none, &calls, &in, &err), ERR_UNSUPPORTED,
                 "w: a weight that stays coded has no gradient");
    program_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(coded_weights_have_no_gradients),
        cmocka_unit_test(gradients_are_those_of_transformers),
        cmocka_unit_test(gradients_are_differences_of_the_loss),
        cmocka_unit_test(gradients_are_multiplied_by_the_scales),
        cmocka_unit_test(gradients_may_be_of_the_type_of_weights),
        cmocka_unit_test(what_has_no_gradient_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
