/* trained.h - trains two checkpoints for a few steps and compares what comes of it. Nothing is
 * printed here.
 *
 *   1. A is opened and trained on mock data (train/data/mock.c) by the trainer of `ferry train`, on
 *      one rank. The loss and the norm of the gradient of each step are kept, a digest of each
 *      weight as it was loaded, and a copy of each weight as it is after the last step.
 *   2. B is trained in the same way, and compared while it is: each step, and each weight.
 *
 * The optimizer of both goes on if both have one, else both begin with new states. Masters are
 * compared where there are any. A loss that is not finite is a failure: ERR_NUMERIC.
 *
 * Memory: that of one run of `ferry train`, and the copy of A's weights. The trainer refuses a run
 * that does not fit. */
#ifndef FERRY_VALIDATE_TRAINED_TRAINED_H
#define FERRY_VALIDATE_TRAINED_TRAINED_H

#include <cjson/cJSON.h>

#include "common/map.h"
#include "train/loop/engine.h"
#include "validate/compare/compare.h"

struct trained_options {
    uint64_t steps;                 /* at least 1 */
    uint64_t num_sequences, length; /* of a step; length 0: 64, or as many as the model has
                                       positions for */
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
    bool differs_as_loaded;       /* B's is another one */
    void *values;                 /* A's after the last step, on the heap until B's are there */
    struct statistics statistics; /* after the last step */
    enum outcome outcome;
};

struct trained {
    struct arena arena;
    struct trained_options options; /* length is set */
    const char *const *paths;       /* [2], as they were given */
    const struct side *sides;       /* [2] */
    bool goes_on;                   /* the optimizer of both goes on */
    struct trained_step *steps;
    size_t num_steps, steps_capacity;
    struct trained_weight *weights; /* in the order of A's model */
    size_t num_weights, weights_capacity, num_compared;
    struct map names;                     /* of weights */
    struct config_comparison configs;     /* why, maybe: it does not count */
    const struct trained_step *step;      /* the first that differs; NULL: none */
    const struct trained_weight *loaded;  /* the first that differs before step 1 */
    const struct trained_weight *trained; /* and after the last step */
    double seconds;
};

/* Trains both. sides: opened by sides_open(), with the optimizer unless o->no_optim. Release t
 * after a failure too. ERR_UNSUPPORTED if the models have other tensors or shapes; then the first
 * is named. Differences are no failure. */
MUST_CHECK enum status trained_run(struct trained *t, const char *const paths[2],
                                   const struct side sides[2], const struct trained_options *o,
                                   struct error *err);
void trained_release(struct trained *t);

/* The worst outcome of all steps and weights. */
enum outcome trained_outcome(const struct trained *t);
/* Steps, and weights, that do not pass. */
size_t trained_steps_differ(const struct trained *t);
size_t trained_weights_differ(const struct trained *t);

/* Text: the verdict, the two sides, a line for each step, and the tensors that differ. verbose: all
 * steps and all tensors that differ. */
void trained_text(struct strbuf *out, const struct trained *t, bool coloured, bool verbose);
cJSON *trained_json(const struct trained *t);

#endif
