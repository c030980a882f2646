/* Weights from scratch: their distribution, and the same at every layout. */
#include "train/trainer/initial_weights.h"

#include <math.h>
#include <stdlib.h>

#include "ckpt/testing_view.h"
#include "common/count.h"
#include "convert/open.h"
#include "tests/testing.h"
#include "train/model/model.h"

static struct error err;

/* A model of a config, of one rank of a job that does not exist, and its
 * weights. */
struct scratch {
    struct opened opened;
    struct model_config config;
    struct model model;
    struct pass pass;
    char *region;
};

static const struct initial_weights usual = {
    .std = 0.02, .embedding_std = NAN, .padding = 0.25, .seed = 1234};

static void make(struct scratch *s, const char *model, enum elem_type elem,
                 const struct layout_options *layout, unsigned rank,
                 const struct initial_weights *w)
{
    const struct source_options none = {0};
    const struct batch b = {.num_sequences = 2, .length = 8};
    const struct pass_options logits = {.logits = true, .trace_layer = -1};
    char path[128];
    *s = (struct scratch){0};
    snprintf(path, sizeof path, "tests/golden/hf/%s", model);
    assert_ok(opened_open(&s->opened, path, &none, NULL, true, true, &err));
    s->config = s->opened.checkpoint.config;
    s->config.vocab_size = 101; /* no rank has as many true rows as another */
    const struct model_options o = {.layout = *layout, .elem = elem, .config = &s->config};
    assert_ok(model_simulate(&s->model, NULL, &o, rank, &err));
    assert_ok(pass_make(&s->pass, &s->model, &b, &logits, &err));
    s->region = calloc(1, s->model.parameters.bytes);
    memset(s->region, 0x7f, s->model.parameters.bytes);
    assert_ok(initial_weights_make(&s->model.parameters, &s->model.config, w, s->region, &err));
}

static void drop(struct scratch *s)
{
    free(s->region);
    pass_release(&s->pass);
    model_close(&s->model);
    opened_close(&s->opened);
}

static double weight_at(const struct scratch *s, const struct parameter *x, uint64_t i)
{
    const char *at = s->region + x->offset;
    uint32_t bits;
    float y;
    if (s->model.options.elem == ELEM_F64) return ((const double *)at)[i];
    if (s->model.options.elem == ELEM_F32) return (double)((const float *)at)[i];
    bits = (uint32_t)((const uint16_t *)at)[i] << 16;
    memcpy(&y, &bits, sizeof y);
    return (double)y;
}

/* ---- distributions ---- */

struct moments {
    double count, sum, square, fourth;
};

/* Moments of all elements, without padding, of parameters whose name ends in
 * `end`. */
static struct moments moments_of(const struct scratch *s, const char *end)
{
    struct moments m = {0};
    for (size_t i = 0; i < s->model.parameters.count; i++) {
        const struct parameter *x = &s->model.parameters.items[i];
        const size_t n = strlen(x->name), k = strlen(end);
        if (n < k || strcmp(x->name + n - k, end)) continue;
        const uint64_t columns = x->numel / x->shape[0];
        const uint64_t numel = x->spec->padded ? x->spec->shape[0] * columns : x->numel;
        for (uint64_t e = 0; e < numel; e++) {
            const double w = weight_at(s, x, e);
            m.count++, m.sum += w, m.square += w * w, m.fourth += w * w * w * w;
        }
    }
    return m;
}

/* Mean 0, the deviation, and the fourth moment of a normal distribution, within
 * five of their own deviations; never as good as a number that does not vary. */
static void check_normal(const struct scratch *s, const char *end, double std)
{
    const struct moments m = moments_of(s, end);
    const double n = m.count, square = m.square / n / (std * std),
                 fourth = m.fourth / n / (std * std * std * std);
    assert_true(n > 300);
    if (!(fabs(m.sum / n) < 5 * std / sqrt(n)) || !(fabs(square - 1) < 5 * sqrt(2 / n)) ||
        !(fabs(fourth - 3) < 5 * sqrt(96 / n)))
        fail_msg("%s: mean %g, deviation %g instead of %g, fourth moment %g", end, m.sum / n,
                 sqrt(m.square / n), std, fourth);
}

static void check_constant(const struct scratch *s, const char *end, double x)
{
    const struct moments m = moments_of(s, end);
    assert_true(m.count > 0);
    if (m.sum != x * m.count || m.square != x * x * m.count) fail_msg("%s: not %g", end, x);
}

static const struct layout_options one_rank = {.tp = 1};

static void weights_have_their_distribution(void **state)
{
    struct scratch s;
    struct initial_weights w = usual;
    (void)state;
    w.embedding_std = 0.3;
    make(&s, "gpt2", ELEM_F32, &one_rank, 0, &w);
    check_normal(&s, "word_embeddings.weight", 0.3);
    check_normal(&s, "position_embeddings.weight", 0.3);
    check_normal(&s, "linear_qkv.weight", 0.02);
    check_normal(&s, "linear_fc1.weight", 0.02);
    check_normal(&s, "linear_proj.weight", 0.02 / sqrt(2.0 * 2)); /* of two layers */
    check_normal(&s, "linear_fc2.weight", 0.02 / sqrt(2.0 * 2));
    check_constant(&s, "layer_norm_weight", 1);
    check_constant(&s, "final_layernorm.weight", 1);
    check_constant(&s, "bias", 0);
    drop(&s);
    w.std = 0.1, w.embedding_std = NAN;
    make(&s, "qwen3-moe", ELEM_BF16, &one_rank, 0, &w);
    check_normal(&s, "word_embeddings.weight", 0.1);
    check_normal(&s, "output_layer.weight", 0.1);
    check_normal(&s, "router.weight", 0.1);
    check_normal(&s, "experts.linear_fc1.weight", 0.1);
    check_normal(&s, "experts.linear_fc2.weight", 0.1 / sqrt(2.0 * 2));
    check_constant(&s, "q_layernorm.weight", 1);
    check_constant(&s, "k_layernorm.weight", 1);
    check_constant(&s, "pre_mlp_layernorm.weight", 1);
    drop(&s);
}

/* ---- layouts ---- */

/* The parameter of one rank that has a tensor, and which of its tensors that
 * is. */
static const struct parameter *holder_of(const struct scratch *s, const char *tensor, uint64_t *k)
{
    for (size_t i = 0; i < s->model.parameters.count; i++) {
        const struct parameter *x = &s->model.parameters.items[i];
        for (*k = 0; x->tensors && *k < x->num_tensors; ++*k)
            if (strcmp(x->tensors[*k], tensor) == 0) return x;
    }
    fail_msg("%s: nobody has it", tensor);
    return NULL;
}

/* Compares tensor k of a parameter with that of one rank, whose elements lie as
 * in the tensor; returns how many rows' elements are padding. */
static uint64_t compare_tensor(const struct scratch *part, const struct parameter *x, uint64_t k,
                               const struct scratch *whole)
{
    uint64_t at, a, b, padding = 0, numel = 1;
    const struct parameter *y = holder_of(whole, x->tensors[k], &at);
    const uint64_t own = x->numel / x->num_tensors, all = y->numel / y->num_tensors;
    for (unsigned d = 0; d < x->spec->num_dims; d++)
        numel *= x->spec->shape[d];
    for (unsigned i = 0; i < x->cut->count; i++)
        for (uint64_t e = 0; e < pair_count(&x->cut->pairs[i]); e++) {
            pair_element(&x->cut->pairs[i], e, &a, &b);
            const double got = weight_at(part, x, k * own + b);
            padding += a >= numel;
            if (got != (a < numel ? weight_at(whole, y, at * all + a) : 0.25))
                fail_msg("%s[%d] is %g", x->tensors[k], (int)a, got);
        }
    return padding;
}

static void compare_layout(const char *model, enum elem_type elem,
                           const struct layout_options *layout)
{
    struct scratch whole, part;
    const struct model_options o = {.layout = *layout};
    const struct group_sizes sizes = model_group_sizes(&o);
    uint64_t padding = 0;
    make(&whole, model, elem, &one_rank, 0, &usual);
    for (unsigned rank = 0; rank < groups_world_size(&sizes); rank++) {
        make(&part, model, elem, layout, rank, &usual);
        for (size_t i = 0; i < part.model.parameters.count; i++) {
            const struct parameter *x = &part.model.parameters.items[i];
            for (uint64_t k = 0; k < x->num_tensors; k++)
                padding += compare_tensor(&part, x, k, &whole);
        }
        drop(&part);
    }
    assert_true(padding > 0); /* 101 rows are not what ranks divide */
    drop(&whole);
}

static void weights_are_the_same_at_every_layout(void **state)
{
    static const struct {
        const char *model;
        struct layout_options layout;
    } cases[] = {
        {"gpt2", {.tp = 1}},
        {"gpt2", {.tp = 2}},
        {"llama3.1", {.tp = 4}},
        {"qwen3", {.tp = 2, .pp = 3}},
        {"mixtral", {.tp = 2, .ep = 2}},
        {"qwen3-moe", {.tp = 2, .ep = 4, .etp = 1}},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        for (unsigned elem = 0; elem < 3; elem++)
            compare_layout(cases[i].model, (enum elem_type[]){ELEM_F32, ELEM_BF16, ELEM_F64}[elem],
                           &cases[i].layout);
}

/* Megatron-LM's own rows of padding are as random as the others. */
static void padding_may_be_random(void **state)
{
    struct scratch s;
    struct initial_weights w = usual;
    size_t number;
    double square = 0;
    (void)state;
    w.padding = NAN;
    make(&s, "gpt2", ELEM_F32, &one_rank, 0, &w);
    assert_true(map_get(&s.model.parameters.names, "embedding.word_embeddings.weight", &number));
    const struct parameter *x = &s.model.parameters.items[number];
    const uint64_t first = x->spec->shape[0] * x->shape[1], count = x->numel - first;
    assert_true(count >= 100);
    for (uint64_t i = first; i < x->numel; i++)
        square += weight_at(&s, x, i) * weight_at(&s, x, i);
    assert_true(fabs(square / (double)count / (0.02 * 0.02) - 1) < 5 * sqrt(2 / (double)count));
    drop(&s);
}

/* The same seed gives the same numbers, in every type; another one gives
 * others; and so do names. */
static void weights_are_a_function_of_seed_and_name(void **state)
{
    struct scratch a, b, c;
    struct initial_weights other = usual;
    size_t number;
    (void)state;
    other.seed = 1235;
    make(&a, "llama3.1", ELEM_F64, &one_rank, 0, &usual);
    make(&b, "llama3.1", ELEM_F32, &one_rank, 0, &usual);
    make(&c, "llama3.1", ELEM_F64, &one_rank, 0, &other);
    assert_true(
        map_get(&a.model.parameters.names, "decoder.layers.0.mlp.linear_fc1.weight", &number));
    const struct parameter *x = &a.model.parameters.items[number],
                           *y = &b.model.parameters.items[number];
    assert_true(
        map_get(&a.model.parameters.names, "decoder.layers.1.mlp.linear_fc1.weight", &number));
    const struct parameter *next = &a.model.parameters.items[number];
    for (uint64_t i = 0; i < x->numel; i++) {
        assert_true((float)weight_at(&a, x, i) == (float)weight_at(&b, y, i));
        assert_true(weight_at(&a, x, i) != weight_at(&c, x, i));
        assert_true(weight_at(&a, x, i) != weight_at(&a, next, i));
    }
    drop(&a);
    drop(&b);
    drop(&c);
}

static void a_parameter_without_a_rule_is_refused(void **state)
{
    static const struct param_spec spec = {
        .name = "decoder.dials", .split = -1, .num_dims = 1, .shape = {4}};
    const struct model_config config = {.num_layers = 1};
    const struct cut one = {.size = 1};
    struct parameters p;
    uint32_t number;
    char region[256];
    (void)state;
    parameters_init(&p, ELEM_F32);
    assert_ok(parameters_add(&p, spec.name, &spec, &one, &number, &err));
    assert_fails(initial_weights_make(&p, &config, &usual, region, &err), ERR_UNSUPPORTED,
                 "decoder.dials: no rule for its initial weights");
    parameters_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_have_their_distribution),
        cmocka_unit_test(weights_are_the_same_at_every_layout),
        cmocka_unit_test(padding_may_be_random),
        cmocka_unit_test(weights_are_a_function_of_seed_and_name),
        cmocka_unit_test(a_parameter_without_a_rule_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
