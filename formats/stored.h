/* stored.h - the result of every reader: named tensors and the places of their
 * bytes.
 *
 * A *stored* tensor has the name and shape of its file; nothing here knows its
 * purpose. Opening reads headers and indexes only; stored_read() reads tensor
 * bytes later. Shapes, boxes and strides are in elements, slowest dimension
 * first; names with "bytes" are in bytes. */
#ifndef FERRY_FORMATS_STORED_H
#define FERRY_FORMATS_STORED_H

#include <stdbool.h>
#include <stdint.h>

#include "common/arena.h"
#include "common/dtype.h"
#include "common/file.h"
#include "common/map.h"
#include "common/status.h"
#include "formats/bytes.h"

/* Bytes that pieces point into: a whole file, or the contents of packed data in
 * it, such as a deflated entry of a zip file. */
struct stored_file {
    const char *path;
    struct file_stamp stamp;
    enum bytes_coding coding;
    uint64_t packed_offset, packed_bytes; /* in the file at path, unless BYTES_PLAIN */
    uint64_t size_bytes;                  /* of the contents that pieces point into */
};

/* One box of a tensor and the place of its elements: element i of the box is at
 * byte offset_bytes + sum of i[d] * stride[d] * element size of the file.
 * Bounds are checked at open. */
struct stored_piece {
    uint32_t file;     /* index into files */
    bool byte_swapped; /* big-endian elements */
    uint64_t offset_bytes;
    const uint64_t *start;  /* [num_dims] within the tensor; NULL: all 0 */
    const uint64_t *extent; /* [num_dims]; NULL: the tensor's shape */
    const uint64_t *stride; /* [num_dims]; NULL: row-major over extent */
};

struct stored_tensor {
    const char *name; /* UTF-8; may be empty or hold control characters; NUL stands as C0 80 */
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;       /* [num_dims]; numel and bytes do not overflow */
    struct stored_piece *pieces; /* tile the tensor: no hole, no overlap */
    size_t num_pieces;
    /* DCP: path in the nested state dict, keys and list positions joined by
     * '\x1f'; NULL: unknown, the name is one key. */
    const char *nested_path;
};

/* A value that is not a tensor (bytes items of torch_dist and DCP): a torch
 * file inside a file. */
struct stored_object {
    const char *name;
    uint32_t file;
    uint64_t offset_bytes, size_bytes;
    const char *nested_path; /* as a tensor's */
};

/* The contents of an opened checkpoint, in the arena until release. */
struct stored {
    struct arena arena;
    struct stored_file *files;
    size_t num_files, files_capacity;
    struct stored_tensor *tensors;
    size_t num_tensors, tensors_capacity;
    struct stored_object *objects;
    size_t num_objects, objects_capacity;
    struct map names; /* of tensors -> index */
    /* Whether a tensor is added, while a file is opened; NULL: all are. The others
     * are counted, and the last one is there until the next. */
    bool (*wants)(void *context, const char *name);
    void *wants_context;
    size_t num_unwanted;
    struct stored_tensor unwanted;
    char **warnings; /* harmless oddities, one line each, for the caller to print */
    size_t num_warnings, warnings_capacity;
};

void stored_init(struct stored *s);
void stored_release(struct stored *s);

/* Adds a file with its stamp. Returns its index. */
uint32_t stored_add_file(struct stored *s, const char *path, const struct file_stamp *stamp);
/* Adds the contents, size_bytes long, of packed data at [offset, offset +
 * packed_bytes) of files[file] as a file of its own; returns its index. The
 * range must lie in the file. */
uint32_t stored_add_packed(struct stored *s, uint32_t file, enum bytes_coding coding,
                           uint64_t offset, uint64_t packed_bytes, uint64_t size_bytes);
/* Adds a tensor with no pieces; copies name and shape. A NUL of the name
 * becomes C0 80, and C0 80 is read as NUL. ERR_CORRUPT if the name is not UTF-8
 * or exists (err names the first file), or if numel or bytes overflow. *out is
 * valid until the next tensor is added. */
MUST_CHECK enum status stored_add_tensor(struct stored *s, const char *name, size_t name_length,
                                         enum dtype dtype, unsigned num_dims, const uint64_t *shape,
                                         struct stored_tensor **out, struct error *err);
/* Adds an object; copies its name. */
struct stored_object *stored_add_object(struct stored *s, const char *name, uint32_t file,
                                        uint64_t offset_bytes, uint64_t size_bytes);
/* Removes the tensors and files behind the first ones: what a file that cannot
 * be read has added. */
void stored_cut(struct stored *s, size_t num_tensors, size_t num_files);
void stored_warn(struct stored *s, const char *fmt, ...) PRINTF_LIKE(2, 3);
const struct stored_tensor *stored_find(const struct stored *s, const char *name);
uint64_t stored_numel(const struct stored_tensor *t);
uint64_t stored_tensor_bytes(const struct stored_tensor *t);

/* Reads bytes of files[], for many threads. Keeps at most max_open files open,
 * or one for each thread reading at once. ERR_IO "changed while it was read" if
 * the stamp of a file has changed since the open. */
struct stored_reader;
struct stored_reader *stored_reader_create(const struct stored *s, size_t max_open);
/* Makes reads bypass the page cache if the file system can; then a read
 * allocates up to FILE_DIRECT_BYTES. Call it before the first read. */
void stored_reader_set_direct(struct stored_reader *r);
void stored_reader_free(struct stored_reader *r);
MUST_CHECK enum status stored_read(struct stored_reader *r, uint32_t file, uint64_t offset_bytes,
                                   void *to, size_t bytes, struct error *err);
/* Tells the system that most of these bytes are read next. */
void stored_expect(struct stored_reader *r, uint32_t file, uint64_t offset_bytes, uint64_t bytes);
/* ERR_IO if a file has changed since the open; for the end of a long read. */
MUST_CHECK enum status stored_unchanged(const struct stored *s, struct error *err);

#endif
