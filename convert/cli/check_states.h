/* check_states.h - whether the optimizer states of a source can be written as
 * the options ask. */
#ifndef FERRY_CONVERT_CLI_CHECK_STATES_H
#define FERRY_CONVERT_CLI_CHECK_STATES_H

#include "ckpt/masters.h"
#include "convert/format.h"

struct states_wanted {
    const struct format *to;
    bool optim, no_optim; /* the options */
};

/* States are copied, or left out by an option, but never dropped silently.
 * ERR_UNSUPPORTED if --optim is given without states, if they cannot be read,
 * or if the format needs --optim or --no-optim to decide. */
MUST_CHECK enum status check_states(const struct checkpoint *c, const struct states_wanted *w,
                                    struct error *err);
/* Compares weights with their masters: some hundred elements, or all. Notes a
 * difference; ERR_CORRUPT if the format does not name the weights of states. */
MUST_CHECK enum status check_masters(struct checkpoint *c, const struct masters_options *o,
                                     struct error *err);

#endif
