/* dcp_internal.h - the contents of .metadata, for dcp.c. */
#ifndef FERRY_FORMATS_DCP_INTERNAL_H
#define FERRY_FORMATS_DCP_INTERNAL_H

#include "common/map.h"
#include "formats/dcp.h"

/* First member of each struct for an object of torch. */
enum meta_kind { META_CHUNK, META_PROPERTIES, META_TENSOR, META_BYTES, META_INDEX, META_PLACE };

/* ChunkStorageMetadata: a box. bounds: num_dims offsets, num_dims sizes. */
struct meta_chunk {
    enum meta_kind kind;
    uint32_t num_dims;
    uint64_t bounds[];
};

/* TensorProperties. unknown: torch's name of an unknown dtype, or NULL. */
struct meta_properties {
    enum meta_kind kind;
    enum dtype dtype;
    const char *unknown;
};

/* TensorStorageMetadata. */
struct meta_tensor {
    enum meta_kind kind;
    uint32_t num_dims, num_chunks;
    const struct meta_properties *properties;
    const uint64_t *shape;
    const struct meta_chunk **chunks;
};

/* _StorageInfo: the place of an item. */
struct meta_place {
    enum meta_kind kind;
    uint32_t path;         /* index into paths */
    const char *transform; /* the first of its transform_descriptors; NULL: none */
    uint64_t offset, length;
};

/* MetadataIndex: the key of an item. */
struct meta_index {
    enum meta_kind kind;
    uint32_t name;
    bool has_offset; /* objects have none */
    uint32_t num_dims;
    uint64_t offset[];
};

/* An entry of state_dict_metadata. */
struct meta_entry {
    uint32_t name;                    /* index into names */
    const struct meta_tensor *tensor; /* NULL: an object (BytesStorageMetadata) */
    const char *nested_path;          /* from planner_data; NULL: none */
};

/* Numbered texts without repetition. NUL becomes C0 80. */
struct text_table {
    struct map map;
    const char **texts;
    size_t count, capacity;
};

struct dcp_metadata {
    struct arena arena; /* all but the maps and hash slots */
    struct text_table names, paths;
    struct meta_entry *entries;
    size_t num_entries, entries_capacity;
    struct map entry_of; /* name -> entry */
    struct meta_item {   /* of storage_data */
        const struct meta_index *index;
        const struct meta_place *place;
    } * items;
    size_t num_items;
    uint32_t *slots; /* hash table of item + 1 by index */
    size_t num_slots;
    uint64_t chunks_left; /* chunks that may still be listed, at first one per byte of the file */
    uint64_t seed;        /* of hashes: no file can be made whose keys collide */
};

void dcp_metadata_init(struct dcp_metadata *m);
/* Reads .metadata at path, or the file of one of the ranks that saved without
 * collectives: its chunks and items join earlier ones. err names it. */
MUST_CHECK enum status dcp_metadata_add(struct dcp_metadata *m, const char *path,
                                        struct error *err);
/* Unpredictable bits. */
uint64_t dcp_random(void);
void dcp_metadata_release(struct dcp_metadata *m);
/* The place of the item of name and of the chunk at offset (NULL: of an
 * object). NULL: none. */
const struct meta_place *dcp_metadata_find(const struct dcp_metadata *m, uint32_t name,
                                           const uint64_t *offset, uint32_t num_dims);

#endif
