/* groups.h - the ranks of a job as coordinates, and the groups of Megatron-Core.
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
    GROUP_EMBEDDING, /* the first and the last pipeline stage, which both have a tied embedding; of
                        other stages each rank alone */
    GROUP_ETP,
    GROUP_EP,
    GROUP_EDP,
    NUM_GROUP_KINDS
};

struct group_sizes {
    unsigned tp, cp, dp, pp, etp, ep; /* each at least 1 */
};

/* The coordinates of one rank. */
struct group_place {
    unsigned tp, cp, dp, pp, etp, ep, edp;
};

/* The smallest DP for which both grids have the same number of ranks. */
unsigned groups_least_dp(const struct group_sizes *s);
unsigned groups_world_size(const struct group_sizes *s);

struct group_place groups_place(const struct group_sizes *s, unsigned rank);
/* Fills ranks[groups_world_size] with the members of rank's group, in order, and returns their
 * number. *index: the position of `rank` among them. */
unsigned groups_members(const struct group_sizes *s, enum group_kind kind, unsigned rank,
                        unsigned *ranks, unsigned *index);

/* The groups of this rank, opened. */
struct groups {
    struct group_sizes sizes;
    struct group_place place;
    struct comm_group of[NUM_GROUP_KINDS];
    unsigned num_open;
};

/* ERR_UNSUPPORTED if the sizes take another number of ranks than the job has. */
MUST_CHECK enum status groups_open(struct groups *g, struct comm *c, const struct group_sizes *s,
                                   struct error *err);
void groups_close(struct groups *g);

/* Sizes and coordinates of a rank of a job that does not exist: to build programs that are measured
 * and never run. */
MUST_CHECK enum status groups_imagine(struct groups *g, const struct group_sizes *s, unsigned rank,
                                      struct error *err);

#endif
