/* zip.h - zip archives as torch writes and reads them: the directory for random
 * access, and a layout known before the first byte of data.
 *
 * Reading. Sizes, CRC and offsets are those of the central directory; the local
 * header has the lengths that lead to the data, and must have the same name.
 * Entries are stored or deflated; a deflated one is inflated once at open,
 * without keeping it, to prove its size. All entries lie under one folder.
 * Refused (ERR_CORRUPT): no end record, several disks, encryption, other
 * methods, entries that overlap or leave the folder, sizes or names that
 * disagree, a repeated name (in any case), bytes before the first header, bytes
 * behind the end record that are not a comment, counts and offsets outside the
 * file.
 *
 * Writing. Stored entries only, in the order given, data at multiples of 64
 * bytes by an "FB" extra field, real CRC-32 and sizes in the local header, no
 * descriptors; zip64 if a size or an offset needs it.
 * Source of the layout: pytorch caffe2/serialize/inline_container.cc.
 *
 *   local header  50 4B 03 04, version 20 or 45, flags 0, method 0, time 0,
 *                 date 0x21, CRC-32, sizes, lengths, name, [zip64 field],
 *                 "FB" field; data; ... next header
 *   directory     50 4B 01 02 rows; [zip64 end record and locator];
 *                 end record 50 4B 05 06 */
#ifndef FERRY_FORMATS_ZIP_H
#define FERRY_FORMATS_ZIP_H

#include <stddef.h>
#include <stdint.h>

#include "common/arena.h"
#include "common/map.h"
#include "common/status.h"
#include "common/strbuf.h"
#include "formats/bytes.h"

struct zip_entry {
    const char *name;                  /* without the folder */
    uint64_t data_offset;              /* of the packed bytes, from the start of the archive */
    uint64_t packed_bytes, size_bytes; /* equal if plain */
    uint32_t crc;
    enum bytes_coding coding;
};

struct zip_directory {
    const char *folder; /* all entries' first path component, without the slash */
    struct zip_entry *entries;
    size_t num_entries;
    struct map names; /* -> entry */
};

/* Reads the directory of an archive into arena a; only its map is on the heap.
 * err does not name the archive's path. */
MUST_CHECK enum status zip_read_directory(struct zip_directory *z, struct arena *a,
                                          const struct bytes *archive, struct error *err);
void zip_directory_release(struct zip_directory *z);
const struct zip_entry *zip_find(const struct zip_directory *z, const char *name);
/* Contents of a small entry, inflated; ERR_CORRUPT above max_bytes. */
MUST_CHECK enum status zip_read_entry(const struct zip_entry *e, const struct bytes *archive,
                                      uint64_t max_bytes, struct strbuf *out, struct error *err);

/* An archive to write. Add all entries, then call zip_layout(): it sets every
 * data_offset and total_bytes. Once the data is written and each entry's crc is
 * set, zip_emit() gives all other bytes. Offsets are relative to the archive's
 * start. */
struct zip_out_entry {
    const char *name; /* with the folder; borrowed until zip_emit */
    uint64_t size_bytes, header_offset, data_offset;
    uint32_t crc;
};
struct zip_out {
    struct zip_out_entry *entries; /* the caller's array */
    size_t num_entries;
    uint64_t directory_offset, total_bytes;
};
void zip_layout(struct zip_out *z);
/* Calls put, in order of offset, for all bytes outside the entries' data. */
MUST_CHECK enum status zip_emit(const struct zip_out *z,
                                enum status (*put)(void *context, uint64_t offset,
                                                   const void *bytes, size_t count,
                                                   struct error *err),
                                void *context, struct error *err);

#endif
