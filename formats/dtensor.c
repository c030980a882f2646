#include "formats/dtensor.h"

#include <inttypes.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"

enum {
    MAX_MESH_AXES = 32,
    MAX_TORCH_DIMS = 64,
    /* FSDP makes one shard per rank. Values of a pickle are shared, so a long
     * list would be free for a hostile file. */
    MAX_LOCAL_SHARDS = 16,
};

/* ---- boxes ---- */

/* Lists the axes that shard dimension d, in the order of sharding. */
static enum status order_axes(const struct mesh_axis *axes, size_t num_axes, unsigned d,
                              size_t *list, size_t *count, struct error *err)
{
    *count = 0;
    for (size_t i = num_axes; i-- > 0;) {
        size_t at = 0;
        uint64_t product = 1;
        if (!axes[i].shards || axes[i].dim != d) continue;
        while (product != axes[i].split_factor && at < *count)
            if (!mul_u64(product, axes[list[at++]].size, &product)) break;
        if (product != axes[i].split_factor)
            return fail(err, ERR_UNSUPPORTED,
                        "split factor %" PRIu64
                        " of mesh axis %zu in dimension %u is not a product of axis sizes",
                        axes[i].split_factor, i, d);
        memmove(list + at + 1, list + at, (*count - at) * sizeof *list);
        list[at] = i;
        ++*count;
    }
    return OK;
}

/* Narrows [*start, *start + *extent) to part `coordinate` of `size` parts. */
static void narrow_to_shard(uint64_t size, uint64_t coordinate, uint64_t *start, uint64_t *extent)
{
    const uint64_t chunk = ceil_div_u64(*extent, size);
    uint64_t skip;
    if (!mul_u64(chunk, coordinate, &skip) || skip > *extent) skip = *extent;
    *start += skip;
    *extent = min_u64(chunk, *extent - skip);
}

static enum status check_axes(const struct mesh_axis *axes, size_t num_axes, unsigned num_dims,
                              struct error *err)
{
    if (num_axes > MAX_MESH_AXES)
        return fail(err, ERR_CORRUPT, "a mesh of %zu axes, at most %d are supported", num_axes,
                    MAX_MESH_AXES);
    for (size_t i = 0; i < num_axes; i++) {
        if (axes[i].coordinate >= axes[i].size)
            return fail(err, ERR_CORRUPT,
                        "coordinate %" PRIu64 " is out of range on mesh axis %zu of size %" PRIu64,
                        axes[i].coordinate, i, axes[i].size);
        if (axes[i].shards && axes[i].dim >= num_dims)
            return fail(err, ERR_CORRUPT,
                        "a mesh axis shards dimension %u of a tensor of %u dimensions", axes[i].dim,
                        num_dims);
    }
    return OK;
}

enum status dtensor_box(const struct mesh_axis *axes, size_t num_axes, unsigned num_dims,
                        const uint64_t *shape, uint64_t *start, uint64_t *extent, struct error *err)
{
    size_t list[MAX_MESH_AXES], count;
    TRY(check_axes(axes, num_axes, num_dims, err));
    for (unsigned d = 0; d < num_dims; d++) {
        start[d] = 0;
        extent[d] = shape[d];
        TRY(order_axes(axes, num_axes, d, list, &count, err));
        for (size_t k = 0; k < count; k++)
            narrow_to_shard(axes[list[k]].size, axes[list[k]].coordinate, &start[d], &extent[d]);
    }
    return OK;
}

/* ---- values ---- */

static bool is_sequence(const struct value *v)
{
    return v && (v->kind == VALUE_TUPLE || v->kind == VALUE_LIST);
}

static bool as_size(const struct value *v, uint64_t *out)
{
    int64_t n;
    if (!value_as_int(v, &n) || n < 0) return false;
    *out = (uint64_t)n;
    return true;
}

/* A tuple or list of sizes; NULL: another kind of value. */
static const uint64_t *as_sizes(struct arena *a, const struct value *v)
{
    if (!is_sequence(v) || v->count > MAX_TORCH_DIMS) return NULL;
    uint64_t *sizes = arena_array(a, v->count + 1u, sizeof *sizes);
    for (uint32_t i = 0; i < v->count; i++)
        if (!as_size(v->items[i], &sizes[i])) return NULL;
    return sizes;
}

static const char *class_name(const struct value *v)
{
    if (!v || v->kind != VALUE_OBJECT || v->object->callable->kind != VALUE_GLOBAL) return "";
    return v->object->callable->global->name;
}

static bool is_class(const struct value *v, const char *name)
{
    return strcmp(class_name(v), name) == 0;
}

bool dtensor_matches(const struct value *v)
{
    return v && (v->kind == VALUE_TENSOR || is_class(v, "DTensor") || is_class(v, "ShardedTensor"));
}

/* Adds a plain tensor with the shape of its box. */
static enum status set_part(struct dtensor *out, const struct value *local, const uint64_t *start,
                            const uint64_t *extent, struct error *err)
{
    if (!local || local->kind != VALUE_TENSOR)
        return fail(err, ERR_CORRUPT, "its local tensor is not a plain tensor");
    const struct value_tensor *t = local->tensor;
    if (t->num_dims != out->num_dims)
        return fail(err, ERR_CORRUPT, "its local tensor has %u dimensions, the whole tensor %u",
                    t->num_dims, out->num_dims);
    for (unsigned d = 0; d < t->num_dims; d++)
        if (t->shape[d] != extent[d])
            return fail(err, ERR_CORRUPT,
                        "dimension %u of its local tensor has %" PRIu64
                        " elements, expected %" PRIu64,
                        d, t->shape[d], extent[d]);
    if (out->num_parts && t->dtype != out->dtype)
        return fail(err, ERR_CORRUPT, "its parts have dtypes %s and %s",
                    dtype_infos[out->dtype].name, dtype_infos[t->dtype].name);
    out->dtype = t->dtype;
    out->parts[out->num_parts++] = (struct dtensor_part){local, start, extent};
    return OK;
}

static enum status set_shape(struct dtensor *out, struct arena *a, const struct value *size,
                             struct error *err)
{
    out->shape = as_sizes(a, size);
    if (!out->shape) return fail(err, ERR_CORRUPT, "it has no size");
    out->num_dims = size->count;
    return OK;
}

/* ---- DTensor ---- */

static bool product_of_sizes(const struct value *v, uint64_t *out)
{
    uint64_t n;
    *out = 1;
    if (as_size(v, out)) return true;
    if (!is_sequence(v)) return false;
    for (uint32_t i = 0; i < v->count; i++)
        if (!as_size(v->items[i], &n) || !mul_u64(*out, n, out)) return false;
    return true;
}

/* Axis sizes: `axes` of flat layouts, or `shape` of numbers and tuples. */
static bool sizes_of_layout(const struct value *layout, struct mesh_axis *axes, size_t *num_axes)
{
    const struct value *flat = value_get(layout, "axes"), *shape = value_get(layout, "shape");
    const struct value *of = flat ? flat : shape;
    uint64_t n;
    if (!flat && as_size(shape, &n)) {
        *num_axes = 1;
        axes->size = n;
        return true;
    }
    if (!is_sequence(of) || of->count > MAX_MESH_AXES) return false;
    *num_axes = of->count;
    for (uint32_t i = 0; i < of->count; i++)
        if (!product_of_sizes(flat ? value_get(of->items[i], "shape") : of->items[i],
                              &axes[i].size))
            return false;
    return true;
}

static bool sizes_of_mesh(const struct value *mesh, struct mesh_axis *axes, size_t *num_axes)
{
    const struct value *ranks = value_get(mesh, "mesh");
    if (!ranks) ranks = value_get(mesh, "_mesh");
    if (!ranks || ranks->kind != VALUE_TENSOR)
        return sizes_of_layout(value_get(mesh, "_layout"), axes, num_axes);
    if (ranks->tensor->num_dims > MAX_MESH_AXES) return false;
    *num_axes = ranks->tensor->num_dims;
    for (size_t i = 0; i < *num_axes; i++)
        axes[i].size = ranks->tensor->shape[i];
    return true;
}

/* Axes without placements. *outside: the rank is not in the mesh. */
static enum status read_mesh(const struct value *mesh, struct mesh_axis *axes, size_t *num_axes,
                             bool *outside, struct error *err)
{
    const struct value *at = value_get(mesh, "_coordinate_on_dim");
    if (!is_class(mesh, "DeviceMesh") || !sizes_of_mesh(mesh, axes, num_axes))
        return fail(err, ERR_CORRUPT, "its mesh has no shape");
    *outside = at && at->kind == VALUE_NONE;
    if (*outside) return OK;
    if (!is_sequence(at) || at->count != *num_axes)
        return fail(err, ERR_CORRUPT, "the rank has no coordinates on the %zu axes of its mesh",
                    *num_axes);
    for (size_t i = 0; i < *num_axes; i++)
        if (!as_size(at->items[i], &axes[i].coordinate))
            return fail(err, ERR_CORRUPT, "coordinate %zu of the rank is not a number", i);
    return OK;
}

/* A member of a placement, set by BUILD or as an argument. */
static bool placement_member(const struct value *v, const char *name, uint32_t at, int64_t *out)
{
    const struct value_object *o = v->object;
    if (value_as_int(value_get(v, name), out)) return true;
    if (o->kwargs && value_as_int(value_get(o->kwargs, name), out)) return true;
    return o->args && at < o->args->count && value_as_int(o->args->items[at], out);
}

static enum status read_placement(const struct value *v, unsigned num_dims, struct mesh_axis *axis,
                                  struct error *err)
{
    int64_t dim, factor = 1;
    const bool strided = is_class(v, "_StridedShard");
    if (is_class(v, "Replicate")) return OK;
    if (!strided && !is_class(v, "Shard"))
        return fail(err, ERR_UNSUPPORTED,
                    "its placement %s is not supported (Shard, _StridedShard, Replicate)",
                    *class_name(v) ? class_name(v) : "without a class");
    if (!placement_member(v, "dim", 0, &dim))
        return fail(err, ERR_CORRUPT, "a placement %s has no dim", class_name(v));
    if (strided && !placement_member(v, "split_factor", 1, &factor))
        return fail(err, ERR_CORRUPT, "a placement %s has no split_factor", class_name(v));
    if (dim < 0) dim += num_dims;
    if (dim < 0 || dim >= num_dims || factor < 1)
        return fail(err, ERR_CORRUPT,
                    "placement %s has dim %" PRId64 " and split factor %" PRId64
                    " for a tensor of %u dimensions",
                    class_name(v), dim, factor, num_dims);
    axis->shards = true;
    axis->dim = (unsigned)dim;
    axis->split_factor = (uint64_t)factor;
    return OK;
}

static enum status read_spec(const struct value *spec, unsigned num_dims, struct mesh_axis *axes,
                             size_t *num_axes, bool *outside, struct error *err)
{
    const struct value *placements = value_get(spec, "placements");
    TRY(read_mesh(value_get(spec, "mesh"), axes, num_axes, outside, err));
    if (!is_sequence(placements) || placements->count != *num_axes)
        return fail(err, ERR_CORRUPT, "its placements do not match the %zu axes of its mesh",
                    *num_axes);
    for (size_t i = 0; i < *num_axes; i++)
        TRY(read_placement(placements->items[i], num_dims, &axes[i], err));
    return OK;
}

static enum status read_dtensor(struct dtensor *out, struct arena *a, const struct value *v,
                                struct error *err)
{
    struct mesh_axis axes[MAX_MESH_AXES] = {0};
    size_t num_axes = 0;
    bool outside;
    const struct value *args = v->object->args, *local = value_get(v, "_local_tensor");
    TRY(set_shape(out, a, args && args->count > 2 ? args->items[2] : NULL, err));
    TRY(read_spec(value_get(v, "_spec"), out->num_dims, axes, &num_axes, &outside, err));
    if (outside) return OK;
    uint64_t *start = arena_array(a, out->num_dims + 1u, sizeof *start);
    uint64_t *extent = arena_array(a, out->num_dims + 1u, sizeof *extent);
    TRY(dtensor_box(axes, num_axes, out->num_dims, out->shape, start, extent, err));
    out->parts = arena_alloc(a, sizeof *out->parts);
    return set_part(out, local, start, extent, err);
}

/* ---- ShardedTensor ---- */

static enum status read_shard(struct dtensor *out, struct arena *a, const struct value *shard,
                              struct error *err)
{
    const struct value *metadata = value_get(shard, "metadata");
    const struct value *offsets = value_get(metadata, "shard_offsets"),
                       *sizes = value_get(metadata, "shard_sizes");
    const uint64_t *start = as_sizes(a, offsets), *extent = as_sizes(a, sizes);
    if (!start || !extent || offsets->count != out->num_dims || sizes->count != out->num_dims)
        return fail(err, ERR_CORRUPT, "a shard does not have %u offsets and sizes", out->num_dims);
    for (unsigned d = 0; d < out->num_dims; d++)
        if (start[d] > out->shape[d] || extent[d] > out->shape[d] - start[d])
            return fail(err, ERR_CORRUPT,
                        "a shard has %" PRIu64 " elements at %" PRIu64
                        " along dimension %u, which has %" PRIu64,
                        extent[d], start[d], d, out->shape[d]);
    return set_part(out, value_get(shard, "tensor"), start, extent, err);
}

static enum status read_sharded(struct dtensor *out, struct arena *a, const struct value *v,
                                struct error *err)
{
    const struct value *state = v->object->state;
    if (!is_sequence(state) || state->count < 2 || !is_sequence(state->items[0]))
        return fail(err, ERR_CORRUPT, "a ShardedTensor without shards");
    const struct value *shards = state->items[0];
    if (shards->count > MAX_LOCAL_SHARDS)
        return fail(err, ERR_UNSUPPORTED,
                    "%u shards of one tensor in one rank, at most %d are supported", shards->count,
                    MAX_LOCAL_SHARDS);
    TRY(set_shape(out, a, value_get(state->items[1], "size"), err));
    out->parts = arena_array(a, shards->count + 1u, sizeof *out->parts);
    for (uint32_t i = 0; i < shards->count; i++)
        TRY(read_shard(out, a, shards->items[i], err));
    return OK;
}

/* ---- all ---- */

enum status dtensor_read(struct dtensor *out, struct arena *a, const struct value *v,
                         struct error *err)
{
    *out = (struct dtensor){.sharded = true};
    if (is_class(v, "DTensor")) return read_dtensor(out, a, v, err);
    if (is_class(v, "ShardedTensor")) return read_sharded(out, a, v, err);
    if (!v || v->kind != VALUE_TENSOR) return fail(err, ERR_CORRUPT, "it is not a tensor");
    out->sharded = false;
    out->num_dims = v->tensor->num_dims;
    out->shape = v->tensor->shape;
    out->parts = arena_alloc(a, sizeof *out->parts);
    return set_part(out, v, arena_array(a, out->num_dims + 1u, sizeof *out->shape), out->shape,
                    err);
}
