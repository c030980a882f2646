/* testing_run.h - a run of Megatron-LM in tests/golden/train, step by step.
 * Tests only. */
#ifndef FERRY_TRAIN_TRAINER_TESTING_RUN_H
#define FERRY_TRAIN_TRAINER_TESTING_RUN_H

#include "common/file.h"
#include "common/json.h"
#include "tests/testing.h"

enum { MAX_GOLDEN_STEPS = 64 };

struct golden_step {
    uint64_t iteration, consumed_samples;
    double lr, weight_decay, logged_lr;
    bool has_loss, has_grad_norm;
    double loss, grad_norm, params_norm, loss_scale;
    bool skipped;
};

struct golden_run {
    const char *name;
    struct golden_step steps[MAX_GOLDEN_STEPS];
    size_t num_steps;
};

static inline void golden_read_file(const char *name, const char *file, struct strbuf *out)
{
    char path[256];
    struct error err;
    snprintf(path, sizeof path, "tests/golden/train/%s/%s", name, file);
    if (file_read_all(path, 1 << 20, out, &err)) fail_msg("%s", err.text);
}

static inline void golden_read_step(struct golden_step *s, const cJSON *line)
{
    json_as_u64(json_get(line, "iteration"), &s->iteration);
    json_as_u64(json_get(line, "consumed_samples"), &s->consumed_samples);
    json_as_double(json_get(line, "lr"), &s->lr);
    json_as_double(json_get(line, "weight_decay"), &s->weight_decay);
    json_as_double(json_get(line, "logged_lr"), &s->logged_lr);
    s->has_loss = json_as_double(json_get(line, "loss"), &s->loss);
    s->has_grad_norm = json_as_double(json_get(line, "grad_norm"), &s->grad_norm);
    json_as_double(json_get(line, "params_norm"), &s->params_norm);
    json_as_double(json_get(line, "loss_scale"), &s->loss_scale);
    s->skipped = cJSON_IsTrue(json_get(line, "skipped"));
}

static inline void golden_read(struct golden_run *run, const char *name)
{
    struct strbuf text = {0};
    struct error err;
    golden_read_file(name, "steps.jsonl", &text);
    *run = (struct golden_run){.name = name};
    for (char *at = text.data, *end; (end = strchr(at, '\n')); at = end + 1) {
        cJSON *line;
        if (json_parse(at, (size_t)(end - at), JSON_NAN, &line, &err)) fail_msg("%s", err.text);
        assert_true(run->num_steps < MAX_GOLDEN_STEPS);
        golden_read_step(&run->steps[run->num_steps++], line);
        cJSON_Delete(line);
    }
    assert_true(run->num_steps >= 20);
    strbuf_release(&text);
}

#endif
