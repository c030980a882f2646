/* states.h - an optimizer's states per parameter, moments and master weights,
 * as logical tensors optimizer.STATE.NAME of the parameter's shape. */
#ifndef FERRY_CONVERT_STATES_H
#define FERRY_CONVERT_STATES_H

#include "ckpt/checkpoint.h"

/* The name of the master weight's state. */
extern const char master_state[]; /* "param" */

/* Most kinds of state of one optimizer; AdamW has 3. */
enum { MAX_STATES = 32 };
/* Whether a text can name a state: not empty, at most 64 bytes, no dot. */
bool state_is_valid(const char *state);

/* Lists the kinds of state in the catalog, each once: the master first, then by
 * name. In arena a. Above MAX_STATES, lists MAX_STATES + 1. */
size_t states_list(const struct catalog *c, struct arena *a, const char ***out);
/* The logical name, in arena a. */
const char *state_name(struct arena *a, const char *state, const char *parameter);

/* Whether a weight of this dtype is its own master if none is stored: F32 and
 * F64, since masters are no wider. */
bool weight_is_its_master(enum dtype weight);
/* Completes a checkpoint's states once all tensors are added: such a weight
 * with states but no master is its own master, so a tensor of the same elements
 * is added. Notes parameters without states that others have (frozen, or lost).
 * More than MAX_STATES kinds are unread. */
MUST_CHECK enum status states_complete(struct checkpoint *c, struct error *err);

/* Where `other` has a parameter's master, and c has states of it but no master,
 * adds the weight in the dtype of other's master, as a conversion makes it.
 * Counts them. */
MUST_CHECK enum status states_widen(struct checkpoint *c, const struct catalog *other,
                                    size_t *num_made, struct error *err);

/* Where places of states are inferred (c->training.optimizer.inferred),
 * compares some hundred elements of each weight with its master; states are
 * unread unless every weight is its master rounded, or masters are remainders
 * and something else proves their places. */
MUST_CHECK enum status states_prove(struct checkpoint *c, struct error *err);

/* Sets c->training.optimizer.unread, why a state cannot be read, unless it is
 * set. */
void states_unread(struct checkpoint *c, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
