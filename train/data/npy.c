#include "train/data/npy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/file.h"

static const char magic[] = "\x93NUMPY";

enum { MAGIC_BYTES = sizeof magic - 1, ALIGNMENT = 64, MAX_HEADER = 1 << 16 };

static const struct {
    enum dtype dtype;
    const char *descr;
} types[] = {{DT_I16, "<i2"}, {DT_I32, "<i4"}, {DT_I64, "<i8"}, {DT_U32, "<u4"}};

static const char *descr_of(enum dtype dtype)
{
    size_t i = 0;
    while (i + 1 < COUNT(types) && types[i].dtype != dtype)
        i++;
    return types[i].descr;
}

/* ERR_CORRUPT if the shape overflows. */
static enum status size_of(const char *path, const struct npy *n, uint64_t *bytes,
                           struct error *err)
{
    uint64_t numel;
    if (shape_numel(n->shape, n->num_dims, &numel) && mul_u64(numel, dtype_bytes(n->dtype), bytes))
        return OK;
    return fail(err, ERR_CORRUPT, "%s: the array is too large", path);
}

static void print_shape(char text[64], const struct npy *n)
{
    if (n->num_dims == 1)
        (void)snprintf(text, 64, "(%" PRIu64 ",)", n->shape[0]);
    else
        (void)snprintf(text, 64, "(%" PRIu64 ", %" PRIu64 ")", n->shape[0], n->shape[1]);
}

/* ---- writing ---- */

static void make_header(struct strbuf *out, const struct npy *n)
{
    char shape[64];
    struct strbuf dict = {0};
    print_shape(shape, n);
    strbuf_printf(&dict, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                  descr_of(n->dtype), shape);
    const size_t used = MAGIC_BYTES + 4 + dict.length + 1;
    strbuf_add_repeated(&dict, ' ', (ALIGNMENT - used % ALIGNMENT) % ALIGNMENT);
    strbuf_add_char(&dict, '\n');
    strbuf_add(out, magic, MAGIC_BYTES);
    strbuf_add(out, "\1\0", 2);
    strbuf_add_char(out, (char)(dict.length & 0xFF));
    strbuf_add_char(out, (char)(dict.length >> 8));
    strbuf_add(out, dict.data, dict.length);
    strbuf_release(&dict);
}

static enum status write_to(const char *path, const struct npy *n, const void *data,
                            struct error *err)
{
    struct strbuf head = {0};
    uint64_t bytes;
    int fd;
    TRY(size_of(path, n, &bytes, err));
    TRY(file_create(path, &fd, err));
    make_header(&head, n);
    enum status st = file_write(fd, path, head.data, head.length, 0, err);
    if (!st) st = file_write(fd, path, data, bytes, head.length, err);
    strbuf_release(&head);
    if (close(fd) && !st) st = fail_errno(err, ERR_IO, "%s", path);
    return st;
}

enum status npy_write(const char *path, const struct npy *shape, const void *data,
                      struct error *err)
{
    struct strbuf temp = {0};
    strbuf_printf(&temp, "%s.%ld.tmp", path, (long)getpid());
    (void)unlink(temp.data);
    enum status st = write_to(temp.data, shape, data, err);
    if (!st && rename(temp.data, path)) st = fail_errno(err, ERR_IO, "%s", path);
    if (st) (void)unlink(temp.data);
    strbuf_release(&temp);
    return st;
}

/* ---- reading ---- */

/* Value of a key in the header, up to its comma; "" if missing. */
static const char *value_of(const char *header, const char *key)
{
    const char *at = strstr(header, key);
    return at ? at + strlen(key) + strspn(at + strlen(key), " ") : "";
}

static enum status check_header(const char *path, const char *header, const struct npy *n,
                                struct error *err)
{
    char shape[64], descr[8];
    print_shape(shape, n);
    (void)snprintf(descr, sizeof descr, "'%s'", descr_of(n->dtype));
    if (!strncmp(value_of(header, "'descr':"), descr, strlen(descr)) &&
        !strncmp(value_of(header, "'fortran_order':"), "False", 5) &&
        !strncmp(value_of(header, "'shape':"), shape, strlen(shape)))
        return OK;
    return fail(err, ERR_CORRUPT, "%s: header %.200s, expected dtype %s and shape %s", path, header,
                descr, shape);
}

/* Reads the header; *data_at: where the elements begin. */
static enum status read_header(int fd, const char *path, const struct npy *n, uint64_t *data_at,
                               struct error *err)
{
    unsigned char head[12];
    TRY(file_read(fd, path, head, sizeof head, 0, err));
    const bool wide = head[MAGIC_BYTES] == 2;
    if (memcmp(head, magic, MAGIC_BYTES) || (head[MAGIC_BYTES] != 1 && !wide))
        return fail(err, ERR_CORRUPT, "%s: not a .npy file of version 1 or 2", path);
    size_t bytes = head[8] | (size_t)head[9] << 8;
    if (wide) bytes |= (size_t)head[10] << 16 | (size_t)head[11] << 24;
    if (bytes > MAX_HEADER)
        return fail(err, ERR_CORRUPT, "%s: header of %zu bytes, expected at most %d", path, bytes,
                    MAX_HEADER);
    char *header = calloc(bytes + 1, 1);
    if (!header) return fail(err, ERR_MEMORY, "%s: no memory for its header", path);
    *data_at = (wide ? 12 : 10) + bytes;
    enum status st = file_read(fd, path, header, bytes, wide ? 12 : 10, err);
    if (!st) st = check_header(path, header, n, err);
    free(header);
    return st;
}

static enum status read_data(int fd, const char *path, const struct npy *n, uint64_t file_bytes,
                             void **data, struct error *err)
{
    uint64_t at = 0, bytes;
    TRY(read_header(fd, path, n, &at, err));
    TRY(size_of(path, n, &bytes, err));
    if (file_bytes - at != bytes)
        return fail(err, ERR_CORRUPT, "%s: %" PRIu64 " bytes of data, expected %" PRIu64, path,
                    file_bytes - at, bytes);
    *data = malloc(bytes + 1);
    if (!*data) return fail(err, ERR_MEMORY, "%s: no memory for its array", path);
    enum status st = file_read(fd, path, *data, bytes, at, err);
    if (st) {
        free(*data);
        *data = NULL;
    }
    return st;
}

enum status npy_read(const char *path, const struct npy *shape, void **data, struct error *err)
{
    struct file_stamp stamp;
    int fd;
    *data = NULL;
    TRY(file_open(path, &fd, &stamp, err));
    enum status st = read_data(fd, path, shape, stamp.size_bytes, data, err);
    close(fd);
    return st;
}
