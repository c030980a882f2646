/* testing_step.h - the steps of a small model in f64, f32 or bf16 on the CPU.
 * Tests only.
 *
 * The model is a folder of tests/golden/hf with its weights; or its config,
 * changed, with weights that a hash of their places gives. */
#ifndef FERRY_TRAIN_TRAINER_TESTING_STEP_H
#define FERRY_TRAIN_TRAINER_TESTING_STEP_H

#include <string.h>

#include "ckpt/testing_view.h"
#include "common/checked.h"
#include "convert/open.h"
#include "kernels/cpu/random.h"
#include "tests/testing.h"
#include "train/trainer/step.h"

static struct error err;

struct test_session {
    struct opened opened;
    struct comm comm;
    struct model_config config; /* the folder's, changed */
    struct model model;
    struct step step;
};

typedef void test_change(struct model_config *c);

static inline struct step_options test_step_options(uint64_t num_sequences, uint64_t length)
{
    return (struct step_options){.shape = {.num_sequences = num_sequences, .length = length},
                                 .optimizer = OPTIMIZER_ADAM,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .epsilon = 1e-8,
                                 .params_norm = true};
}

/* ---- numbers of any type ---- */

static inline bool test_is_elem(const struct step *s, enum value_class class)
{
    return class == VALUE_PARAMETER || (class == VALUE_GRADIENT && s->options.gradients_are_elem);
}

static inline double test_get(const struct step *s, enum value_class class, uint64_t i)
{
    const enum elem_type elem = s->model->options.elem;
    const void *from = s->regions[class];
    if (elem == ELEM_F64) return ((const double *)from)[i];
    if (elem == ELEM_F32 || !test_is_elem(s, class)) return (double)((const float *)from)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)from)[i] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

static inline void test_set_weight(const struct step *s, uint64_t i, double x)
{
    const float narrow = (float)x;
    void *to = s->regions[VALUE_PARAMETER];
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    switch (s->model->options.elem) {
    case ELEM_F64:
        ((double *)to)[i] = x;
        break;
    case ELEM_F32:
        ((float *)to)[i] = narrow;
        break;
    default:
        ((uint16_t *)to)[i] = (uint16_t)(bits >> 16);
    }
}

/* Where a parameter begins in each region. */
static inline uint64_t test_first(const struct step *s, const struct parameter *x)
{
    return x->offset / operand_bytes_of(OPERAND_ELEM, s->model->options.elem);
}

/* Tensor k of a parameter: the same at every layout. Rows of padding stay 0. */
static inline void test_fill_tensor(const struct step *s, const struct parameter *x, uint64_t k)
{
    const char *name = x->tensors[k];
    const bool is_norm = strstr(name, "norm") && !strstr(name, "bias");
    const uint64_t seed = random_stream(1, name),
                   first = test_first(s, x) + k * (x->numel / x->num_tensors);
    uint64_t a, b, numel;
    assert_true(shape_numel(x->spec->shape, x->spec->num_dims, &numel));
    for (unsigned i = 0; i < x->cut->count; i++)
        for (uint64_t e = 0; e < pair_count(&x->cut->pairs[i]); e++) {
            pair_element(&x->cut->pairs[i], e, &a, &b);
            if (a < numel)
                test_set_weight(s, first + b, is_norm + 0.6 * (random_uniform(seed, a) - 0.5));
        }
}

/* Weights of norms about 1, all others about 0. */
static inline void test_fill_weights(const struct step *s)
{
    const struct parameters *p = &s->model->parameters;
    for (size_t i = 0; i < p->count; i++) {
        const struct parameter *x = &p->items[i];
        if (!x->tensors) continue;
        for (uint64_t k = 0; k < x->num_tensors; k++)
            test_fill_tensor(s, x, k);
    }
}

/* ---- sessions ---- */

/* A step of the model that is open. has_weights: the folder's own. */
static inline enum status test_step_start(struct test_session *s, const struct step_options *o,
                                          bool has_weights)
{
    const struct load_options load = {.threads = 1, .progress = PROGRESS_NONE};
    TRY(step_make(&s->step, &s->model, o, &err));
    TRY(step_allocate(&s->step, &err));
    if (has_weights)
        TRY(parameters_load(&s->model.parameters, &s->opened.checkpoint, s->model.device,
                            s->step.regions[VALUE_PARAMETER], &load, &err));
    else
        test_fill_weights(&s->step);
    return step_begin(&s->step, false, &err);
}

/* The model in memory. */
static inline enum status test_session_start(struct test_session *s,
                                             const struct model_options *options,
                                             const struct step_options *o, bool has_weights)
{
    TRY(model_open(&s->model, has_weights ? &s->opened.checkpoint : NULL, options, &s->comm, &err));
    return test_step_start(s, o, has_weights);
}

/* Opens the folder, on one rank. */
static inline void test_session_read(struct test_session *s, const char *model)
{
    const struct source_options native_source = {0};
    char path[128];
    *s = (struct test_session){0};
    snprintf(path, sizeof path, "tests/golden/hf/%s", model);
    assert_ok(opened_open(&s->opened, path, &native_source, NULL, false, true, &err));
    s->config = s->opened.checkpoint.config;
}

/* change: NULL for the folder's own weights. */
static inline void test_session_open(struct test_session *s, const char *model, enum elem_type elem,
                                     const struct step_options *o, test_change *change)
{
    struct model_options options = {.elem = elem};
    test_session_read(s, model);
    if (change) {
        change(&s->config);
        options.config = &s->config;
    }
    assert_ok(comm_local_open(&s->comm, 1, &err));
    assert_ok(test_session_start(s, &options, o, !change));
}

/* st: whether this rank is content. Ranks other than 0 end here. */
static inline enum status test_session_end(struct test_session *s, enum status st)
{
    if (st) comm_fail(&s->comm, &err);
    step_release(&s->step);
    model_close(&s->model);
    st = comm_close(&s->comm, st, &err);
    opened_close(&s->opened);
    return st;
}

static inline void test_session_close(struct test_session *s)
{
    assert_ok(test_session_end(s, OK));
}

/* ---- tokens ---- */

enum { TEST_TOKENS = 512 };

struct test_tokens {
    int32_t ids[TEST_TOKENS], targets[TEST_TOKENS], positions[TEST_TOKENS];
    bool starts[TEST_TOKENS];
    double weights[TEST_TOKENS];
    uint64_t samples[16];
};

/* Random tokens, as a batch of b's shape whose losses all count `weight`.
 * first: the number of the first sample, of which tokens are a function. */
static inline struct batch test_tokens_make(struct test_tokens *t, const struct test_session *s,
                                            uint64_t num_sequences, uint64_t first, double weight)
{
    const uint64_t length = s->step.options.shape.length;
    assert_true(num_sequences * length <= TEST_TOKENS);
    for (uint64_t k = 0; k < num_sequences; k++)
        for (uint64_t i = 0; i < length; i++) {
            const uint64_t at = (first + k) * (length + 1) + i;
            const double n = (double)s->model.config.vocab_size;
            t->ids[k * length + i] = (int32_t)(random_uniform(7, at) * n);
            t->targets[k * length + i] = (int32_t)(random_uniform(7, at + 1) * n);
            t->weights[k * length + i] = weight;
            t->samples[k] = first + k;
        }
    return (struct batch){.num_sequences = num_sequences,
                          .length = length,
                          .ids = t->ids,
                          .targets = t->targets,
                          .weights = t->weights,
                          .samples = t->samples};
}

/* All of a micro-batch, in slot 0. */
static inline void test_micro_batch(struct step *s, const struct micro_batch *b)
{
    assert_ok(step_forward(s, 0, 0, b, &err));
    if (!b->evaluates) assert_ok(step_backward(s, 0, 0, b->first, &err));
}

/* A sum that micro-batches add to. */
static inline double test_sum(const struct step *s, value_id id)
{
    const struct run *r = &s->last_run;
    const void *at = id == NO_VALUE ? NULL : run_data(r, id);
    if (!at) return 0;
    return s->model->options.elem == ELEM_F64 ? *(const double *)at : (double)*(const float *)at;
}

#endif
