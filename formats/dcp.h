/* dcp.h - PyTorch Distributed Checkpoint folders: .metadata (a pickle) and
 * .distcp files (torch.save archives one behind the other). Sources: class
 * names, fields and module names of torch/distributed/checkpoint/metadata.py
 * and filesystem.py of torch 1.13 to 2.13.
 *
 *   .metadata   Metadata {state_dict_metadata: {fqn: TensorStorageMetadata or
 *               BytesStorageMetadata}, planner_data, storage_data:
 *               {MetadataIndex(fqn, offset): _StorageInfo(path, offset, length)},
 *               ...}; classes are matched by name: their modules moved between
 *               versions
 *   *.distcp    items; a tensor item is the archive of one tensor in the shape of
 *               its chunk */
#ifndef FERRY_FORMATS_DCP_H
#define FERRY_FORMATS_DCP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/arena.h"
#include "common/dtype.h"
#include "common/status.h"
#include "formats/stored.h"
#include "formats/value.h"

/* Reads folder/.metadata, or without one the files __R.metadata of ranks that
 * saved without collectives, then the zip directory and pickle of each chunk's
 * item. Adds all tensors and objects to s; pieces are sorted by start and tile
 * their tensor. read_items false, for a listing: leaves the items closed, so a
 * piece has only its item's offset and no strides. Skips `all_local_plans`.
 * Refuses overlapping or missing chunks, unknown dtypes, transformed items,
 * items outside the folder. */
MUST_CHECK enum status dcp_open(struct stored *s, const char *folder, bool read_items,
                                struct error *err);

/* Loads one object (a list of one value in Megatron's files) into arena a,
 * without the bytes of its tensors; torch_open() at offset_bytes and size_bytes
 * of its file gives those too. */
MUST_CHECK enum status dcp_read_object(struct stored *s, const struct stored_object *o,
                                       struct arena *a, struct value **out, struct error *err);

/* As dcp_open(), for a folder written by torch's HuggingFaceStorageWriter
 * without consolidation, or the folder "sharded" beside consolidated files
 * (torch/distributed/checkpoint/hf_storage.py):
 *
 *   shard-0000R-model-0000I-of-0000N.safetensors
 *       of rank R - 1: its shards under the whole tensors' names; __metadata__ has
 *       DCP_SHARDING_INFO, {name: {"saved_offsets": [o0, ...]}}
 *
 * The shape of a whole tensor is not stored: it reaches to the end of its last
 * shard. ERR_CORRUPT if a rank's file is missing among others, or shards do not
 * fill their tensor. */
bool dcp_has_shards(const char *folder);
MUST_CHECK enum status dcp_open_shards(struct stored *s, const char *folder, struct error *err);

/* Contents of a .metadata to write: chunks of tensors, and objects, with their
 * places in the files. */
struct dcp_chunk {
    const uint64_t *offsets, *sizes;     /* [num_dims] */
    uint32_t file;                       /* index into paths */
    uint64_t offset_bytes, length_bytes; /* of the item */
};
struct dcp_tensor {
    const char *name;
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
    const struct dcp_chunk *chunks; /* [num_chunks]; NULL: get_chunk() gives them */
    size_t num_chunks;
    /* Sets *out to a chunk, valid until the next call. There may be hundreds of
     * thousands. */
    void (*get_chunk)(const void *context, size_t number, struct dcp_chunk *out);
    const void *chunk_context;
    /* The shape before Megatron-Core older than 0.16 flattened the tensor.
     * NULL: it did not. */
    const uint64_t *original_shape;
    unsigned num_original_dims;
    /* Path in the nested state dict, as stored_tensor.nested_path; a key of
     * digits only is a list position. NULL: not in planner_data. */
    const char *nested_path;
};
struct dcp_object {
    const char *name;
    uint32_t file;
    uint64_t offset_bytes, length_bytes;
    const char *nested_path; /* as a tensor's */
};
/* Writes a .metadata with the classes of current torch (protocol 2,
 * storage_meta None, version "1.0.0") to the new file `path`, streaming.
 * planner_data is None if nothing has a path. paths[] are relative to the
 * folder. Items may share bytes. */
MUST_CHECK enum status dcp_write_metadata(const char *path, const char *const *paths,
                                          const struct dcp_tensor *tensors, size_t num_tensors,
                                          const struct dcp_object *objects, size_t num_objects,
                                          bool durable, struct error *err);

#endif
