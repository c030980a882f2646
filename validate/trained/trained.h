/* trained.h - trains two checkpoints for a few steps and compares steps and
 * weights. Nothing is printed here.
 *
 *   1. A is opened and trained on mock data (train/data/mock.c) by the trainer of
 *      `ferry train`, on one rank. Kept are loss and gradient norm of each step, a
 *      digest of each loaded weight, and a copy of each weight after the last step.
 *   2. B is trained in the same way; each step and weight is compared on arrival.
 *
 * Both continue with their optimizer states if both have them, else both begin
 * with new states. Masters are compared if there are any. A loss that is not
 * finite is a failure: ERR_NUMERIC.
 *
 * Memory: one run of `ferry train`, and the copy of A's weights. The trainer
 * refuses a run that does not fit. */
#ifndef FERRY_VALIDATE_TRAINED_TRAINED_H
#define FERRY_VALIDATE_TRAINED_TRAINED_H

#include <cjson/cJSON.h>

#include "common/html.h"
#include "common/map.h"
#include "train/loop/engine.h"
#include "validate/compare/compare.h"

struct trained_options {
    uint64_t steps;                 /* at least 1 */
    uint64_t num_sequences, length; /* of a step; length 0: 64, or the model's maximum if that is
                                       smaller */
    double lr;                      /* constant */
    const char *dtype, *device;     /* of --dtype, --device; device NULL: cpu */
    uint64_t threads;
    struct source_options source;
    const char *model_map;
    bool no_optim; /* new states of the optimizer */
    struct tolerance tolerance;
    enum progress_style progress;
};

/* The outcomes are IDENTICAL, WITHIN and VALUES_DIFFER. */
struct trained_step {
    double loss[2], grad_norm[2]; /* of A, of B */
    enum outcome outcome;
};

struct trained_weight {
    const char *name;
    uint64_t numel;
    struct digest loaded;         /* A's before the first step */
    bool differs_as_loaded;       /* B's digest differs */
    void *values;                 /* A's after the last step, on the heap until B's arrive */
    struct statistics statistics; /* after the last step */
    enum outcome outcome;
};

struct trained {
    struct arena arena;
    struct trained_options options; /* length is set */
    const char *const *paths;       /* [2], as given */
    const struct side *sides;       /* [2] */
    bool goes_on;                   /* both continue with their optimizer states */
    struct trained_step *steps;
    size_t num_steps, steps_capacity;
    struct trained_weight *weights; /* in the order of A's model */
    size_t num_weights, weights_capacity, num_compared;
    struct map names;                     /* of weights */
    struct config_comparison configs;     /* a possible cause; does not count */
    const struct trained_step *step;      /* the first that differs; NULL: none */
    const struct trained_weight *loaded;  /* the first that differs before step 1 */
    const struct trained_weight *trained; /* and after the last step */
    double seconds;
};

/* Trains both. sides: opened by sides_open(), with the optimizer unless
 * o->no_optim. Release t after a failure too. ERR_UNSUPPORTED, with the first
 * tensor, if tensors or shapes of the models differ. Different results are not
 * a failure. */
MUST_CHECK enum status trained_run(struct trained *t, const char *const paths[2],
                                   const struct side sides[2], const struct trained_options *o,
                                   struct error *err);
void trained_release(struct trained *t);

/* The worst outcome of all steps and weights. */
enum outcome trained_outcome(const struct trained *t);
/* Failing steps, and failing weights. */
size_t trained_steps_differ(const struct trained *t);
size_t trained_weights_differ(const struct trained *t);

/* Text: the verdict, both sides, a line per step, and differing tensors.
 * verbose: all steps and differing tensors. */
void trained_text(struct strbuf *out, const struct trained *t, bool coloured, bool verbose);
cJSON *trained_json(const struct trained *t);
/* The page of --report. */
void trained_html(struct strbuf *out, const struct trained *t, const struct html_environment *e);

#endif
