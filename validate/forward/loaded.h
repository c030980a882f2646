/* loaded.h - the weights of both sides as the memory of the ranks that run them holds them
 * (train/model/weights.h), beside one another and beside what the files hold.
 *
 * Two that differ there pass where their files were found to differ in a way that explains it: by a
 * cast from one dtype to the other, or within the tolerance. What one side alone has is left to the
 * outputs to judge, what the user leaves out of the comparison is left out here. */
#ifndef FERRY_VALIDATE_FORWARD_LOADED_H
#define FERRY_VALIDATE_FORWARD_LOADED_H

#include <cjson/cJSON.h>

#include "validate/compare/compare.h"

enum loaded_outcome {
    LOADED_EQUAL,
    LOADED_PASSES,     /* differs, as its files do */
    LOADED_ONE_SIDE,   /* the other has none, or is a file of results */
    LOADED_LEFT_OUT,   /* by --only or --ignore */
    LOADED_DIFFERS,    /* A's and B's */
    LOADED_NOT_STORED, /* both files have something else */
    NUM_LOADED_OUTCOMES
};

struct loaded_weight {
    const char *name;
    const char *digests[2]; /* as digest_print() has them; NULL: that side has none */
    enum loaded_outcome outcome;
};

struct loaded {
    struct arena arena;
    struct map names;
    struct loaded_weight *items; /* in the order of A */
    size_t count, capacity;
    size_t counts[NUM_LOADED_OUTCOMES];
    size_t num_stored;     /* were compared with the files, and are what these hold */
    size_t num_not_loaded; /* tensors of the files that no rank wants */
    bool has_b;
};

void loaded_init(struct loaded *l);
void loaded_release(struct loaded *l);

/* A tensor of side A (0) or B (1). */
void loaded_take(struct loaded *l, unsigned side, const struct tensor_digest *d);
/* Once all are there. files: NULL where B is a file of results. */
void loaded_judge(struct loaded *l, const struct comparison *files);

bool loaded_passes(const struct loaded *l);
/* "in memory: 28 tensors, equal in A and B"; no line end. */
void loaded_text(struct strbuf *out, const struct loaded *l);
void loaded_json(cJSON *o, const struct loaded *l);

#endif
