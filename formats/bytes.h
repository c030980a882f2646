/* bytes.h - a run of bytes that can be read at any offset, from any source.
 *
 * A struct bytes is a small value: a window onto a file, onto memory, or onto
 * the contents of packed data. Copies and ranges share the path, the memory,
 * the open file or the decoder behind it; these must outlive them. bytes_open()
 * opens a file and bytes_decode() makes a decoder; bytes_release() of one copy
 * closes or frees it. Other bytes need no release.
 *
 * Several threads may read the same bytes at once; reads of one decoder take
 * turns. Offsets and sizes are in bytes. Errors name the path: ERR_IO if the
 * file cannot be read; ERR_CORRUPT if it became shorter, for broken packed
 * data, and for a read past the end of the run. */
#ifndef FERRY_FORMATS_BYTES_H
#define FERRY_FORMATS_BYTES_H

#include <stddef.h>
#include <stdint.h>

#include "common/file.h"
#include "common/status.h"

struct bytes;

/* A source of bytes. */
struct bytes_kind {
    /* Reads `count` bytes at `at`, which counts from the start of the source,
     * not of the window; they lie within the window. */
    enum status (*read)(const struct bytes *b, uint64_t at, void *to, size_t count,
                        struct error *err);
    void (*expect)(const struct bytes *b, uint64_t at, uint64_t count); /* NULL: does nothing */
    void (*release)(struct bytes *b);                                   /* NULL: nothing is held */
};

struct bytes {
    const struct bytes_kind *kind; /* NULL: none, as in {0} */
    const char *path;              /* for messages */
    uint64_t start, size_bytes;    /* the window */
    union {
        int fd;
        const void *data;
        void *state;
    } from;
};

/* Packing of bytes in their file. */
enum bytes_coding { BYTES_PLAIN, BYTES_DEFLATED /* raw deflate data (RFC 1951) */ };

/* Opens a regular file and stamps it (stamp may be NULL). */
MUST_CHECK enum status bytes_open(struct bytes *b, const char *path, struct file_stamp *stamp,
                                  struct error *err);
/* An open file. The caller closes fd, or lets bytes_release() close it. */
struct bytes bytes_of_file(int fd, const char *path, uint64_t size_bytes);
/* Bypasses the page cache if the file system can (file_read_direct). */
void bytes_set_direct(struct bytes *file);
struct bytes bytes_of_memory(const void *data, size_t size_bytes);
/* Bytes [offset, offset + size_bytes) of b; must lie inside b. */
struct bytes bytes_range(const struct bytes *b, uint64_t offset, uint64_t size_bytes);

/* The contents (size_bytes of them) of `packed` by a coding other than
 * BYTES_PLAIN. `packed` is borrowed; between reads the caller may assign it
 * again after reopening its file. A decoder only goes forward: a read before
 * the end of the last read starts again at byte 0. */
void bytes_decode(struct bytes *b, enum bytes_coding coding, const struct bytes *packed,
                  uint64_t size_bytes);

/* The same bytes, with their first and last kilobyte read at once into *ends.
 * Those hold all headers of a small archive, such as an item of a .distcp, so
 * it costs two reads. */
struct bytes_ends {
    struct bytes whole;
    size_t num_head, num_tail;
    unsigned char head[1024], tail[1024];
};
MUST_CHECK enum status bytes_keep_ends(struct bytes *b, struct bytes_ends *ends,
                                       const struct bytes *whole, struct error *err);

MUST_CHECK enum status bytes_read(const struct bytes *b, uint64_t offset, void *to, size_t count,
                                  struct error *err);
/* Tells the system that these bytes are read next. */
void bytes_expect(const struct bytes *b, uint64_t offset, uint64_t count);
/* Address of bytes in memory; else NULL. */
const void *bytes_in_memory(const struct bytes *b);
/* Sets *b to {0}, which may be released again. */
void bytes_release(struct bytes *b);

#endif
