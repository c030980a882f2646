/* train_names.h - options of pretrain_gpt.py that are no fields of struct train_options.
 *
 * A row has many options, so that the parser knows them all; what was typed goes to three lists of
 * struct train_options: no_effect (how Megatron-LM's own kernels, processes and files work),
 * refused (what cannot be done), limited (what can be done for some of its values only). */
#ifndef FERRY_TRAIN_CLI_TRAIN_NAMES_H
#define FERRY_TRAIN_CLI_TRAIN_NAMES_H

#include "train/trainer/train_options.h"

extern const struct arg train_other_args[];
enum { NUM_TRAIN_OTHER_ARGS = 87 };

/* Why an option of the list `refused` is refused. `typed` may have "=value" behind it. */
const char *train_refused_reason(const char *typed);

/* Why an option of the list `limited` cannot have this value; NULL: it can. `names` is the first of
 * a pair of the list (ARG_NOTED). */
const char *train_limited_reason(const char *names, const char *value);

#endif
