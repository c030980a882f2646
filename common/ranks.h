/* ranks.h - which process of a job of several this one is, as the launcher has it in the
 * environment. */
#ifndef FERRY_COMMON_RANKS_H
#define FERRY_COMMON_RANKS_H

#include <stdbool.h>

#include "common/status.h"

struct ranks {
    unsigned rank, size; /* rank from 0, below size */
    /* One launcher started them all and puts together what they print. False for RANK and
     * WORLD_SIZE, which somebody may have set by hand, or for a whole container. */
    bool share_output;
};

enum { MOST_RANKS_OF_A_JOB = 1 << 16 };

/* RANK and WORLD_SIZE (torchrun, or by hand), else what Open MPI, MPICH and its kin, or Slurm's
 * srun say; 0 of 1 where there is none of them. ERR_USAGE where they make no sense. */
MUST_CHECK enum status ranks_from_environment(struct ranks *out, struct error *err);

#endif
