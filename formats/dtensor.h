/* dtensor.h - tensors of torch.distributed in files that one rank saved by
 * torch.save: the rank's box of the whole tensor.
 *
 *   DTensor        _rebuild_from_type_v2(_rebuild_wrapper_subclass, DTensor,
 *                  (DTensor, dtype, size of the whole, ...),
 *                  (None, {_local_tensor, _spec}))
 *     _spec        DTensorSpec {mesh, placements: one for each axis of the mesh,
 *                  tensor_meta, ...}
 *     mesh         DeviceMesh {mesh: tensor of ranks} or, from 2.9, {_layout:
 *                  _MeshLayout {axes: (_FlatLayout {shape, stride}, ...)}};
 *                  _coordinate_on_dim: the rank's coordinates
 *     placements   Replicate; Shard {dim}; _StridedShard {dim, split_factor};
 *                  Partial is refused
 *   ShardedTensor  the same wrapper, older an instance, with the state
 *                  (local_shards, metadata {size}, process group, sharding_spec,
 *                  init_rrefs); a shard is {tensor, metadata {shard_offsets,
 *                  shard_sizes}}
 *
 * A dimension of n elements is sharded over s ranks in parts of ceil(n / s):
 * the last ranks have less or nothing
 * (torch/distributed/tensor/placement_types.py:Shard). Several axes may shard
 * one dimension, in this order: from the last axis to the first, each joins a
 * list behind axes whose sizes have the product split_factor, 1 for Shard; then
 * the list shards from its start
 * (_dtensor_spec.py:_maybe_convert_StridedShard_to_shard_order).
 *
 * Shapes are in elements. Everything is in the caller's arena. */
#ifndef FERRY_FORMATS_DTENSOR_H
#define FERRY_FORMATS_DTENSOR_H

#include "common/arena.h"
#include "common/status.h"
#include "formats/value.h"

/* An axis of a mesh, with the placement of one tensor. */
struct mesh_axis {
    uint64_t size, coordinate; /* of the rank, below size */
    bool shards;               /* false: replicated */
    unsigned dim;              /* of the tensor, if it shards */
    uint64_t split_factor;     /* 1 for Shard */
};

/* The box of a rank. ERR_CORRUPT for a dim or coordinate that is too large, or
 * a size of 0; ERR_UNSUPPORTED if the axes of a dimension have no order. */
MUST_CHECK enum status dtensor_box(const struct mesh_axis *axes, size_t num_axes, unsigned num_dims,
                                   const uint64_t *shape, uint64_t *start, uint64_t *extent,
                                   struct error *err);

/* A box of a tensor, and the plain tensor with its elements. */
struct dtensor_part {
    const struct value *local;      /* VALUE_TENSOR of the shape `extent` */
    const uint64_t *start, *extent; /* [num_dims] */
};
struct dtensor {
    enum dtype dtype; /* of the parts; not set without parts */
    unsigned num_dims;
    const uint64_t *shape;      /* of the whole */
    struct dtensor_part *parts; /* none if the rank holds nothing */
    size_t num_parts;
    bool sharded; /* false: a plain tensor, its only part */
};

/* Whether v is a tensor of one of these kinds. */
bool dtensor_matches(const struct value *v);
/* Reads a tensor of one of these kinds. ERR_CORRUPT if it contradicts itself,
 * ERR_UNSUPPORTED if it has no box (Partial). Messages do not name it. */
MUST_CHECK enum status dtensor_read(struct dtensor *out, struct arena *a, const struct value *v,
                                    struct error *err);

#endif
