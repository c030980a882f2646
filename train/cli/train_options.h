/* train_options.h - the command line of `ferry train` as tables for common/args.h.
 *
 * It takes a line of Megatron-LM's pretrain_gpt.py as it is, and all names of its parser: those
 * that mean something here, those that have no effect (noted), those that are refused with a
 * reason. The tables with the rest of its names: train_names.h. */
#ifndef FERRY_TRAIN_CLI_TRAIN_OPTIONS_H
#define FERRY_TRAIN_CLI_TRAIN_OPTIONS_H

#include "common/strbuf.h"
#include "train/trainer/train_options.h"

/* For `groups`, `defaults` and `options_bytes` of struct command. The options struct is a struct
 * train_options, or begins with one. */
enum { NUM_TRAIN_GROUPS = 15 };
extern const struct arg_group train_groups[NUM_TRAIN_GROUPS];
void train_options_defaults(void *options);

/* Completes o after parsing: what follows from other options, `model`, and all that a line can
 * contradict itself in. Appends to *notes a line each about what is accepted without effect, and
 * what is assumed. ERR_USAGE: one message that lists all contradictions and all that is refused,
 * each on its line; *notes then has only those for which struct error has no room, to be printed
 * before it. Nothing is read from disk. train_options_release afterwards, after a failure too. */
MUST_CHECK enum status train_options_finish(struct train_options *o, struct strbuf *notes,
                                            struct error *err);
/* Frees o->arena; the lists are the parser's (args_release). */
void train_options_release(struct train_options *o);

#endif
