/* safetensors.h - one safetensors file, read by the rules of the reference
 * implementation (safetensors/src/tensor.rs: read_metadata, Metadata::validate)
 * and laid out as it writes.
 *
 *   1.  0     8 bytes  N, little-endian: bytes of the header, at most 100,000,000
 *   2.  8     N bytes  header: a JSON object in UTF-8, name -> {dtype, shape,
 *                      data_offsets}, optionally __metadata__, an object of texts;
 *                      padded with blanks
 *   3.  8+N   rest     data; data_offsets are [begin, end) in it; no gap, no
 *                      overlap, no rest
 *
 * Stricter than the reference, since two readers could see different tensors:
 * refuses a repeated name, an entry that is an array, a dtype that is an
 * object. */
#ifndef FERRY_FORMATS_SAFETENSORS_H
#define FERRY_FORMATS_SAFETENSORS_H

#include "common/status.h"
#include "common/strbuf.h"
#include "formats/stored.h"

enum { SAFETENSORS_HEADER_CAP = 100000000 };

struct safetensors_info {
    uint32_t file;                    /* index into stored->files */
    size_t first_tensor, num_tensors; /* in stored->tensors */
    const char *format;               /* __metadata__ "format": "pt", "tf", ...; NULL: not given */
    /* One rank's part of a torch.distributed checkpoint: shards under the names
     * of whole tensors. */
    bool dcp_shard;
    /* __metadata__ DCP_SHARDING_INFO: offsets of the shards in whole tensors
     * (dcp_shards.c); NULL: none. */
    const char *dcp_sharding;
};

/* Whether the first bytes fit: a header length within the cap, then JSON. */
bool safetensors_matches(const uint8_t *head, size_t bytes);

/* Reads the header of path and adds its tensors to s. ERR_CORRUPT
 * "m.safetensors: tensor x: ...". */
MUST_CHECK enum status safetensors_open(struct stored *s, const char *path,
                                        struct safetensors_info *info, struct error *err);

/* One tensor of a file to write. */
struct safetensors_out {
    const char *name;
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
    uint64_t offset_bytes; /* set: in the file */
};

/* Lays out a file: sorts tensors as the reference writer (dtype by its rank
 * descending, then name), places them and makes the bytes before the data, with
 * {"format":"pt"} as metadata. The header is a multiple of 8 bytes long, so
 * every tensor is aligned to its element size. ERR_UNSUPPORTED for a dtype
 * without a safetensors name or a header above the cap. */
MUST_CHECK enum status safetensors_layout(struct safetensors_out *tensors, size_t num_tensors,
                                          struct strbuf *head, uint64_t *file_bytes,
                                          struct error *err);

#endif
