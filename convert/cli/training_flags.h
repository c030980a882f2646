/* training_flags.h - flags of Megatron's training scripts, which users paste into ferry convert.
 *
 * None of them changes the output. Flags that describe the model are compared with the model. A
 * note names the flags that have no effect. */
#ifndef FERRY_CONVERT_CLI_TRAINING_FLAGS_H
#define FERRY_CONVERT_CLI_TRAINING_FLAGS_H

#include "ckpt/checkpoint.h"
#include "common/args.h"

struct training_flags {
    struct arg_list unused, model, dtypes; /* ARG_NOTED */
};

extern const struct arg training_args[];
enum { NUM_TRAINING_ARGS = 145 };

/* ERR_USAGE with both values if a flag contradicts the model or the dtype of the written weights
 * (`dtype` if casts, else as stored). Prints the accepted flags on stderr unless quiet. */
MUST_CHECK enum status training_flags_check(const struct training_flags *f,
                                            const struct checkpoint *c, bool casts,
                                            enum dtype dtype, bool quiet, struct error *err);

#endif
