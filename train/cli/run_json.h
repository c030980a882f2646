/* run_json.h - fields of the --json results of all computing commands. */
#ifndef FERRY_TRAIN_CLI_RUN_JSON_H
#define FERRY_TRAIN_CLI_RUN_JSON_H

#include "common/json.h"
#include "train/cli/engine_flags.h"

/* A new object with the model's path, layout, dtype and device. */
cJSON *run_json_new(const char *model_path, const struct compute_flags *f);
/* Adds the shape of the tokens. */
void run_json_add_tokens(cJSON *o, const struct batch *shape);
/* Whether the command receives the memory plan, for --json or a short table.
 * Otherwise (a dry run with -v) the engine prints it in full. */
bool takes_plan(const struct compute_flags *f);
/* Prints "It fits." after a dry run that succeeded. */
void print_that_it_fits(const struct compute_flags *f);
/* Adds the memory of each rank in bytes; a dry run without --json prints it as
 * a table. */
void run_json_add_plan(cJSON *o, const struct compute_flags *f, const struct fit_memory *ranks,
                       unsigned num_ranks);
#endif
