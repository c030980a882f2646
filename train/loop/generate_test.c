/* Generation with a cache of keys and values, beside forward passes without
 * one. */
#include <math.h>

#include "common/count.h"
#include "tests/testing.h"
#include "train/loop/engine.h"

extern const struct engine ferry_engine;

static struct error err;

enum { SEQUENCES = 2, PROMPT = 7, NEW = 9, WHOLE = PROMPT + NEW };

static struct engine_model model_of(const char *path, const struct model_options *o)
{
    return (struct engine_model){.path = path,
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
        .end_tokens = &end_token,
        .num_end_tokens = end_token >= 0,
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
    for (unsigned i = 0; i < COUNT(paths); i++) {
        struct model_options o = {.elem = ELEM_F64};
        struct texts t;
        if (!test_takes(i, COUNT(paths))) continue;
        generate(&t, paths[i], &o, &greedy, -1);
        assert_int_equal(t.steps, NEW);
        check_against_forward(&t, paths[i]);
    }
}

static const struct layout_options layouts[] = {
    {.tp = 2}, {.pp = 2}, {.ep = 2}, {.tp = 2, .pp = 2}, {.tp = 2, .ep = 2, .etp = 1}};
enum { NUM_LAYOUTS = COUNT(layouts) };

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
        for (unsigned i = 0; i < NUM_LAYOUTS; i++) {
            if (!test_takes(i + k, NUM_LAYOUTS)) continue;
            o.layout = layouts[i];
            o.sequence_parallel = layouts[i].tp == 2 && i % 2;
            generate(&t, "tests/golden/hf/qwen3-moe", &o, &kinds[k], -1);
            assert_memory_equal(&t, &alone, sizeof t);
        }
    }
}

/* The head of GPT-2 has rows behind its vocabulary, on the last rank. */
static void padding_of_the_vocabulary_is_never_chosen(void **state)
{
    static const struct sampling any = {.temperature = 100, .top_p = 1, .seed = 3};
    (void)state;
    struct texts alone, t;
    struct model_options o = {.elem = ELEM_F64};
    generate(&alone, "tests/golden/hf/gpt2", &o, &any, -1);
    o.layout.tp = 2;
    generate(&t, "tests/golden/hf/gpt2", &o, &any, -1);
    assert_memory_equal(&t, &alone, sizeof t);
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

/* ---- prompts of several lengths ---- */

enum { MANY = 5, LONGEST = 9 };

struct many_texts {
    int32_t tokens[MANY][NEW];
    uint64_t num_sequences;
    unsigned steps;
};

static enum status take_many(void *context, const int32_t *tokens, struct error *e)
{
    struct many_texts *t = context;
    (void)e;
    for (uint64_t s = 0; s < t->num_sequences; s++)
        t->tokens[s][t->steps] = tokens[s];
    t->steps++;
    return OK;
}

static void generate_many(struct many_texts *t, const char *path, const struct model_options *o,
                          const struct batch *prompts)
{
    *t = (struct many_texts){.num_sequences = prompts->num_sequences};
    struct generate_request q = {.model = model_of(path, o),
                                 .prompts = *prompts,
                                 .max_new_tokens = NEW,
                                 .sampling = greedy,
                                 .visit = take_many,
                                 .context = t};
    assert_ok(ferry_engine.generate(&q, &err));
}

/* Filler is ids that would change everything if anybody looked at them. */
static void prompts_of_several_lengths_go_on_as_each_alone(void **state)
{
    (void)state;
    static const uint64_t lengths[MANY] = {3, LONGEST, 1, 6, 2};
    static const struct {
        const char *path;
        struct model_options options;
    } cases[] = {
        {"tests/golden/hf/gpt2", {.elem = ELEM_F64}},
        {"tests/golden/hf/llama3.1", {.elem = ELEM_F64, .layout = {.tp = 4}}},
        {"tests/golden/hf/mistral",
         {.elem = ELEM_F64, .layout = {.dp = 2}}}, /* one rank has a row too many */
        {"tests/golden/hf/qwen3-moe", {.elem = ELEM_F64, .layout = {.tp = 2, .ep = 2, .etp = 1}}},
    };
    int32_t ids[MANY * LONGEST];
    uint64_t r = test_seed();
    for (unsigned i = 0; i < MANY * LONGEST; i++)
        ids[i] = (int32_t)test_below(&r, 200);
    const struct batch prompts = {
        .num_sequences = MANY, .length = LONGEST, .ids = ids, .lengths = lengths};
    for (unsigned i = 0; i < COUNT(cases); i++) {
        struct many_texts all, one;
        struct model_options alone = {.elem = ELEM_F64};
        generate_many(&all, cases[i].path, &cases[i].options, &prompts);
        for (unsigned s = 0; s < MANY; s++) {
            const struct batch own = {
                .num_sequences = 1, .length = lengths[s], .ids = ids + s * LONGEST};
            generate_many(&one, cases[i].path, &alone, &own);
            assert_memory_equal(all.tokens[s], one.tokens[0], sizeof one.tokens[0]);
        }
    }
}

/* ---- what is drawn ---- */

enum { DRAWS = 4000, TOP_K = 10, VOCAB = 300 };
#define TOP_P 0.6

/* Two tokens behind one prompt, many times. */
struct drawn {
    int32_t tokens[2][DRAWS];
    unsigned steps;
};

static enum status take_drawn(void *context, const int32_t *tokens, struct error *e)
{
    struct drawn *d = context;
    (void)e;
    memcpy(d->tokens[d->steps++], tokens, sizeof d->tokens[0]);
    return OK;
}

static void draw(struct drawn *d, const char *path, const struct model_options *o,
                 const int32_t *prompt)
{
    static int32_t ids[DRAWS * PROMPT];
    for (unsigned i = 0; i < DRAWS; i++)
        memcpy(ids + i * PROMPT, prompt, PROMPT * sizeof *prompt);
    d->steps = 0;
    struct generate_request q = {
        .model = model_of(path, o),
        .prompts = {.num_sequences = DRAWS, .length = PROMPT, .ids = ids},
        .max_new_tokens = 2,
        .sampling = {.temperature = 1, .top_p = TOP_P, .top_k = TOP_K, .seed = 3},
        .visit = take_drawn,
        .context = d};
    assert_ok(ferry_engine.generate(&q, &err));
}

/* The probabilities behind a prompt, as a forward pass without a cache gives
 * them. */
struct expected {
    struct batch batch;
    double p[VOCAB];
    uint64_t num_ids;
};

static enum status next_expected(void *context, uint64_t number, struct batch *b, bool *more,
                                 struct error *e)
{
    (void)e;
    *b = ((struct expected *)context)->batch;
    *more = number == 0;
    return OK;
}

/* The largest first, up to TOP_K of them and TOP_P of what these have. */
static enum status take_expected(void *context, const struct collected *c, struct error *e)
{
    struct expected *x = context;
    const float *row = (const float *)c->data + (c->rows - 1) * c->columns;
    double kept[TOP_K], all = 0, sum = 0;
    unsigned ids[TOP_K], n = 0;
    bool taken[VOCAB] = {false};
    (void)e;
    assert_true(c->columns <= VOCAB && c->dtype == DT_F32);
    for (n = 0; n < TOP_K; n++) {
        unsigned best = VOCAB;
        for (unsigned i = 0; i < c->columns; i++)
            if (!taken[i] && (best == VOCAB || row[i] > row[best])) best = i;
        taken[best] = true;
        ids[n] = best;
        all += kept[n] = exp((double)row[best] - (double)row[ids[0]]);
    }
    memset(x->p, 0, sizeof x->p);
    for (n = 0; n < TOP_K && sum < TOP_P * all; n++)
        sum += kept[n];
    for (unsigned i = 0; i < n; i++)
        x->p[ids[i]] = kept[i] / sum;
    return OK;
}

static void expect(struct expected *x, const char *path, const struct model_options *o,
                   const int32_t *ids, uint64_t length)
{
    x->batch = (struct batch){.num_sequences = 1, .length = length, .ids = ids};
    struct forward_request q = {.model = model_of(path, o),
                                .pass = {.logits = true, .trace_layer = -1},
                                .shape = x->batch,
                                .next = next_expected,
                                .visit = take_expected,
                                .context = x};
    assert_ok(ferry_engine.forward(&q, &err));
}

/* Second tokens behind the first token `first`: chi-square in units of its
 * standard deviation. */
static double deviation(const struct drawn *d, const struct expected *x, int32_t first)
{
    unsigned counts[VOCAB] = {0}, n = 0, kept = 0;
    double chi = 0;
    for (unsigned i = 0; i < DRAWS; i++) {
        if (d->tokens[0][i] != first) continue;
        counts[d->tokens[1][i]]++;
        n++;
    }
    for (unsigned i = 0; i < VOCAB; i++) {
        const double wanted = x->p[i] * n, off = counts[i] - wanted;
        if (wanted == 0 && counts[i]) return INFINITY;
        if (wanted == 0) continue;
        chi += off * off / wanted;
        kept++;
    }
    return kept > 1 ? (chi - (kept - 1)) / sqrt(2.0 * (kept - 1)) : 0;
}

/* In bf16, too: what differs from f64 is in the logits, and so at the edge of
 * top-p. */
static void second_tokens_are_drawn_from_the_logits_of_their_own_type(void **state)
{
    (void)state;
    static const char *const paths[] = {"tests/golden/hf/llama3.1", "tests/golden/hf/mistral"};
    static const int32_t prompt[PROMPT] = {5, 17, 33, 90, 120, 7, 64};
    static struct drawn d;
    if (test_on_gpu()) skip(); /* few rows and many are other kernels there, of other roundings */
    for (unsigned i = 0; i < COUNT(paths); i++) {
        const struct model_options o = {.elem = ELEM_BF16};
        struct expected x;
        int32_t ids[PROMPT + 1];
        draw(&d, paths[i], &o, prompt);
        memcpy(ids, prompt, sizeof prompt);
        double firsts[VOCAB];
        expect(&x, paths[i], &o, prompt, PROMPT);
        memcpy(firsts, x.p, sizeof firsts);
        for (int32_t t = 0; t < VOCAB; t++) {
            if (firsts[t] == 0) continue;
            ids[PROMPT] = t;
            expect(&x, paths[i], &o, ids, PROMPT + 1);
            const double z = deviation(&d, &x, t);
            if (!(z < 4)) fail_msg("%s: behind token %d: %.1f deviations", paths[i], t, z);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_likeliest_tokens_are_those_of_forward_passes),
        cmocka_unit_test(every_layout_gives_the_same_tokens),
        cmocka_unit_test(padding_of_the_vocabulary_is_never_chosen),
        cmocka_unit_test(another_seed_gives_other_tokens),
        cmocka_unit_test(a_sequence_ends_with_its_end_token),
        cmocka_unit_test(prompts_of_several_lengths_go_on_as_each_alone),
        cmocka_unit_test(second_tokens_are_drawn_from_the_logits_of_their_own_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
