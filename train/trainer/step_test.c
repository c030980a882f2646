/* Training steps beside those that transformers and torch.optim.AdamW made
 * (train.jsonl beside the golden models: peers/train_step.py). */
#include "train/trainer/testing_step.h"

#include <cjson/cJSON.h>
#include <math.h>

#include "common/count.h"

enum { SEQUENCES = 2, LENGTH = 16, STEPS = 10 };

/* ---- what peers computed ---- */

struct tokens_of_step {
    int32_t ids[SEQUENCES * LENGTH], targets[SEQUENCES * LENGTH];
    double weights[SEQUENCES * LENGTH];
};

/* The stream of train_step.py; the losses' mean. */
static void next_tokens(uint64_t *x, uint64_t vocab_size, struct tokens_of_step *t)
{
    for (size_t s = 0; s < SEQUENCES; s++)
        for (size_t i = 0; i <= LENGTH; i++) {
            const int32_t id = (int32_t)((*x >> 33) % vocab_size);
            *x = *x * 6364136223846793005u + 1442695040888963407u;
            if (i < LENGTH) t->ids[s * LENGTH + i] = id;
            if (i > 0) t->targets[s * LENGTH + i - 1] = id;
        }
    for (size_t i = 0; i < SEQUENCES * LENGTH; i++)
        t->weights[i] = 1.0 / (SEQUENCES * LENGTH);
}

static struct batch batch_of(const struct tokens_of_step *t)
{
    return (struct batch){.num_sequences = SEQUENCES,
                          .length = LENGTH,
                          .ids = t->ids,
                          .targets = t->targets,
                          .weights = t->weights};
}

struct golden_step {
    double lr, loss, grad_norm, params_norm;
};

static double number(const cJSON *o, const char *name)
{
    const cJSON *item = cJSON_GetObjectItem(o, name);
    assert_non_null(item);
    return item->valuedouble;
}

static void read_golden(const char *model, struct golden_step steps[STEPS])
{
    char path[128], line[4096];
    snprintf(path, sizeof path, "tests/golden/hf/%s/train.jsonl", model);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    for (size_t i = 0; i < STEPS; i++) {
        assert_non_null(fgets(line, sizeof line, f));
        cJSON *o = cJSON_Parse(line);
        steps[i] = (struct golden_step){number(o, "lr"), number(o, "loss"), number(o, "grad_norm"),
                                        number(o, "params_norm")};
        cJSON_Delete(o);
    }
    (void)fclose(f);
}

static void near(const char *model, unsigned step, const char *what, double got, double want,
                 double tolerance)
{
    if (!(fabs(got - want) <= tolerance * fabs(want)))
        fail_msg("%s, step %u: %s is %.15g, not %.15g", model, step + 1, what, got, want);
}

/* transformers gives one row of the table of embeddings no gradient
 * (padding_idx). */
static void forget_row(const struct test_session *s, int32_t id)
{
    size_t i;
    assert_true(map_get(&s->model.parameters.names, "embedding.word_embeddings.weight", &i));
    const struct parameter *x = &s->model.parameters.items[i];
    const size_t row = x->shape[1] * (s->model.options.elem == ELEM_F64 ? 8 : 4);
    memset((char *)s->step.regions[VALUE_GRADIENT] + x->offset + (size_t)id * row, 0, row);
}

/* pad: that id; -1: none. */
static void train_beside_golden(const char *model, enum elem_type elem, int32_t pad,
                                unsigned num_steps, double tolerance)
{
    struct test_session s;
    const struct step_options options = test_step_options(SEQUENCES, LENGTH);
    struct golden_step steps[STEPS];
    uint64_t x = 6364136223846793005u + 1442695040888963407u; /* the word after 1 */
    read_golden(model, steps);
    test_session_open(&s, model, elem, &options, NULL);
    for (unsigned i = 0; i < num_steps; i++) {
        struct tokens_of_step t;
        struct step_result r;
        const struct step_control c = {steps[i].lr, 0.1, i + 1, 1, 1};
        next_tokens(&x, s.model.config.vocab_size, &t);
        const struct micro_batch b = {.batch = batch_of(&t), .loss_scale = 1, .first = true};
        test_micro_batch(&s.step, &b);
        if (pad >= 0) forget_row(&s, pad);
        assert_ok(step_update(&s.step, &c, &err));
        assert_ok(step_wait(&s.step, &r, &err));
        near(model, i, "loss", r.loss, steps[i].loss, tolerance);
        near(model, i, "grad_norm", r.grad_norm, steps[i].grad_norm, tolerance);
        near(model, i, "params_norm", r.params_norm, steps[i].params_norm, tolerance);
        assert_false(r.skipped);
    }
    test_session_close(&s);
}

static void gpt2_trains_as_peers_do(void **state)
{
    (void)state;
    train_beside_golden("gpt2", ELEM_F64, -1, STEPS, 1e-10);
    train_beside_golden("gpt2", ELEM_F32, -1, STEPS, 1e-5);
}

/* Rotary angles are rounded to f32 here, and are f64 there. Where the table is
 * the head, too, the row that transformers leaves out has a gradient by it:
 * only the steps before its token are compared. In step 8 of qwen3-moe two
 * experts of a token are so near that the rounding chooses. */
static void other_families_train_as_peers_do(void **state)
{
    enum { PAD = 2 };
    static const struct {
        const char *model;
        bool tied;
        unsigned steps;
    } cases[] = {{"llama3.1", false, STEPS},
                 {"llama3.2", true, 3},
                 {"qwen3", true, 3},
                 {"mixtral", false, STEPS},
                 {"qwen3-moe", false, 7}};
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const int32_t pad = cases[i].tied ? -1 : PAD;
        train_beside_golden(cases[i].model, ELEM_F64, pad, cases[i].steps, 1e-6);
        train_beside_golden(cases[i].model, ELEM_F32, pad, cases[i].steps, 1e-5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_trains_as_peers_do),
        cmocka_unit_test(other_families_train_as_peers_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
