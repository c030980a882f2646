/* shard.h - which elements of its regions a data parallel rank updates: ZeRO-1, as Megatron-LM's
 * distributed optimizer does it.
 *
 * 1. Parameters that an update treats alike lie one behind the other: a *range*.
 * 2. A range is cut into *buckets* of one length; its last one may be shorter. A bucket is what one
 *    collective moves, so that no buffer of a collective grows with the model.
 * 3. A bucket has as many equal *parts* as its data parallel group has members (GROUP_EDP of
 *    experts, else GROUP_DP). Part i is that of member i, wherever parameters begin.
 * 4. In a region that is *sharded* a rank has its own parts alone, in the order of the buckets.
 *
 * Regions of masters and moments may be sharded; those of parameters and gradients never are.
 * Sharded or not, the norm is made of the same parts: so both give the same bits. */
#ifndef FERRY_TRAIN_TRAINER_SHARD_H
#define FERRY_TRAIN_TRAINER_SHARD_H

#include "common/arena.h"
#include "train/engine/groups.h"

struct param_range {
    uint64_t first, end; /* elements of a region, with gaps */
    uint64_t num_params; /* without gaps */
    bool decays;
    /* Bits 1 << enum group_kind of groups of several ranks: over which gradients are summed, and
     * whose members have the same elements. */
    unsigned sums, copies;
};

struct shard_bucket {
    const struct param_range *range;
    uint64_t first, end;   /* elements of a region */
    uint64_t own, own_end; /* of these the rank's part */
    uint64_t at; /* where that begins in regions of masters and moments; `own` if not sharded */
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

/* The group of several ranks whose members share the update of a range; NUM_GROUP_KINDS: none. */
unsigned shard_group(const struct param_range *r);

/* Ranges have to begin and end at multiples of so many alignments. */
uint64_t shard_unit(const struct groups *g);

/* For the rank at this place. In arena a. */
void shard_make(struct shard *out, const struct param_range *ranges, unsigned num_ranges,
                const struct groups *g, const struct shard_options *o, struct arena *a);

#endif
