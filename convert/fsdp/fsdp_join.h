/* fsdp_join.h - makes own tensors of what the files of ranks hold: boxes of a tensor
 * (formats/dtensor.h), whole ones, and pieces of flattened ones.
 *
 * FSDP1 flattens the parameters of a module into one tensor, of which each rank has an equal part.
 * With use_orig_params=True, LOCAL_STATE_DICT also has each parameter as the 1-D piece of it that
 * the rank holds, of no elements where it holds none: the pieces in order of ranks are the
 * parameter, whose shape no file says (torch/distributed/fsdp/_flat_param.py).
 * optimizer.state_dict() of such a run has pieces too, whatever the weights are saved as. */
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
    const uint64_t *shape; /* of pieces: NULL, until it is known */
    bool in_pieces;
    size_t last_rank; /* that has it */
    struct joined_part *parts;
    size_t num_parts, parts_capacity;
};

struct fsdp_join {
    struct checkpoint *c;
    struct joined *items;
    size_t count, capacity;
    struct map names, boxes; /* name and state -> items; these and a box */
    bool flat;               /* plain tensors of one dimension are pieces */
    bool by_rank;            /* a file a rank: so states of one dimension may be */
    uint64_t state_bytes;
};

void fsdp_join_init(struct fsdp_join *j, struct checkpoint *c);
void fsdp_join_release(struct fsdp_join *j);

/* Adds what file t of a rank has of a tensor, under its name (kept) without wrappers. Equal boxes
 * of several ranks are one. */
MUST_CHECK enum status fsdp_join_add(struct fsdp_join *j, struct torch_file *t, size_t rank,
                                     const char *name, const char *state, const struct value *v,
                                     struct error *err);
/* The tensor; NULL: there is none. Valid until the next is added. */
const struct joined *fsdp_join_find(const struct fsdp_join *j, const char *name, const char *state);

/* Sets the shape of a tensor in pieces. Groups of ranks may repeat them: so each rank may have all.
 * ERR_CORRUPT where they are not of this shape. Without a shape (NULL) they are joined as one
 * dimension. */
MUST_CHECK enum status fsdp_join_shape(struct fsdp_join *j, struct joined *x, unsigned num_dims,
                                       const uint64_t *shape, struct error *err);
/* Adds the own tensors of the parameters, or of their states. ERR_CORRUPT where boxes do not tile a
 * tensor, ERR_IO naming missing files of the set where these have the rest. */
MUST_CHECK enum status fsdp_join_own(struct fsdp_join *j, const struct fsdp_set *set, bool states,
                                     struct error *err);

#endif
