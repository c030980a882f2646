/* torch_internal.h - torch archives without a `stored`, for torch.c and dcp.c. */
#ifndef FERRY_FORMATS_TORCH_INTERNAL_H
#define FERRY_FORMATS_TORCH_INTERNAL_H

#include "formats/torch.h"

/* A root storage; all views of one key share it. */
struct torch_storage {
    const char *key, *class_name;
    uint64_t numel; /* of its persistent id */
    uint64_t size_bytes;
    /* The data, packed or not: in the archive after torch_parse(), in the file
     * after torch_open(). Packed data becomes a file of its own there, with
     * offset 0. */
    uint64_t offset_bytes;
    uint64_t packed_bytes;
    enum bytes_coding coding;
    bool placed;   /* found in the list of a legacy stream */
    uint32_t file; /* index in a `stored`; set by torch_open() */
};

/* The place of a tensor in a file. */
struct torch_place {
    uint32_t file;
    uint64_t offset_bytes;
    const uint64_t *stride; /* NULL: row-major */
};

/* As torch_open(), for an archive in any bytes and without a `stored`: t->file
 * and storages[].file are not set, and offsets count from the archive's start.
 * Values are in arena `values`, or in t's own if that is NULL. err does not
 * name the path. */
MUST_CHECK enum status torch_parse(struct torch_file *t, struct arena *values,
                                   const struct bytes *archive, struct error *err);
struct torch_place torch_place_of(const struct torch_file *t, const struct value_tensor *tensor);

#endif
