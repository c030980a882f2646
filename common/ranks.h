/* ranks.h - rank and world size, from the launcher's environment. */
#ifndef FERRY_COMMON_RANKS_H
#define FERRY_COMMON_RANKS_H

#include <stdbool.h>

#include "common/status.h"

struct ranks {
    unsigned rank, size; /* rank from 0, below size */
    /* One launcher started all ranks and merges their output. False for RANK
     * and WORLD_SIZE, which may be set by hand or for a whole container. */
    bool share_output;
};

enum { MAX_RANKS_OF_A_JOB = 1 << 16 };

/* Reads RANK and WORLD_SIZE (torchrun, or set by hand), else the variables of
 * Open MPI, MPICH and its relatives, or Slurm's srun (the table `launchers`).
 * Rank 0 of 1 if none is set. ERR_USAGE for an invalid pair. */
MUST_CHECK enum status ranks_from_environment(struct ranks *out, struct error *err);

/* Whether rank 0 prints for this process: one launcher, one output. */
bool ranks_print_by_rank_0(void);

#endif
