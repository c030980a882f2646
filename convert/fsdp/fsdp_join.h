/* fsdp_join.h - joins rank files into native tensors: boxes of a tensor
 * (formats/dtensor.h), whole tensors, and pieces of flattened ones.
 *
 * FSDP1 flattens a module's parameters into one tensor, of which each rank has
 * an equal part. With use_orig_params=True, LOCAL_STATE_DICT also has each
 * parameter as the rank's 1-D piece of it, empty where the rank has none: the
 * pieces in rank order are the parameter, whose shape no file has
 * (torch/distributed/fsdp/_flat_param.py). optimizer.state_dict() of such a run
 * has pieces too, however the weights are saved. */
#ifndef FERRY_CONVERT_FSDP_FSDP_JOIN_H
#define FERRY_CONVERT_FSDP_FSDP_JOIN_H

#include "ckpt/checkpoint.h"
#include "convert/fsdp/fsdp_files.h"
#include "formats/torch.h"

struct joined_part {
    size_t stored;                  /* index into catalog.stored.tensors */
    const uint64_t *start, *extent; /* of a box; NULL: a piece */
};
struct joined {
    const char *name, *state;
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape; /* of pieces: NULL until known */
    bool in_pieces;
    size_t last_rank; /* with the tensor */
    struct joined_part *parts;
    size_t num_parts, parts_capacity;
};

struct fsdp_join {
    struct checkpoint *c;
    struct joined *items;
    size_t count, capacity;
    struct map names, boxes; /* name and state -> items; these with a box */
    bool flat;               /* plain 1-D tensors are pieces */
    bool by_rank;            /* rank files: 1-D states may be pieces */
    uint64_t state_bytes;
};

void fsdp_join_init(struct fsdp_join *j, struct checkpoint *c);
void fsdp_join_release(struct fsdp_join *j);

/* Adds a tensor of a rank's file t under its name (kept) without wrappers.
 * Equal boxes of several ranks are one. */
MUST_CHECK enum status fsdp_join_add(struct fsdp_join *j, struct torch_file *t, size_t rank,
                                     const char *name, const char *state, const struct value *v,
                                     struct error *err);
/* The tensor, valid until the next is added; NULL: none. */
const struct joined *fsdp_join_find(const struct fsdp_join *j, const char *name, const char *state);

/* Sets the shape of a tensor in pieces, which groups of ranks may repeat, even
 * whole on each rank. shape NULL: joins them as one dimension. ERR_CORRUPT if
 * they do not fit the shape. */
MUST_CHECK enum status fsdp_join_shape(struct fsdp_join *j, struct joined *x, unsigned num_dims,
                                       const uint64_t *shape, struct error *err);
/* Adds native tensors of the parameters, or of their states. ERR_CORRUPT if
 * boxes do not tile a tensor, ERR_IO naming missing files if these hold the
 * rest. */
MUST_CHECK enum status fsdp_join_native(struct fsdp_join *j, const struct fsdp_set *set,
                                        bool states, struct error *err);

#endif
