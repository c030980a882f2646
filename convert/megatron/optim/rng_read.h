/* rng_read.h - reads a checkpoint's random number generator states, to be
 * written again by a run that continues from it (rng_states.h has their
 * form). */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_RNG_READ_H
#define FERRY_CONVERT_MEGATRON_OPTIM_RNG_READ_H

#include "ckpt/checkpoint.h"

/* Reads the states of c, a checkpoint of a Megatron format, for each pipeline
 * and tensor parallel rank (legacy: of expert parallel rank 0), into arena a.
 * Arrays of numpy become numbers. *why: NULL, or why they cannot be kept: ranks
 * without, values of another form, or more than 4 MiB per rank; then *count is
 * 0. ERR_IO, ERR_CORRUPT: a file cannot be read. */
MUST_CHECK enum status rng_states_read(const struct checkpoint *c, struct rng_kept **out,
                                       size_t *count, const char **why, struct arena *a,
                                       struct error *err);

#endif
