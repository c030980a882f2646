/* shard.h - which elements of its regions a data parallel rank updates: ZeRO-1,
 * as Megatron-LM's distributed optimizer.
 *
 * 1. Adjacent parameters with the same update form a *range*.
 * 2. A range is cut into *buckets* of one length; the last may be shorter. One collective moves a
 *    bucket, so its buffers do not grow with the model.
 * 3. A bucket has as many equal *parts* as its data parallel group has members (GROUP_EDP for
 *    experts, else GROUP_DP). Part i belongs to member i, regardless of parameter boundaries.
 * 4. In a *sharded* region a rank has only its own parts, in the order of the buckets.
 *
 * Masters and moments may be sharded; parameters and gradients never are.
 * Sharded or not, the norm sums the same parts, so both give the same bits. */
#ifndef FERRY_TRAIN_TRAINER_SHARD_H
#define FERRY_TRAIN_TRAINER_SHARD_H

#include "common/arena.h"
#include "train/engine/groups.h"

struct param_range {
    uint64_t first, end; /* elements of a region, with gaps */
    uint64_t num_params; /* without gaps */
    bool decays;
    /* Bits 1 << enum group_kind of groups of several ranks: sums, over which
     * gradients are summed; copies, whose members have the same elements. */
    unsigned sums, copies;
};

struct shard_bucket {
    const struct param_range *range;
    uint64_t first, end;   /* elements of a region */
    uint64_t own, own_end; /* the rank's part */
    uint64_t at;           /* its start in regions of masters and moments; `own` if not sharded */
};

struct shard_options {
    bool shards;           /* where a group has several members */
    uint64_t bucket_numel; /* 0: Megatron-LM's default, max(40M, 1M times the group's members) */
    uint64_t alignment;    /* elements: parts begin and end at multiples of it */
};

struct shard {
    struct shard_options options;
    const struct param_range *ranges; /* [num_ranges] the caller's */
    unsigned num_ranges;
    struct shard_bucket *buckets; /* [num_buckets] in the order of elements */
    size_t num_buckets;
    bool is_sharded; /* masters and moments are */
    uint64_t numel;  /* elements of a region of masters or moments */
};

/* The group whose several ranks share the update of a range; NUM_GROUP_KINDS:
 * none. */
unsigned shard_group(const struct param_range *r);

/* Ranges must begin and end at multiples of so many alignments. */
uint64_t shard_unit(const struct groups *g);

/* The shard of the rank at this place. In arena a. */
void shard_make(struct shard *out, const struct param_range *ranges, unsigned num_ranges,
                const struct groups *g, const struct shard_options *o, struct arena *a);

#endif
