/* train_finish.h - parts of train_options_finish(). */
#ifndef FERRY_TRAIN_CLI_TRAIN_FINISH_H
#define FERRY_TRAIN_CLI_TRAIN_FINISH_H

#include <cjson/cJSON.h>

#include "train/cli/train_options.h"

/* A command line under completion. */
struct train_finish {
    struct train_options *o;
    struct strbuf *notes;   /* a line each */
    struct strbuf problems; /* a line each */
    struct strbuf rest;     /* problems beyond the message's space, a line each */
    size_t num_problems, num_shown;
};

void train_problem(struct train_finish *x, const char *fmt, ...) PRINTF_LIKE(2, 3);
void train_note(struct train_finish *x, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Sets what follows from other options; reports values that cannot be parsed. */
void train_complete(struct train_finish *x);
/* Part of it: parses --step-batch-size-schedule into o->batch_size_steps. Needs
 * seq_length. */
void train_complete_batch_schedule(struct train_finish *x);
/* Sets o->model. */
void train_make_model(struct train_finish *x);
/* Group i of train_groups, made if it is data. */
const struct arg_group *train_group(size_t i);
/* An option's value by its name in args. */
struct scalar *train_line(struct train_options *o, const char *arg);
/* Appends the options that describe a model and differ from their defaults,
 * separated by commas. */
void train_add_model_options(struct strbuf *out, const struct train_options *o);
/* Reports contradictions. */
void train_check(struct train_finish *x);

/* Parses which layers have a feature, as Megatron-LM's moe_freq_type does: "N",
 * or a list such as "([0]+[1]*2)*3". Returns a new number or array; NULL if it
 * is neither, or has more than MAX_LAYERS items. */
cJSON *train_layer_pattern(const char *text);

#endif
