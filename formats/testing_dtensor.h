/* testing_dtensor.h - makes the values that DTensors and ShardedTensors of one
 * rank are in a pickle: of tensors of [5, 3] in F32, of which the rank has some
 * rows. In the arena `values`. */
#ifndef FERRY_FORMATS_TESTING_DTENSOR_H
#define FERRY_FORMATS_TESTING_DTENSOR_H

#include "formats/dtensor.h"
#include "tests/testing.h"

static struct arena values;

static inline struct value *tuple(size_t count, const uint64_t *numbers)
{
    struct value *items[8];
    for (size_t i = 0; i < count; i++)
        items[i] = value_int(&values, (int64_t)numbers[i]);
    return value_list(&values, VALUE_TUPLE, count, items);
}

static inline struct value *object(const char *module, const char *name, size_t num_members,
                                   const char *const *names, struct value *const *members)
{
    struct value *dict = value_dict(&values);
    for (size_t i = 0; i < num_members; i++)
        value_dict_add(&values, dict, names[i], members[i]);
    return value_instance(&values, module, name, dict);
}

static inline struct value *placement(const char *name, int64_t dim)
{
    struct value *v = value_int(&values, dim);
    return object("torch.distributed.tensor.placement_types", name, 1, (const char *[]){"dim"}, &v);
}

/* torch before 2.9: the mesh is a tensor of ranks. */
static inline struct value *old_mesh(uint64_t size, uint64_t coordinate)
{
    struct value *ranks = value_tensor(&values, "9", DT_I64, 1, &size);
    return object("torch.distributed.device_mesh", "DeviceMesh", 2,
                  (const char *[]){"mesh", "_coordinate_on_dim"},
                  (struct value *[]){ranks, tuple(1, &coordinate)});
}

static inline struct value *new_mesh(uint64_t size, uint64_t coordinate)
{
    struct value *flat = object("torch.distributed._mesh_layout", "_FlatLayout", 2,
                                (const char *[]){"shape", "stride"},
                                (struct value *[]){tuple(1, &size), tuple(1, &(uint64_t){1})});
    struct value *axes = value_list(&values, VALUE_TUPLE, 1, &flat);
    struct value *layout =
        object("torch.distributed._mesh_layout", "_MeshLayout", 1, (const char *[]){"axes"}, &axes);
    return object("torch.distributed.device_mesh", "DeviceMesh", 2,
                  (const char *[]){"_layout", "_coordinate_on_dim"},
                  (struct value *[]){layout, tuple(1, &coordinate)});
}

/* A tensor of [5, 3] whose local one has so many rows. */
static inline struct value *dtensor_of(const char *key, uint64_t rows, struct value *mesh,
                                       struct value *one)
{
    const uint64_t shape[] = {5, 3}, local[] = {rows, 3};
    struct value *placements = value_list(&values, VALUE_TUPLE, 1, &one);
    struct value *spec =
        object("torch.distributed.tensor._dtensor_spec", "DTensorSpec", 2,
               (const char *[]){"mesh", "placements"}, (struct value *[]){mesh, placements});
    struct value *v =
        object("torch.distributed.tensor", "DTensor", 2, (const char *[]){"_local_tensor", "_spec"},
               (struct value *[]){value_tensor(&values, key, DT_F32, 2, local), spec});
    struct value *args[] = {v->object->callable, value_global(&values, "torch", "float32"),
                            tuple(2, shape)};
    v->object->args = value_list(&values, VALUE_TUPLE, 3, args);
    v->object->rebuild = value_global(&values, "torch._utils", "_rebuild_wrapper_subclass");
    return v;
}

/* (local_shards, metadata), of the wrapper and of the older instance. */
static inline struct value *sharded_of(const char *key, uint64_t offset, uint64_t rows)
{
    const uint64_t shape[] = {5, 3}, start[] = {offset, 0}, extent[] = {rows, 3};
    struct value *place = object("torch.distributed._shard.metadata", "ShardMetadata", 2,
                                 (const char *[]){"shard_offsets", "shard_sizes"},
                                 (struct value *[]){tuple(2, start), tuple(2, extent)});
    struct value *shard =
        object("torch.distributed._shard.sharded_tensor.shard", "Shard", 2,
               (const char *[]){"tensor", "metadata"},
               (struct value *[]){value_tensor(&values, key, DT_F32, 2, extent), place});
    struct value *size = tuple(2, shape);
    struct value *metadata = object("torch.distributed._shard.sharded_tensor.metadata",
                                    "ShardedTensorMetadata", 1, (const char *[]){"size"}, &size);
    struct value *state[] = {value_list(&values, VALUE_LIST, rows ? 1 : 0, &shard), metadata};
    return value_instance(&values, "torch.distributed._shard.sharded_tensor.api", "ShardedTensor",
                          value_list(&values, VALUE_TUPLE, 2, state));
}

#endif
