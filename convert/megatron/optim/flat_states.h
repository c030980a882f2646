/* flat_states.h - finds optimizer states in ranks' flat buffers.
 *
 *   torch_dist, dp_reshardable: a tensor per bucket,
 *     [chained_K.]optimizer.distributed.dp_group_idx_N.gbuf_idx_G
 *         .dtype_(D, D).bucket_idx_B.STATE
 *   torch_dist, dp_zero_gather_scatter: an object per cell of ranks,
 *     [chained_K.]optimizer.distributed.dp_group_idx_N.param_state/shard_0_1
 *   legacy, distrib_optim.pt beside each rank file: the same value, or a list of
 *   them if chained (None: another rank has it):
 *     {buckets_coalesced: True,
 *      G: {(D, D): {STATE: flat tensor, numel_unpadded: int}}}
 *     before February 2024
 *     {G: {(D, D): [{STATE: flat tensor with the padding of the bucket}]}}
 *
 * These of a chain have flat buffers:
 *
 * - the optimizers of dense parameters, then of experts;
 * - with --optimizer muon or lion the second alone, of the rest
 *   (training_is_split).
 *
 * D are torch dtypes of weights and gradients. The master weight is `param`. No
 * file assigns elements to parameters (flat_place.h).
 *
 * Sources: megatron/core/optimizer/distrib_optimizer.py
 * (sharded_param_state_dp_reshardable, get_parameter_state_dp_zero,
 * load_parameter_state_from_dp_zero_legacy), optimizer.py
 * (ChainedOptimizer). */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_FLAT_STATES_H
#define FERRY_CONVERT_MEGATRON_OPTIM_FLAT_STATES_H

#include "ckpt/checkpoint.h"
#include "convert/megatron/optim/buckets.h"
#include "formats/torch.h"

/* A stored state of a buffer, or of one of its buckets. */
struct flat_state {
    struct bucket_cell cell;
    uint64_t buffer;       /* number in the cell: gbuf_idx */
    uint64_t bucket;       /* WHOLE_BUFFER: all of the buffer */
    bool padded;           /* a bucket with padding at its end */
    const char *state;     /* "param", "exp_avg" */
    enum dtype of_weights; /* dtype of the buffer's weights; NUM_DTYPES: unknown */
    size_t stored;         /* index of the stored tensor */
};
#define WHOLE_BUFFER UINT64_MAX

/* The place of a rank's weight in the storage that it views. */
struct weight_place {
    const char *name;    /* logical */
    const char *storage; /* identifies the storage among all files */
    uint64_t offset;     /* elements */
};

struct flat_states {
    struct flat_state *items;
    size_t count, capacity;
    bool of_the_rest; /* hidden matrices have another optimizer, and are not in them */
    struct weight_place *places;
    size_t num_places, places_capacity;
    struct map by_name; /* "NAME CELL" -> places */
};

void flat_states_release(struct flat_states *f);

/* Adds the stored tensors of dp_reshardable, and those in objects of
 * dp_zero_gather_scatter, which it adds to the catalog's stored tensors first.
 * Needs c->layout. Sets unread for an invalid key. */
MUST_CHECK enum status flat_states_add_keys(struct flat_states *f, struct checkpoint *c,
                                            struct error *err);
/* Adds the states of a distrib_optim.pt, open as t, of rank (tp, pp, ep). Names
 * their stored tensors prefix + path. */
MUST_CHECK enum status flat_states_add_file(struct flat_states *f, struct checkpoint *c,
                                            struct torch_file *t, uint64_t tp, uint64_t pp,
                                            uint64_t ep, const char *prefix, struct error *err);
/* Records the place of a rank's shard of a parameter. cell: of experts for an
 * expert. */
void flat_states_add_weight(struct flat_states *f, struct checkpoint *c, const char *name,
                            const struct bucket_cell *cell, const char *storage, uint64_t offset);

/* A parameter and a cell as a map's key, in arena a. */
const char *flat_key(struct arena *a, const char *name, const struct bucket_cell *cell);
/* The recorded place; NULL: none. */
const struct weight_place *flat_states_weight(const struct flat_states *f, struct arena *a,
                                              const char *name, const struct bucket_cell *cell);

/* The cell of rank (tp, pp, ep) for an optimizer in a chain of `chained`. */
struct bucket_cell flat_cell_of_rank(const struct layout *l, uint64_t tp, uint64_t pp, uint64_t ep,
                                     unsigned optimizer, unsigned chained);

#endif
