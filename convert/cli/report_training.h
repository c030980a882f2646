/* report_training.h - optimizer states and the training state, as text and as
 * JSON. */
#ifndef FERRY_CONVERT_CLI_REPORT_TRAINING_H
#define FERRY_CONVERT_CLI_REPORT_TRAINING_H

#include <cjson/cJSON.h>

#include "common/strbuf.h"
#include "convert/target.h"

/* ---- states of the optimizer ---- */

/* The tensors of one state. */
struct state_sum {
    const char *name;  /* "exp_avg" */
    size_t parameters; /* with this state */
    uint64_t bytes;    /* with the padding of the vocabulary */
    uint64_t dtypes;   /* bits 1 << DT_* */
};
struct state_sums {
    struct state_sum *items;
    size_t count;
    size_t own_masters; /* weights that are their own masters; no master is stored */
};
/* Sums over the tensors stored in a checkpoint, and over those that the plan
 * writes. In arena a. */
struct state_sums states_of_catalog(const struct catalog *c, struct arena *a);
struct state_sums states_of_plan(const struct target *t, struct arena *a);

/* "param, exp_avg, exp_avg_sq of 9 parameters in F32": "; " separates states
 * that differ in count or dtype; nothing if there are no states. */
void states_text(struct strbuf *out, const struct state_sums *s);
/* {"exp_avg": {"parameters": 9, "bytes": 1024, "dtypes": ["F32"]}, ...} as
 * `name` of an object. */
void states_json(cJSON *object, const char *name, const struct state_sums *s);

/* ---- the plan ---- */

/* Whether the options leave out the source's optimizer. */
bool optimizer_is_left_out(const struct target *t);
/* Lines `optim` and `training` of the plan; nothing if no states are written. */
void report_training(struct strbuf *out, const struct target *t);
/* Adds to the target's object: "optimizer" (null if the states are left out),
 * and with states "training" and "training_parts"; nothing if the source has no
 * optimizer. */
void report_training_json(cJSON *target, const struct target *t);

/* Sentences on dropped parts of the training state; returns their number. In
 * arena a. */
size_t training_losses(const struct target *t, struct arena *a,
                       const char *lines[NUM_TRAINING_PARTS]);

#endif
