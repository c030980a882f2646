#include "formats/bytes.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "common/checked.h"
#include "common/memory.h"

/* ---- a file ---- */

static enum status read_from_file(const struct bytes *b, uint64_t at, void *to, size_t count,
                                  struct error *err)
{
    return file_read(b->from.fd, b->path, to, count, at, err);
}

static enum status read_direct(const struct bytes *b, uint64_t at, void *to, size_t count,
                               struct error *err)
{
    return file_read_direct(b->from.fd, b->path, to, count, at, err);
}

static void expect_file(const struct bytes *b, uint64_t at, uint64_t count)
{
    (void)posix_fadvise(b->from.fd, (off_t)at, (off_t)count, POSIX_FADV_WILLNEED);
}

static void close_file(struct bytes *b)
{
    close(b->from.fd);
}

static const struct bytes_kind file = {read_from_file, expect_file, close_file};
static const struct bytes_kind direct_file = {read_direct, NULL, close_file};

enum status bytes_open(struct bytes *b, const char *path, struct file_stamp *stamp,
                       struct error *err)
{
    int fd;
    struct file_stamp own;
    if (!stamp) stamp = &own;
    TRY(file_open(path, &fd, stamp, err));
    *b = bytes_of_file(fd, path, stamp->size_bytes);
    return OK;
}

struct bytes bytes_of_file(int fd, const char *path, uint64_t size_bytes)
{
    return (struct bytes){.kind = &file, .path = path, .size_bytes = size_bytes, .from.fd = fd};
}

void bytes_set_direct(struct bytes *b)
{
    if (file_set_direct(b->from.fd)) b->kind = &direct_file;
}

/* ---- memory ---- */

static enum status read_memory(const struct bytes *b, uint64_t at, void *to, size_t count,
                               struct error *err)
{
    (void)err;
    if (count) memcpy(to, (const char *)b->from.data + at, count);
    return OK;
}

static const struct bytes_kind memory = {read_memory, NULL, NULL};

struct bytes bytes_of_memory(const void *data, size_t size_bytes)
{
    return (struct bytes){
        .kind = &memory, .path = "memory", .size_bytes = size_bytes, .from.data = data};
}

const void *bytes_in_memory(const struct bytes *b)
{
    return b->kind == &memory ? (const char *)b->from.data + b->start : NULL;
}

/* ---- with the ends kept ---- */

static enum status read_ends(const struct bytes *b, uint64_t at, void *to, size_t count,
                             struct error *err)
{
    const struct bytes_ends *e = b->from.state;
    uint64_t tail = e->whole.size_bytes - e->num_tail;
    if (at + count <= e->num_head)
        memcpy(to, e->head + at, count);
    else if (at >= tail)
        memcpy(to, e->tail + (at - tail), count);
    else
        return bytes_read(&e->whole, at, to, count, err);
    return OK;
}

static const struct bytes_kind with_ends = {read_ends, NULL, NULL};

enum status bytes_keep_ends(struct bytes *b, struct bytes_ends *e, const struct bytes *whole,
                            struct error *err)
{
    uint64_t size = whole->size_bytes;
    e->whole = *whole;
    e->num_head = (size_t)min_u64(size, sizeof e->head);
    e->num_tail = (size_t)min_u64(size - e->num_head, sizeof e->tail);
    *b = (struct bytes){
        .kind = &with_ends, .path = whole->path, .size_bytes = size, .from.state = e};
    TRY(bytes_read(whole, 0, e->head, e->num_head, err));
    return bytes_read(whole, size - e->num_tail, e->tail, e->num_tail, err);
}

/* ---- all of them ---- */

struct bytes bytes_range(const struct bytes *b, uint64_t offset, uint64_t size_bytes)
{
    assert(offset <= b->size_bytes && size_bytes <= b->size_bytes - offset);
    struct bytes part = *b;
    part.start += offset;
    part.size_bytes = size_bytes;
    return part;
}

enum status bytes_read(const struct bytes *b, uint64_t offset, void *to, size_t count,
                       struct error *err)
{
    if (offset > b->size_bytes || count > b->size_bytes - offset)
        return fail(err, ERR_CORRUPT, "%s: %zu bytes at %" PRIu64 " of %" PRIu64, b->path, count,
                    offset, b->size_bytes);
    return b->kind->read(b, b->start + offset, to, count, err);
}

void bytes_expect(const struct bytes *b, uint64_t offset, uint64_t count)
{
    if (b->kind->expect) b->kind->expect(b, b->start + offset, count);
}

void bytes_release(struct bytes *b)
{
    if (b->kind && b->kind->release) b->kind->release(b);
    *b = (struct bytes){0};
}
