/* loaded.h - compares the weights in the memory of the ranks
 * (train/model/weights.h): A with B, and both with the files.
 *
 * A difference of A and B passes if the files differ likewise: by a cast
 * between two dtypes, or within the tolerance. Weights of only one side do not
 * fail here: the outputs show their effect. --only and --ignore leave tensors
 * out here too. */
#ifndef FERRY_VALIDATE_FORWARD_LOADED_H
#define FERRY_VALIDATE_FORWARD_LOADED_H

#include <cjson/cJSON.h>

#include "validate/compare/compare.h"

enum loaded_outcome {
    LOADED_EQUAL,
    LOADED_PASSES,     /* differs as the files do */
    LOADED_ONE_SIDE,   /* the other side lacks the weight, or is a file of results */
    LOADED_LEFT_OUT,   /* by --only or --ignore */
    LOADED_DIFFERS,    /* A and B differ */
    LOADED_NOT_STORED, /* the files are equal, and memory differs from them */
    NUM_LOADED_OUTCOMES
};

struct loaded_weight {
    const char *name;
    const char *digests[2]; /* by digest_print(); NULL: that side lacks the weight */
    enum loaded_outcome outcome;
};

struct loaded {
    struct arena arena;
    struct map names;
    struct loaded_weight *items; /* in the order of A */
    size_t count, capacity;
    size_t counts[NUM_LOADED_OUTCOMES];
    size_t num_stored;     /* weights equal to those in the files */
    size_t num_not_loaded; /* tensors in the files not loaded by any rank */
    bool has_b;
};

void loaded_init(struct loaded *l);
void loaded_release(struct loaded *l);

/* Adds a weight of side A (0) or B (1). */
void loaded_take(struct loaded *l, unsigned side, const struct tensor_digest *d);
/* Sets the outcome of each weight, after the last loaded_take(). files: NULL if
 * B is a file of results. */
void loaded_judge(struct loaded *l, const struct comparison *files);

bool loaded_passes(const struct loaded *l);
/* "in memory: 28 tensors, equal in A and B"; no line end. */
void loaded_text(struct strbuf *out, const struct loaded *l);
void loaded_json(cJSON *o, const struct loaded *l);

#endif
