/* check_states.h - whether the optimizer states of a source can be written, as the user wants. */
#ifndef FERRY_CONVERT_CLI_CHECK_STATES_H
#define FERRY_CONVERT_CLI_CHECK_STATES_H

#include "ckpt/masters.h"
#include "convert/format.h"

struct states_wanted {
    const struct format *to;
    bool optim, no_optim; /* the options */
};

/* The states are carried, or left out because the user says so; never passed over. ERR_UNSUPPORTED
 * if there are none and --optim is given, if they cannot be read, or if the format asks for a word
 * about them. */
MUST_CHECK enum status check_states(const struct checkpoint *c, const struct states_wanted *w,
                                    struct error *err);
/* Compares weights with their masters: some hundred elements of each, or all. ERR_CORRUPT if they
 * differ and the format does not say which states are whose; where it does, a note is added. */
MUST_CHECK enum status check_masters(struct checkpoint *c, const struct masters_options *o,
                                     struct error *err);

#endif
