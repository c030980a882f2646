/* groups.h - the ranks of a job as coordinates, and the groups of
 * Megatron-Core.
 *
 * Two grids lie over the same ranks (megatron/core/parallel_state.py, order
 * tp-cp-ep-dp-pp, the first varying fastest):
 *
 *   dense    rank = tp + TP * (cp + CP * (dp + DP * pp))
 *   experts  rank = etp + ETP * (ep + EP * (edp + EDP * pp)),
 *            EDP = TP * CP * DP / (ETP * EP) */
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
    GROUP_EMBEDDING, /* first and last pipeline stage, which share a tied embedding; ranks of other
                        stages are alone */
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

/* Smallest DP with the same number of ranks in both grids. */
unsigned groups_least_dp(const struct group_sizes *s);
unsigned groups_world_size(const struct group_sizes *s);

struct group_place groups_place(const struct group_sizes *s, unsigned rank);
/* Fills ranks[groups_world_size] with the members of rank's group, in order;
 * returns their number. *index: the position of `rank`. */
unsigned groups_members(const struct group_sizes *s, enum group_kind kind, unsigned rank,
                        unsigned *ranks, unsigned *index);

/* The groups of this rank, opened. */
struct groups {
    struct group_sizes sizes;
    struct group_place place;
    struct comm_group of[NUM_GROUP_KINDS];
    unsigned num_open;
};

/* ERR_UNSUPPORTED if the job has another number of ranks. */
MUST_CHECK enum status groups_open(struct groups *g, struct comm *c, const struct group_sizes *s,
                                   struct error *err);
void groups_close(struct groups *g);

/* Sets sizes and coordinates for a rank of a nonexistent job: its programs are
 * measured, never run. */
MUST_CHECK enum status groups_simulate(struct groups *g, const struct group_sizes *s, unsigned rank,
                                       struct error *err);

#endif
