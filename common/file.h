/* file.h - files and folders: whole reads and writes, durable renames, messages that name the path.
 *
 * Offsets and sizes are in bytes. Reads and writes retry EINTR and go on after a short count. All
 * failures are ERR_IO unless told. */
#ifndef FERRY_COMMON_FILE_H
#define FERRY_COMMON_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/arena.h"
#include "common/status.h"
#include "common/strbuf.h"

/* What tells a changed file from an unchanged one. */
struct file_stamp {
    uint64_t size_bytes;
    int64_t mtime_ns;
    uint64_t device, inode;
};

/* Lets the process have as many files open as it ever may. */
void file_raise_limit(void);

/* Opens a regular file for reading and stamps it (stamp may be NULL). A folder, a pipe or a device
 * is refused. */
enum status file_open(const char *path, int *fd, struct file_stamp *stamp, struct error *err);
/* Creates a new file for writing (and reading), which must not exist. */
enum status file_create(const char *path, int *fd, struct error *err);
/* The same relative to an open folder, which may have been renamed or removed since; may_exist: or
 * opens what is there. path is for messages. */
enum status file_create_at(int folder, const char *relative, const char *path, bool may_exist,
                           int *fd, struct error *err);
enum status file_stamp(const char *path, struct file_stamp *stamp, struct error *err);
bool file_stamp_equal(const struct file_stamp *a, const struct file_stamp *b);

/* bytes from offset; ERR_CORRUPT "ends at" where the file is shorter. path is for messages. */
enum status file_read(int fd, const char *path, void *to, size_t bytes, uint64_t offset,
                      struct error *err);
/* Lets reads of fd pass by the page cache (O_DIRECT); false where the file system cannot, and then
 * nothing has changed. Such an fd is read by file_read_direct alone, which needs up to
 * FILE_DIRECT_BYTES of memory of its own. */
#define FILE_DIRECT_BYTES ((size_t)1 << 20)
bool file_set_direct(int fd);
enum status file_read_direct(int fd, const char *path, void *to, size_t bytes, uint64_t offset,
                             struct error *err);
enum status file_write(int fd, const char *path, const void *from, size_t bytes, uint64_t offset,
                       struct error *err);
enum status file_sync(int fd, const char *path, struct error *err);

/* The whole of a small file; ERR_CORRUPT where it is larger than max_bytes. */
enum status file_read_all(const char *path, uint64_t max_bytes, struct strbuf *out,
                          struct error *err);
/* Creates path with these bytes; fsync where durable. */
enum status file_write_all(const char *path, const void *data, size_t bytes, bool durable,
                           struct error *err);
/* Replaces path by these bytes: a temporary sibling, then rename, so that a reader sees the old or
 * the new one. */
enum status file_replace_all(const char *path, const void *data, size_t bytes, bool durable,
                             struct error *err);
/* Copies a regular file of any size. */
enum status file_copy(const char *from, const char *to, bool durable, struct error *err);

bool path_exists(const char *path);    /* whatever it is; a dangling link exists */
bool path_is_folder(const char *path); /* links followed */
bool path_is_file(const char *path);   /* a regular file, links followed */
/* a/b, without doubling the slash; b alone where a is "" or ".". In the arena. */
char *path_join(struct arena *a, const char *folder, const char *name);
/* The last component without trailing slashes, and what lies before it ("." for none). In the
 * arena. */
char *path_base(struct arena *a, const char *path);
char *path_parent(struct arena *a, const char *path);
/* Whether a name that came from a file is one plain path component or a relative path that stays
 * below its folder: not empty, not absolute, no "..", no NUL, no backslash. */
bool path_is_safe(const char *relative);
/* The absolute path with links resolved, of something that exists. NULL where it does not. */
char *path_real(struct arena *a, const char *path);

enum status folder_create(const char *path, struct error *err); /* and its parents; may exist */
enum status folder_sync(const char *path, struct error *err);
/* Removes a file or a whole tree; nothing there is no failure. Never follows links. */
enum status path_remove(const char *path, struct error *err);
/* rename() that fails with ERR_EXISTS where `to` exists. */
enum status path_rename_new(const char *from, const char *to, struct error *err);

/* The names in a folder, sorted bytewise, without . and .. */
struct name_list {
    char **names;
    size_t count;
};
enum status folder_list(const char *path, struct arena *a, struct name_list *out,
                        struct error *err);

/* Bytes of the disk that the files of a tree take; 0 where there is none. */
uint64_t folder_allocated_bytes(const char *path);
/* Bytes free for us on the file system of path (which exists). */
enum status folder_free_bytes(const char *path, uint64_t *bytes, struct error *err);

#endif
