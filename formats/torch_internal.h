/* torch_internal.h - opening a torch archive without a `stored`, for torch.c and dcp.c. */
#ifndef FERRY_FORMATS_TORCH_INTERNAL_H
#define FERRY_FORMATS_TORCH_INTERNAL_H

#include "formats/torch.h"

/* A root storage: what all views of one key share. */
struct torch_storage {
    const char *key, *class_name;
    uint64_t numel; /* as its persistent id has it */
    uint64_t size_bytes;
    uint64_t offset_bytes; /* in the file; of the deflate data where it is deflated */
    uint64_t packed_bytes; /* where deflated */
    bool deflated, placed; /* placed: the legacy stream's list has named it */
    uint32_t file;         /* index in a `stored`, set by torch_open */
};

/* Where a tensor of a file lies. */
struct torch_place {
    uint32_t file;
    uint64_t offset_bytes;
    const uint64_t *stride; /* NULL: row-major */
};

/* torch_open() for an fd, touching no `stored`: t->file and storages[].file are not set. The values
 * are in arena `values`, or t's own where that is NULL. The bytes lie within the file. err does not
 * name path. */
MUST_CHECK enum status torch_parse(struct torch_file *t, struct arena *values, int fd,
                                   const char *path, uint64_t offset, uint64_t size_bytes,
                                   struct error *err);
struct torch_place torch_place_of(const struct torch_file *t, const struct value_tensor *tensor);

#endif
