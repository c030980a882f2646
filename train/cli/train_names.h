/* train_names.h - options of pretrain_gpt.py without a field in struct
 * train_options (convert/cli/megatron_options.h).
 *
 * The words typed go to three lists of struct train_options: no_effect (details of Megatron-LM's
 * own kernels, processes and files), refused (not implemented), limited (implemented for one value
 * only). */
#ifndef FERRY_TRAIN_CLI_TRAIN_NAMES_H
#define FERRY_TRAIN_CLI_TRAIN_NAMES_H

#include "convert/cli/megatron_options.h"
#include "train/trainer/train_options.h"

/* For megatron_options_make(). */
bool train_other_option(struct arg *to, const struct megatron_option *o, const char *title);

/* Why an option of the list `refused` is refused. `typed` may end with
 * "=value". */
const char *train_refused_reason(const char *typed);

/* Why an option of the list `limited` cannot have this value; NULL: it can.
 * `names` is the first text of a pair in the list (ARG_NOTED). */
const char *train_limited_reason(const char *names, const char *value);

#endif
