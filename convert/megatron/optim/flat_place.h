/* flat_place.h - makes own tensors of the states that lie in flat buffers: which elements are which
 * parameter's.
 *
 * That follows from the rules of buckets.h, and is proved by the witnesses that there are: the
 * sizes of buckets; chunks of .metadata, which begin where parameters do; the storage offsets of a
 * rank's weights, which are views of the buffer itself; and in the end weights, which must be their
 * master weights rounded (ckpt/masters.h). */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_FLAT_PLACE_H
#define FERRY_CONVERT_MEGATRON_OPTIM_FLAT_PLACE_H

#include "convert/megatron/optim/flat_states.h"

/* Adds the states as own tensors, under their parameters' logical names, once the parameters are
 * logical tensors of the catalog. Where that is not possible or contradicts a witness, it adds none
 * of them, and sets unread (convert/states.h). */
MUST_CHECK enum status flat_states_place(const struct flat_states *f, struct checkpoint *c,
                                         struct error *err);
/* What a run with these args (a Namespace; may be NULL) does that changes its buckets. */
struct bucket_rules bucket_rules_of_args(const struct value *args, bool transformer_engine);

/* The parameters of the catalog that are trained, with their padding; in arena a. */
MUST_CHECK enum status trained_params(const struct checkpoint *c, struct arena *a,
                                      struct trained_param **out, size_t *count, struct error *err);

#endif
