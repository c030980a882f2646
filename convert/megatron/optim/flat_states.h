/* flat_states.h - finds the optimizer states that lie in flat buffers of ranks.
 *
 *   torch_dist, dp_reshardable: a tensor for each bucket,
 *     [chained_K.]optimizer.distributed.dp_group_idx_N.gbuf_idx_G.dtype_(D, D).bucket_idx_B.STATE
 *   torch_dist, dp_zero_gather_scatter: an object for each cell of ranks,
 *     [chained_K.]optimizer.distributed.dp_group_idx_N.param_state/shard_0_1
 *   legacy, distrib_optim.pt beside each rank file: the same value, or a list of them where
 *   optimizers are chained (None: another rank has it):
 *     {buckets_coalesced: True, G: {(D, D): {STATE: flat tensor, numel_unpadded: int}}}
 *     before February 2024 {G: {(D, D): [{STATE: flat tensor with the padding of the bucket}]}}
 *
 * D are torch dtypes, of weights and gradients. The master weight is `param`. No file says which
 * elements are which parameter's (flat_place.h).
 *
 * Sources: megatron/core/optimizer/distrib_optimizer.py (sharded_param_state_dp_reshardable,
 * get_parameter_state_dp_zero, load_parameter_state_from_dp_zero_legacy), optimizer.py
 * (ChainedOptimizer). */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_FLAT_STATES_H
#define FERRY_CONVERT_MEGATRON_OPTIM_FLAT_STATES_H

#include "ckpt/checkpoint.h"
#include "convert/megatron/optim/buckets.h"
#include "formats/torch.h"

/* One state of one buffer, or of one bucket of it, as it is stored. */
struct flat_state {
    struct bucket_cell cell;
    uint64_t buffer;       /* its number in the cell: gbuf_idx */
    uint64_t bucket;       /* WHOLE_BUFFER: all of the buffer */
    bool padded;           /* a bucket with the padding at its end */
    const char *state;     /* "param", "exp_avg" */
    enum dtype of_weights; /* the dtype of the buffer's weights; NUM_DTYPES: not said */
    size_t stored;         /* index of the stored tensor */
};
#define WHOLE_BUFFER UINT64_MAX

/* The place of a rank's weight in the storage that it is a view of. */
struct weight_place {
    const char *name;    /* logical */
    const char *storage; /* identifies the storage, in all files */
    uint64_t offset;     /* elements */
};

struct flat_states {
    struct flat_state *items;
    size_t count, capacity;
    struct weight_place *places;
    size_t num_places, places_capacity;
    struct map by_name; /* "NAME CELL" -> places */
};

void flat_states_release(struct flat_states *f);

/* Adds the stored tensors of dp_reshardable, and those in the objects of dp_zero_gather_scatter,
 * which it adds to the catalog's stored tensors. c->layout is known. Sets unread where a key cannot
 * be one. */
MUST_CHECK enum status flat_states_add_keys(struct flat_states *f, struct checkpoint *c,
                                            struct error *err);
/* Adds the states of a distrib_optim.pt, opened as t, of the rank (tp, pp, ep). Their stored
 * tensors are named prefix + path. */
MUST_CHECK enum status flat_states_add_file(struct flat_states *f, struct checkpoint *c,
                                            struct torch_file *t, uint64_t tp, uint64_t pp,
                                            uint64_t ep, const char *prefix, struct error *err);
/* Tells where a rank's shard of a parameter lies. expert: its cell is one of experts. */
void flat_states_add_weight(struct flat_states *f, struct checkpoint *c, const char *name,
                            const struct bucket_cell *cell, const char *storage, uint64_t offset);

/* A parameter and a cell as the key of a map; in arena a. */
const char *flat_key(struct arena *a, const char *name, const struct bucket_cell *cell);
/* NULL: it was not told. */
const struct weight_place *flat_states_weight(const struct flat_states *f, struct arena *a,
                                              const char *name, const struct bucket_cell *cell);

/* The cell of an optimizer of a chain of `chained`, for rank (tp, pp, ep). */
struct bucket_cell flat_cell_of_rank(const struct layout *l, uint64_t tp, uint64_t pp, uint64_t ep,
                                     unsigned optimizer, unsigned chained);

#endif
