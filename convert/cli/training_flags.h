/* training_flags.h - flags of Megatron's training scripts that may stand on a conversion's command
 * line, too: pasted.
 *
 * None of them changes what is written. What says how the model is built is compared with the
 * model; of what does not change how weights are stored, a note says so. */
#ifndef FERRY_CONVERT_CLI_TRAINING_FLAGS_H
#define FERRY_CONVERT_CLI_TRAINING_FLAGS_H

#include "ckpt/checkpoint.h"
#include "common/args.h"

struct training_flags {
    struct arg_list unused, model, dtypes; /* ARG_NOTED */
};

extern const struct arg training_args[];
enum { NUM_TRAINING_ARGS = 145 };

/* ERR_USAGE with both values where a flag contradicts the model, or says another dtype than weights
 * are written in: dtype, where they are cast. Prints on stderr what was accepted, unless quiet. */
MUST_CHECK enum status training_flags_check(const struct training_flags *f,
                                            const struct checkpoint *c, bool casts,
                                            enum dtype dtype, bool quiet, struct error *err);

#endif
