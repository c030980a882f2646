/* training_flags.h - flags of Megatron's training scripts, which users paste
 * into ferry convert.
 *
 * Flags of the model are compared with the model. Flags of the optimizer set
 * the written training state, if its states are written. Others change nothing,
 * and a note names them. */
#ifndef FERRY_CONVERT_CLI_TRAINING_FLAGS_H
#define FERRY_CONVERT_CLI_TRAINING_FLAGS_H

#include "ckpt/checkpoint.h"
#include "common/args.h"
#include "convert/cli/megatron_options.h"

struct training_flags {
    struct arg_list unused, model, dtypes, optimizer, converter; /* ARG_NOTED */
};

extern const struct arg training_args[];
enum { NUM_TRAINING_ARGS = 18 };
/* Makes the others: flags of the model, and those without effect. */
bool training_flag_make(struct arg *to, const struct megatron_option *o, const char *title);

/* ERR_USAGE, with both values, if a flag contradicts the model, the formats or
 * the dtype of the written weights (`dtype` if casts, else as stored);
 * ERR_UNSUPPORTED for a model that is no GPT model.
 *
 * Prints the accepted flags on stderr unless quiet. optimizer: whether optimizer
 * states are written. */
MUST_CHECK enum status training_flags_check(const struct training_flags *f,
                                            const struct checkpoint *c, const struct format *target,
                                            bool casts, enum dtype dtype, bool optimizer,
                                            bool quiet, struct error *err);
/* Values of the flags, to complete the training state. ERR_USAGE if a value is
 * not a number, or if it counts iterations without --global-batch-size. */
MUST_CHECK enum status training_flags_given(const struct training_flags *f,
                                            struct training_given *out, struct error *err);

#endif
