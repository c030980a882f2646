/* bytes.h - a run of bytes that can be read at any offset, wherever they come from.
 *
 * A struct bytes is a small value, a window onto a file, onto memory, or onto what a decoder makes
 * of other bytes; it is copied freely. What is behind it (path, memory, decoder, open file) must
 * outlive every copy. Of all copies one is released, and only where bytes_open() or bytes_decode()
 * made the first: that closes the file, or frees the decoder.
 *
 * Several threads may read the same bytes at once; reads of one decoder take turns. Offsets and
 * sizes are in bytes. Failures name the path: ERR_IO where the file cannot be read, ERR_CORRUPT
 * where it is shorter than it was, where packed data is broken, or past the end of the run. */
#ifndef FERRY_FORMATS_BYTES_H
#define FERRY_FORMATS_BYTES_H

#include <stddef.h>
#include <stdint.h>

#include "common/file.h"
#include "common/status.h"

struct bytes;

/* One row for each thing that bytes can come from. */
struct bytes_kind {
    /* `count` bytes at `at`, which counts from the start of all that is behind b, not of the
     * window; they lie within the window. */
    enum status (*read)(const struct bytes *b, uint64_t at, void *to, size_t count,
                        struct error *err);
    void (*expect)(const struct bytes *b, uint64_t at, uint64_t count); /* NULL: no use */
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

/* How the bytes of a run lie in what holds them. */
enum bytes_coding { BYTES_PLAIN, BYTES_DEFLATED /* raw deflate data (RFC 1951) */ };

/* Opens a regular file and stamps it (stamp may be NULL). */
MUST_CHECK enum status bytes_open(struct bytes *b, const char *path, struct file_stamp *stamp,
                                  struct error *err);
/* A file that is open already. Need not be released; the fd stays the caller's then. */
struct bytes bytes_of_file(int fd, const char *path, uint64_t size_bytes);
/* From now on reads pass by the page cache where the file system can (file_read_direct). */
void bytes_set_direct(struct bytes *file);
struct bytes bytes_of_memory(const void *data, size_t size_bytes);
/* Bytes [offset, offset + size_bytes) of b, which has them. */
struct bytes bytes_range(const struct bytes *b, uint64_t offset, uint64_t size_bytes);

/* The contents, size_bytes of them, of `packed`, which is used where it is and may be opened anew
 * between reads; not of BYTES_PLAIN. Decoding starts at the first byte and goes on where the last
 * read ended, so a read that lies before that costs a new start. */
void bytes_decode(struct bytes *b, enum bytes_coding coding, const struct bytes *packed,
                  uint64_t size_bytes);

/* Bytes of which the first and last kilobyte are kept: in a small archive, such as an item of a
 * .distcp, all that describes lies there, and costs two reads. */
struct bytes_ends {
    struct bytes whole;
    size_t num_head, num_tail;
    unsigned char head[1024], tail[1024];
};
MUST_CHECK enum status bytes_keep_ends(struct bytes *b, struct bytes_ends *ends,
                                       const struct bytes *whole, struct error *err);

MUST_CHECK enum status bytes_read(const struct bytes *b, uint64_t offset, void *to, size_t count,
                                  struct error *err);
/* Says that much of these bytes is read next, so that they are fetched together beforehand. */
void bytes_expect(const struct bytes *b, uint64_t offset, uint64_t count);
/* Where they lie in memory; NULL: they are not there. */
const void *bytes_in_memory(const struct bytes *b);
/* Makes it {0}; a {0} may be released. */
void bytes_release(struct bytes *b);

#endif
