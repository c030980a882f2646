/* groups.h - who works with whom: ranks of a job as coordinates, and the groups of Megatron-Core.
 *
 * Two grids lie over the same ranks (megatron/core/parallel_state.py, order tp-cp-ep-dp-pp, the
 * first varying fastest): the dense one, rank = tp + TP * (cp + CP * (dp + DP * pp)), and that of
 * experts, rank = etp + ETP * (ep + EP * (edp + EDP * pp)), where EDP = TP * CP * DP / (ETP * EP).
 */
#ifndef FERRY_TRAIN_ENGINE_GROUPS_H
#define FERRY_TRAIN_ENGINE_GROUPS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "train/comm/comm.h"

enum group_kind {
    GROUP_WORLD, /* opened first */
    GROUP_TP,
    GROUP_CP,
    GROUP_DP,
    GROUP_PP,
    GROUP_ETP,
    GROUP_EP,
    GROUP_EDP,
    NUM_GROUP_KINDS
};

struct group_sizes {
    unsigned tp, cp, dp, pp, etp, ep; /* each at least 1 */
};

/* Where one rank stands. */
struct group_place {
    unsigned tp, cp, dp, pp, etp, ep, edp;
};

/* How many data-parallel ranks there must be, so that both grids cover the same ranks. */
unsigned groups_least_dp(const struct group_sizes *s);
unsigned groups_world_size(const struct group_sizes *s);

struct group_place groups_place(const struct group_sizes *s, unsigned rank);
/* The rank that stands there, by tp, cp, dp and pp. */
unsigned groups_rank(const struct group_sizes *s, const struct group_place *at);
/* The members of rank's group, in order, to ranks[groups_world_size]; returns how many. *index is
 * the rank's place among them. */
unsigned groups_members(const struct group_sizes *s, enum group_kind kind, unsigned rank,
                        unsigned *ranks, unsigned *index);

/* Those of this rank, opened. */
struct groups {
    struct group_sizes sizes;
    struct group_place place;
    struct comm_group of[NUM_GROUP_KINDS];
    unsigned num_open;
};

/* ERR_UNSUPPORTED where the job has another number of ranks than the sizes want. */
MUST_CHECK enum status groups_open(struct groups *g, struct comm *c, const struct group_sizes *s,
                                   struct error *err);
void groups_close(struct groups *g);

/* Those of a rank of a job that there need not be: sizes and places, to build programs with that
 * nobody runs. */
MUST_CHECK enum status groups_imagine(struct groups *g, const struct group_sizes *s, unsigned rank,
                                      struct error *err);

#endif
