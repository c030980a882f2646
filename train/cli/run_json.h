/* run_json.h - what commands that compute answer with --json: fields that they have in common. */
#ifndef FERRY_TRAIN_CLI_RUN_JSON_H
#define FERRY_TRAIN_CLI_RUN_JSON_H

#include "common/json.h"
#include "train/cli/engine_flags.h"

/* The object, with the model, how it is cut, and what it is computed in and on. */
cJSON *run_json_new(const char *model_path, const struct compute_flags *f);
/* Which tokens it is computed for. */
void run_json_add_tokens(cJSON *o, const struct batch *shape);
/* Whether a command takes the plan of memory: for its answer, or to print it in short. Where it
 * does not (a dry run with -v) the engine prints all of it. */
bool takes_plan(const struct compute_flags *f);
/* After a dry run that did not fail. */
void print_that_it_fits(const struct compute_flags *f);
/* What memory each rank takes, in bytes; of a dry run that is for people it is printed. */
void run_json_add_plan(cJSON *o, const struct compute_flags *f, const struct fit_memory *ranks,
                       unsigned num_ranks);
#endif
