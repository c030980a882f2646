/* Generation with a cache of keys and values, beside forward passes without one. */
#include "tests/testing.h"
#include "train/engine.h"

extern const struct engine ferry_engine;

static struct error err;

enum { SEQUENCES = 2, PROMPT = 7, NEW = 9, WHOLE = PROMPT + NEW };

static const struct source_flags own_source = {.ckpt_step = UINT64_MAX};

static struct engine_model model_of(const char *path, const struct model_options *o)
{
    return (struct engine_model){.path = path,
                                 .source = &own_source,
                                 .options = *o,
                                 .on_gpu = test_on_gpu(),
                                 .threads = 2,
                                 .progress = PROGRESS_NONE,
                                 .quiet = true};
}

static void make_prompts(int32_t prompts[SEQUENCES * PROMPT])
{
    uint64_t r = test_seed();
    for (unsigned i = 0; i < SEQUENCES * PROMPT; i++)
        prompts[i] = (int32_t)test_below(&r, 200);
}

struct texts {
    int32_t tokens[SEQUENCES][NEW];
    unsigned steps;
};

static enum status take_tokens(void *context, const int32_t *tokens, struct error *e)
{
    struct texts *t = context;
    (void)e;
    for (unsigned s = 0; s < SEQUENCES; s++)
        t->tokens[s][t->steps] = tokens[s];
    t->steps++;
    return OK;
}

static void generate(struct texts *t, const char *path, const struct model_options *o,
                     const struct sampling *sampling, int32_t end_token)
{
    int32_t prompts[SEQUENCES * PROMPT];
    make_prompts(prompts);
    memset(t, 0, sizeof *t);
    struct generate_request q = {
        .model = model_of(path, o),
        .prompts = {.num_sequences = SEQUENCES, .length = PROMPT, .ids = prompts},
        .max_new_tokens = NEW,
        .sampling = *sampling,
        .end_token = end_token,
        .visit = take_tokens,
        .context = t};
    assert_ok(ferry_engine.generate(&q, &err));
}

/* ---- without a cache ---- */

struct whole {
    struct batch batch;
    int32_t likeliest[SEQUENCES * WHOLE]; /* token behind each position */
};

static enum status next_batch(void *context, uint64_t number, struct batch *b, bool *more,
                              struct error *e)
{
    (void)e;
    *b = ((struct whole *)context)->batch;
    *more = number == 0;
    return OK;
}

static enum status take_logits(void *context, const struct collected *c, struct error *e)
{
    struct whole *w = context;
    const double *logits = c->data;
    (void)e;
    for (uint64_t i = 0; i < c->rows; i++) {
        w->likeliest[i] = 0;
        for (uint64_t k = 1; k < c->columns; k++)
            if (logits[i * c->columns + k] > logits[i * c->columns + (uint64_t)w->likeliest[i]])
                w->likeliest[i] = (int32_t)k;
    }
    return OK;
}

static void check_against_forward(const struct texts *t, const char *path)
{
    int32_t prompts[SEQUENCES * PROMPT], ids[SEQUENCES * WHOLE];
    struct whole w = {.batch = {.num_sequences = SEQUENCES, .length = WHOLE, .ids = ids}};
    struct model_options alone = {.elem = ELEM_F64};
    make_prompts(prompts);
    for (unsigned s = 0; s < SEQUENCES; s++) {
        memcpy(ids + s * WHOLE, prompts + s * PROMPT, PROMPT * sizeof *ids);
        memcpy(ids + s * WHOLE + PROMPT, t->tokens[s], NEW * sizeof *ids);
    }
    struct forward_request q = {.model = model_of(path, &alone),
                                .pass = {.logits = true, .trace_layer = -1},
                                .shape = w.batch,
                                .next = next_batch,
                                .visit = take_logits,
                                .context = &w};
    assert_ok(ferry_engine.forward(&q, &err));
    for (unsigned s = 0; s < SEQUENCES; s++)
        for (unsigned i = 0; i < NEW; i++)
            if (t->tokens[s][i] != w.likeliest[s * WHOLE + PROMPT - 1 + i])
                fail_msg("%s: token %u of sequence %u is %d, without a cache %d", path, i, s,
                         t->tokens[s][i], w.likeliest[s * WHOLE + PROMPT - 1 + i]);
}

static const struct sampling greedy = {.temperature = 0, .top_p = 1};

static void the_likeliest_tokens_are_those_of_forward_passes(void **state)
{
    (void)state;
    static const char *const paths[] = {"tests/golden/hf/gpt2", "tests/golden/hf/llama3.1",
                                        "tests/golden/hf/mistral", "tests/golden/hf/qwen3",
                                        "tests/golden/hf/qwen3-moe"};
    for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct model_options o = {.elem = ELEM_F64};
        struct texts t;
        generate(&t, paths[i], &o, &greedy, -1);
        assert_int_equal(t.steps, NEW);
        check_against_forward(&t, paths[i]);
    }
}

static const struct layout_options layouts[] = {
    {.tp = 2}, {.pp = 2}, {.tp = 2, .pp = 2}, {.ep = 2}, {.tp = 2, .ep = 2, .etp = 1}};

static void every_layout_gives_the_same_tokens(void **state)
{
    (void)state;
    static const struct sampling kinds[] = {
        {.temperature = 0, .top_p = 1},
        {.temperature = 0.8, .top_p = 0.9, .top_k = 20, .seed = 7},
    };
    for (unsigned k = 0; k < 2; k++) {
        struct texts alone, t;
        struct model_options o = {.elem = ELEM_F64};
        generate(&alone, "tests/golden/hf/qwen3-moe", &o, &kinds[k], -1);
        for (unsigned i = 0; i < sizeof layouts / sizeof *layouts; i++) {
            o.layout = layouts[i];
            o.sequence_parallel = layouts[i].tp == 2 && i % 2;
            generate(&t, "tests/golden/hf/qwen3-moe", &o, &kinds[k], -1);
            assert_memory_equal(&t, &alone, sizeof t);
        }
    }
}

static void another_seed_gives_other_tokens(void **state)
{
    (void)state;
    struct sampling s = {.temperature = 1, .top_p = 1, .seed = 1};
    struct model_options o = {.elem = ELEM_F32};
    struct texts a, b, again;
    generate(&a, "tests/golden/hf/gpt2", &o, &s, -1);
    generate(&again, "tests/golden/hf/gpt2", &o, &s, -1);
    s.seed = 2;
    generate(&b, "tests/golden/hf/gpt2", &o, &s, -1);
    assert_memory_equal(&a, &again, sizeof a);
    assert_memory_not_equal(&a, &b, sizeof a);
}

static void a_sequence_ends_with_its_end_token(void **state)
{
    (void)state;
    struct model_options o = {.elem = ELEM_F64};
    struct texts all, ended;
    generate(&all, "tests/golden/hf/gpt2", &o, &greedy, -1);
    int32_t end = all.tokens[0][2];
    generate(&ended, "tests/golden/hf/gpt2", &o, &greedy, end);
    unsigned first = 0;
    while (all.tokens[0][first] != end)
        first++;
    assert_int_equal(ended.tokens[0][first], end);
    for (unsigned i = first + 1; i < ended.steps; i++)
        assert_int_equal(ended.tokens[0][i], -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_likeliest_tokens_are_those_of_forward_passes),
        cmocka_unit_test(every_layout_gives_the_same_tokens),
        cmocka_unit_test(another_seed_gives_other_tokens),
        cmocka_unit_test(a_sequence_ends_with_its_end_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
