/* Weights that stay codes in memory, beside the same weights decoded: bits of
 * logits, tokens, memory. */
#include <math.h>
#include <stdlib.h>

#include "common/count.h"
#include "tests/testing.h"
#include "train/engine/memory_plan.h"
#include "train/loop/engine.h"

extern const struct engine ferry_engine;

static struct error err;

enum { SEQUENCES = 2, LENGTH = 7, NEW = 5, VOCAB = 16 };

struct ran {
    char *logits;
    uint64_t bytes;
    enum dtype dtype;
    struct fit_memory memory; /* of the last rank */
};

static enum status take_logits(void *context, const struct collected *c, struct error *e)
{
    struct ran *r = context;
    (void)e;
    assert_string_equal(c->name, "logits");
    assert_int_equal(c->num_rows, c->rows);
    r->bytes = collected_bytes(c);
    r->dtype = c->dtype;
    r->logits = malloc(r->bytes);
    assert_non_null(r->logits);
    memcpy(r->logits, c->data, r->bytes);
    return OK;
}

static enum status take_plan(void *context, const struct fit_memory *ranks, unsigned num_ranks,
                             struct error *e)
{
    (void)e;
    ((struct ran *)context)->memory = ranks[num_ranks - 1];
    return OK;
}

static const struct batch *batch_of_prompts(void)
{
    static int32_t ids[SEQUENCES * LENGTH];
    static const struct batch b = {.num_sequences = SEQUENCES, .length = LENGTH, .ids = ids};
    uint64_t seed = test_seed();
    for (size_t i = 0; i < COUNT(ids); i++)
        ids[i] = (int32_t)test_below(&seed, VOCAB);
    return &b;
}

static enum status one_batch(void *context, uint64_t number, struct batch *b, bool *more,
                             struct error *e)
{
    (void)context, (void)e;
    *b = *batch_of_prompts();
    *more = number == 0;
    return OK;
}

static struct engine_model model_of(const char *name, const struct model_options *o,
                                    bool keeps_codes)
{
    static char path[256];
    struct model_options own = *o;
    own.keeps_codes = keeps_codes;
    snprintf(path, sizeof path, "tests/golden/%s", name);
    return (struct engine_model){.path = path,
                                 .options = own,
                                 .on_gpu = test_on_gpu(),
                                 .threads = 2,
                                 .progress = PROGRESS_NONE,
                                 .quiet = true};
}

static enum status try_forward(struct ran *r, const char *name, const struct model_options *o,
                               bool keeps_codes)
{
    struct forward_request q = {.model = model_of(name, o, keeps_codes),
                                .pass = {.logits = true, .trace_layer = -1},
                                .shape = *batch_of_prompts(),
                                .next = one_batch,
                                .visit = take_logits,
                                .visit_plan = take_plan,
                                .context = r};
    *r = (struct ran){.logits = NULL};
    return ferry_engine.forward(&q, &err);
}

/* Kernels of a GPU sum coded weights in another order. */
static void check_logits(const struct ran *coded, const struct ran *decoded)
{
    assert_int_equal(coded->bytes, decoded->bytes);
    if (!test_on_gpu()) {
        assert_memory_equal(coded->logits, decoded->logits, coded->bytes);
        return;
    }
    for (uint64_t i = 0; i < coded->bytes / dtype_bytes(coded->dtype); i++) {
        const double a = dtype_load(coded->dtype, coded->logits, i),
                     b = dtype_load(decoded->dtype, decoded->logits, i);
        assert_true(fabs(a - b) <= 0.05 * (1 + fabs(b)));
    }
}

struct model_case {
    const char *name;
    struct layout_options layout;
    uint64_t coded, not_coded; /* weights of the last rank */
};

/* One layer: qkv, projection, fc1 and fc2, of a dense MLP or of all experts. */
static const struct model_case cases[] = {
    {"encodings/fp8-block-ct-qwen3", {.tp = 1}, 4, 0},
    {"encodings/fp8-block-shards-qwen3", {.tp = 1}, 4, 0},
    {"encodings/fp8-block-ue8m0-qwen3", {.tp = 1}, 4, 0},
    {"encodings/fp8-block-ue8m0-llama", {.tp = 1}, 4, 0},
    {"encodings/fp8-block-bf16-scale-qwen3-moe", {.tp = 1}, 4, 0},
    {"encodings/fp8-fp4-experts-deepseek-v4-names", {.tp = 1}, 4, 0},
    {"encodings/mxfp4-ct-qwen3", {.tp = 1}, 4, 0},
    {"encodings/mxfp4-modelopt-llama", {.tp = 1}, 4, 0},
    {"encodings/mxfp8-ct-llama", {.tp = 1}, 4, 0},
    {"encodings/fp8-channel-ct-qwen3-moe", {.tp = 1}, 4, 0},
    {"encodings/fp8-kv-modelopt-llama", {.tp = 1}, 4, 0},
    {"encodings/int8-channel-ct-qwen3", {.tp = 1}, 4, 0},
    {"encodings/fp8-block-ct-qwen3", {.tp = 2}, 2, 2},
    {"encodings/mxfp4-modelopt-llama", {.tp = 2}, 4, 0},
    {"encodings/fp8-channel-ct-qwen3-moe", {.tp = 2}, 4, 0},
    {"encodings/fp8-block-bf16-scale-qwen3-moe", {.ep = 2}, 4, 0},
    {"encodings/int4-asym-ct-qwen3", {.tp = 1}, 0, 4},
    {"encodings/nvfp4-ct-llama", {.tp = 1}, 0, 4},
    {"encodings/gptq-int4-llama", {.tp = 1}, 0, 4},
    {"encodings/bnb-nf4-llama", {.tp = 1}, 0, 4},
    {"encodings/bnb-int8-llama", {.tp = 1}, 0, 4},
    {"hf/llama3.2", {.tp = 1}, 0, 0},
};

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + 4 * MEMORY_ALIGNMENT) / MEMORY_ALIGNMENT * MEMORY_ALIGNMENT;
}

static void check_memory(const struct model_case *c, const struct ran *coded,
                         const struct ran *decoded)
{
    const struct coded_summary *s = &coded->memory.coded;
    if (s->coded != c->coded || s->not_coded != c->not_coded)
        fail_msg("%s: %d weights stay coded, %d do not", c->name, (int)s->coded, (int)s->not_coded);
    assert_int_equal(decoded->memory.coded.coded, 0);
    assert_int_equal(decoded->memory.coded.not_coded, c->coded + c->not_coded);
    if (!c->coded) {
        assert_int_equal(coded->memory.parameters, decoded->memory.parameters);
        return;
    }
    const uint64_t saved = decoded->memory.parameters - coded->memory.parameters;
    assert_in_range(saved, s->decoded_bytes - aligned(s->bytes),
                    aligned(s->decoded_bytes) - s->bytes);
}

static void logits_have_the_bits_of_decoded_weights(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        for (enum elem_type elem = 0; elem < NUM_ELEM_TYPES; elem++) {
            const struct model_options o = {.layout = cases[i].layout, .elem = elem};
            struct ran coded, decoded;
            if (try_forward(&decoded, cases[i].name, &o, false) ||
                try_forward(&coded, cases[i].name, &o, true))
                fail_msg("%s: %s", cases[i].name, err.text);
            check_logits(&coded, &decoded);
            check_memory(&cases[i], &coded, &decoded);
            free(coded.logits);
            free(decoded.logits);
        }
}

struct tokens_made {
    int32_t tokens[NEW * SEQUENCES];
    size_t count;
};

static enum status take_tokens(void *context, const int32_t *tokens, struct error *e)
{
    struct tokens_made *t = context;
    (void)e;
    memcpy(t->tokens + t->count, tokens, SEQUENCES * sizeof *tokens);
    t->count += SEQUENCES;
    return OK;
}

static void generate(struct tokens_made *t, const char *name, enum elem_type elem, bool keeps_codes)
{
    const struct model_options o = {.elem = elem};
    const struct generate_request q = {.model = model_of(name, &o, keeps_codes),
                                       .prompts = *batch_of_prompts(),
                                       .max_new_tokens = NEW,
                                       .sampling = {.top_p = 1},
                                       .visit = take_tokens,
                                       .context = t};
    t->count = 0;
    assert_ok(ferry_engine.generate(&q, &err));
    assert_int_equal(t->count, COUNT(t->tokens));
}

static void the_same_tokens_are_generated(void **state)
{
    static const enum elem_type elems[] = {ELEM_F32, ELEM_BF16};
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        for (size_t k = 0; k < COUNT(elems); k++) {
            struct tokens_made coded, decoded;
            if (!cases[i].coded || (test_on_gpu() && elems[k] == ELEM_BF16)) continue;
            generate(&decoded, cases[i].name, elems[k], false);
            generate(&coded, cases[i].name, elems[k], true);
            assert_memory_equal(coded.tokens, decoded.tokens, sizeof coded.tokens);
        }
}

static void a_scale_that_is_no_number_is_named(void **state)
{
    static const char *const names[] = {
        "bad-fp8-scale-nan",
        "bad-fp8-e8m0-nan",
        "bad-mxfp8-scale-nan",
        "bad-int8-scale-inf",
    };
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        const struct model_options o = {.elem = ELEM_BF16};
        struct ran r;
        char name[128];
        snprintf(name, sizeof name, "encodings/%s", names[i]);
        assert_fails(try_forward(&r, name, &o, true), ERR_CORRUPT, "scale");
    }
}

static enum status ignore_weight(void *context, const struct tensor_digest *d, struct error *e)
{
    (void)context, (void)d, (void)e;
    return OK;
}

static void coded_weights_have_no_digests(void **state)
{
    const struct model_options o = {.elem = ELEM_BF16};
    struct ran r = {.logits = NULL};
    struct forward_request q = {.model = model_of(cases[0].name, &o, true),
                                .pass = {.logits = true, .trace_layer = -1},
                                .shape = *batch_of_prompts(),
                                .next = one_batch,
                                .visit = take_logits,
                                .visit_weights = ignore_weight,
                                .context = &r};
    (void)state;
    assert_fails(ferry_engine.forward(&q, &err), ERR_UNSUPPORTED,
                 "linear_qkv.weight: a weight that stays coded has no digest");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_have_the_bits_of_decoded_weights),
        cmocka_unit_test(the_same_tokens_are_generated),
        cmocka_unit_test(a_scale_that_is_no_number_is_named),
        cmocka_unit_test(coded_weights_have_no_digests),
    };
    return cmocka_run_group_tests_name("as_stored", tests, NULL, NULL);
}
