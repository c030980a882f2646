/* forward.h - runs two checkpoints and compares the results, and the weights in
 * memory (loaded.h). Nothing is printed here.
 *
 *   1. A runs in f32 (or the type of --dtype); its hidden states and logits are kept.
 *   2. A runs a second time with another element type: the distance of the two runs
 *      gives the rounding of each output (difference.h).
 *   3. B runs, or its stored results are read; each output is compared on arrival.
 *   4. If a layer differs first, all three run again for the results of its ops.
 *
 * Memory: one model at a time, as in `ferry forward`, and A's outputs: tokens *
 * (hidden_size * (layers + 2) + vocabulary) elements. */
#ifndef FERRY_VALIDATE_FORWARD_FORWARD_H
#define FERRY_VALIDATE_FORWARD_FORWARD_H

#include <cjson/cJSON.h>

#include "train/loop/engine.h"
#include "validate/forward/difference.h"
#include "validate/forward/loaded.h"
#include "validate/forward/results.h"

struct forward_options {
    struct engine_model model; /* options of both runs; path and vocabulary are set for each side */
    const char *input_ids;     /* a file; NULL: none */
    uint64_t num_sequences, length; /* of random sequences; length 0: 64, or the model's maximum if
                                       that is smaller */
};

/* An output of A, and its differences from the second run and from B. */
struct forward_output {
    const char *name; /* "hidden.3", "logits", "loss"; "layers.3.qkv" */
    struct array a;
    void *values; /* A's values, on the heap; NULL after the comparison with B */
    struct difference second_run, b;
    struct rounding rounding;
    bool compared; /* B has it: b and agreement hold */
    enum agreement agreement;
};

struct forward_outputs {
    struct forward_output *items; /* in the order of the model */
    size_t count, capacity;
};

enum { MAX_POINTS = 4000 };

/* Where the results start to differ. */
struct divergence {
    const struct forward_output *first; /* the first output of the model that disagrees */
    const struct forward_output *op;    /* the first of its layer's ops; NULL: not known */
    int layer;                          /* -1: none, or not known */
    const char *text;                   /* "layer 3 diverges in qkv: ..." */
};

struct forward {
    struct arena arena;
    const char *paths[2];
    struct results *results; /* B, if it is a file of results; else NULL */
    struct batch batch;
    int32_t *ids;        /* [num_sequences, length], on the heap */
    const char *ids_are; /* "at random, seed 1" */
    enum elem_type elem; /* of both computations */
    struct yardstick yardstick;
    uint64_t outliers;                   /* tokens of an output that may exceed the rounding */
    struct loaded loaded;                /* compares the weights in memory */
    struct forward_outputs outputs, ops; /* ops: the ops of divergence.layer */
    struct logits_statistics logits;     /* rows 0: not compared */
    double losses[2];                    /* NaN: not known */
    float points[MAX_POINTS][2];         /* a sample of logits, A's and B's */
    size_t num_points;
    uint64_t logits_columns;  /* of the sampled logits */
    const char *broken;       /* why B has no results, such as NaN; else NULL */
    enum agreement agreement; /* agreement of the outputs */
    struct divergence divergence;
    double seconds;
};

/* Runs both and compares. results: B's stored results, or NULL; then weights is
 * the comparison of both checkpoints. Release f after a failure too.
 * Differences are not failures: see forward_agreement(). */
MUST_CHECK enum status forward_run(struct forward *f, const char *const paths[2],
                                   const struct forward_options *o, struct results *results,
                                   const struct comparison *weights, struct error *err);
void forward_release(struct forward *f);

/* The agreement of the outputs and of the weights in memory together. */
enum agreement forward_agreement(const struct forward *f);

/* Text: "forward: identical: ..", with tables if DIFFERENT or verbose. */
const char *forward_word(const struct forward *f);
const char *forward_id(const struct forward *f); /* the word in small letters, for JSON */
void forward_line(struct strbuf *out, const struct forward *f);
void forward_text(struct strbuf *out, const struct forward *f, bool coloured, bool verbose);
void forward_json(cJSON *o, const struct forward *f);

/* An op in words: "the projection to queries, keys and values". */
const char *forward_op_text(const char *name);
extern const char *const agreement_names[]; /* "identical" */

#endif
