/* train_options.h - the command line of `ferry train` as tables for
 * common/args.h.
 *
 * Accepts the command line of Megatron-LM's pretrain_gpt.py with all names of
 * its parser. Names without a field here have no effect (noted) or are refused
 * with a reason: train_names.h. */
#ifndef FERRY_TRAIN_CLI_TRAIN_OPTIONS_H
#define FERRY_TRAIN_CLI_TRAIN_OPTIONS_H

#include "common/strbuf.h"
#include "train/trainer/train_options.h"

/* For `groups`, `made`, `defaults` and `options_bytes` of struct command. The options
 * struct is a struct train_options, or begins with one. */
enum { NUM_TRAIN_GROUPS = 18 };
extern const struct arg_group train_groups[NUM_TRAIN_GROUPS];
const struct arg_group *train_made_group(const struct arg_group *g);
void train_options_defaults(void *options);

/* Completes o after parsing: sets what follows from other options and `model`,
 * then checks for contradictions. Appends a line to *notes for each option
 * without effect and each assumption. ERR_USAGE lists all contradictions and
 * refused options, a line each; *notes then has only the lines beyond struct
 * error's space, to be printed before it. Reads nothing from disk. Call
 * train_options_release() afterwards, also after a failure. */
MUST_CHECK enum status train_options_finish(struct train_options *o, struct strbuf *notes,
                                            struct error *err);
/* Frees o->arena. The lists belong to the parser (args_release). */
void train_options_release(struct train_options *o);

#endif
