/* states.h - the states that an optimizer has for each parameter: moments and master weights, as
 * logical tensors optimizer.STATE.NAME of the parameter's shape. */
#ifndef FERRY_CONVERT_STATES_H
#define FERRY_CONVERT_STATES_H

#include "ckpt/checkpoint.h"

/* The state that is a parameter's master weight. */
extern const char master_state[]; /* "param" */

/* The most different states of one optimizer that are read; AdamW has 3. */
enum { MAX_STATES = 32 };
/* Whether a text can be the name of a state: not empty, of at most 64 bytes, no dot. */
bool state_is_valid(const char *state);

/* The states that any tensor of the catalog is of, each once: the master first, then by name. In
 * arena a. Of more than MAX_STATES, it lists MAX_STATES + 1. */
size_t states_list(const struct catalog *c, struct arena *a, const char ***out);
/* The logical name; in arena a. */
const char *state_name(struct arena *a, const char *state, const char *parameter);

/* Completes the states of a checkpoint whose tensors are all added: a weight of F32 that has other
 * states, but no master, is its own master, so a tensor of the same elements is added for it. Notes
 * parameters without states that others have (frozen, or lost). More than MAX_STATES states are
 * unread. */
MUST_CHECK enum status states_complete(struct checkpoint *c, struct error *err);

/* Where `other` has a master of a parameter, and c has other states of it but no master: adds the
 * weight in the dtype of other's master, as a conversion makes it. Counts them. */
MUST_CHECK enum status states_widen(struct checkpoint *c, const struct catalog *other,
                                    size_t *num_made, struct error *err);

/* Where the places of states are inferred (c->training.optimizer.inferred): compares some hundred
 * elements of each weight with its master, and makes the states unread if one is not its master
 * rounded. */
MUST_CHECK enum status states_prove(struct checkpoint *c, struct error *err);

/* Sets c->training.optimizer.unread if it is not set yet: why a state cannot be read. */
void states_unread(struct checkpoint *c, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
