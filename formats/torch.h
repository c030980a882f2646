/* torch.h - files of torch.save: the zip container (1.6 and later) and the
 * legacy stream.
 *
 * The content tells the kind, not the name. The pickle is data (see pickle.h).
 * Byte layouts: zip.h, and for the legacy stream five pickles (magic, 1001,
 * system info, object, storage keys), then for each key i64 count and count *
 * element size bytes (torch/serialization.py:_legacy_load). */
#ifndef FERRY_FORMATS_TORCH_H
#define FERRY_FORMATS_TORCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/arena.h"
#include "common/map.h"
#include "common/status.h"
#include "common/strbuf.h"
#include "formats/stored.h"
#include "formats/value.h"
#include "formats/zip.h"

/* One opened file, or one item of a .distcp file. */
struct torch_file {
    struct arena arena;
    struct value *root;
    struct torch_storage *storages; /* see torch_internal.h */
    size_t num_storages, storages_capacity;
    struct map keys; /* -> storages */
    const char *path;
    const char *saved_as; /* the folder in the zip, by torch named after the file; NULL: none */
    uint32_t file;        /* index in the `stored` of torch_open() */
    bool byte_swapped;
    const char **warnings; /* without the path; torch_open() adds them to the `stored` */
    size_t num_warnings, warnings_capacity;
};

/* Whether the first bytes (32 are enough) begin a torch file of either kind. */
bool torch_matches(const uint8_t *head, size_t bytes);

/* Opens bytes [offset, offset + size_bytes) of path (0, UINT64_MAX: all of it),
 * a complete torch.save archive, and checks every storage and every tensor's
 * view of it. Adds the file (and each deflated storage) to s->files, and no
 * tensor yet. Adds warnings on harmless oddities: a wrong CRC, a missing
 * version. A file without tensors is no failure. After a failure t needs no
 * torch_close(). */
MUST_CHECK enum status torch_open(struct torch_file *t, struct stored *s, const char *path,
                                  uint64_t offset, uint64_t size_bytes, struct error *err);
void torch_close(struct torch_file *t);
/* ERR_CORRUPT if the name under which torch saved the file differs from its own
 * in numbers alone: it is another rank's. Accepts files saved from memory
 * ("archive") or under another name. */
MUST_CHECK enum status torch_check_name(const struct torch_file *t, struct error *err);

/* Adds one tensor value of t to s under name: shape, dtype and one piece, with
 * strides unless row-major. ERR_UNSUPPORTED, naming the rebuild function, if it
 * is not a plain tensor (sparse, quantised, nested, on no device). */
MUST_CHECK enum status torch_add_tensor(struct torch_file *t, struct stored *s, const char *name,
                                        const struct value *tensor, struct error *err);
/* Adds every tensor below v, named prefix + path (value_walk). ERR_UNSUPPORTED
 * if there is none. */
MUST_CHECK enum status torch_add_tensors(struct torch_file *t, struct stored *s,
                                         const struct value *v, const char *prefix,
                                         struct error *err);

/* Reads the numbers in tensors of one element, values of the archive at these
 * bytes of path (0, UINT64_MAX: all of it). ERR_CORRUPT for a tensor with
 * another number of elements, or not of real numbers. */
MUST_CHECK enum status torch_numbers(const char *path, uint64_t offset, uint64_t size_bytes,
                                     const struct value *const *tensors, size_t count, double *out,
                                     struct error *err);

/* A file to write: its pickle is root; storages of root's tensors become
 * entries data/KEY in order of first appearance. torch_layout() sets the offset
 * of each storage; once its bytes are written and its CRC-32 is set,
 * torch_emit() gives all other bytes. */
struct torch_out_storage {
    const char *key;
    uint64_t size_bytes, data_offset; /* from the start of the archive */
    uint32_t crc;
};
struct torch_out {
    struct arena arena;
    struct torch_out_storage *storages;
    size_t num_storages;
    uint64_t total_bytes;
    struct zip_out zip;
    struct strbuf pickle;
};
/* folder: "archive", or as in torch.save the file's name without ending:
 * "common". Storages of one key are one storage. After a failure t needs no
 * release. */
MUST_CHECK enum status torch_layout(struct torch_out *t, const char *folder,
                                    const struct value *root, struct error *err);
/* Calls put, in order of offset, for all bytes outside the storages. */
MUST_CHECK enum status torch_emit(struct torch_out *t,
                                  enum status (*put)(void *context, uint64_t offset,
                                                     const void *bytes, size_t count,
                                                     struct error *err),
                                  void *context, struct error *err);
void torch_out_release(struct torch_out *t);

/* Appends a whole archive, for small files (common.pt, train_state.pt, bytes
 * items). data[i] has the bytes of storages[i]; NULL if root has no tensor. */
MUST_CHECK enum status torch_to_bytes(struct strbuf *out, const char *folder,
                                      const struct value *root, const void *const *data,
                                      struct error *err);

/* The archive of one contiguous tensor, as in a DCP item: the same bytes as
 * torch_layout("archive") of that tensor, but faster, since a checkpoint may
 * have millions. torch must have the dtype. */
struct torch_item {
    uint64_t data_offset, total_bytes;
};
void torch_item_layout(struct torch_item *item, enum dtype dtype, unsigned num_dims,
                       const uint64_t *shape);
/* Appends the bytes before the data (from 0) and those behind it (from
 * data_offset + data bytes). */
void torch_item_emit(enum dtype dtype, unsigned num_dims, const uint64_t *shape, uint32_t crc,
                     struct strbuf *before, struct strbuf *after);
/* The CRC-32 of a zip entry. */
uint32_t torch_crc(const void *bytes, size_t count);

#endif
