/* rng_read.h - the states of random number generators of a checkpoint, to be written again by a run
 * that goes on from it (rng_states.h has their form). */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_RNG_READ_H
#define FERRY_CONVERT_MEGATRON_OPTIM_RNG_READ_H

#include "ckpt/checkpoint.h"

/* Reads the states that c, a checkpoint of one of Megatron's formats, has for each of its pipeline
 * and tensor parallel ranks (in the legacy format those of expert parallel rank 0), into arena a.
 * An array of numpy becomes numbers. *why: NULL, or why they cannot be kept: ranks without, values
 * of another form, or more than 4 MiB of a rank; then *count is 0. ERR_IO, ERR_CORRUPT: a file
 * cannot be read. */
MUST_CHECK enum status rng_states_read(const struct checkpoint *c, struct rng_kept **out,
                                       size_t *count, const char **why, struct arena *a,
                                       struct error *err);

#endif
