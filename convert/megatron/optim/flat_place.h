/* flat_place.h - makes native tensors of states in flat buffers, by finding
 * each parameter's elements.
 *
 * Places follow from the rules of buckets.h, and are proved by witnesses: sizes
 * of buckets; chunks of .metadata, which begin where parameters do; storage
 * offsets of a rank's weights, which are views of the buffer; and finally
 * weights, which must be their master weights rounded (ckpt/masters.h).
 *
 * Remainders prove nothing (optimizer.placed of ckpt/checkpoint.h). Then
 *
 * - chunks begin where parameters and gaps do, and nowhere else, or weights lie
 *   in one storage;
 * - no other order fits. */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_FLAT_PLACE_H
#define FERRY_CONVERT_MEGATRON_OPTIM_FLAT_PLACE_H

#include "convert/megatron/optim/flat_states.h"

/* Adds the states as native tensors under their parameters' logical names; call
 * it when parameters are logical tensors of the catalog. If placing
 * is impossible or contradicts a witness, adds none and sets unread
 * (convert/states.h). */
MUST_CHECK enum status flat_states_place(const struct flat_states *f, struct checkpoint *c,
                                         struct error *err);
/* The bucket rules of a run with these args (a Namespace; may be NULL). */
struct bucket_rules bucket_rules_of_args(const struct value *args, bool transformer_engine);

/* Lists the catalog's trained parameters, with their padding, in arena a. */
MUST_CHECK enum status trained_params(const struct checkpoint *c, struct arena *a,
                                      struct trained_param **out, size_t *count, struct error *err);

#endif
