/* file.h - files and folders: whole reads and writes, durable renames, messages
 * that name the path.
 *
 * Offsets and sizes are in bytes. Reads and writes are retried after EINTR and
 * continued after a short count. Failures are ERR_IO by default. */
#ifndef FERRY_COMMON_FILE_H
#define FERRY_COMMON_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/arena.h"
#include "common/status.h"
#include "common/strbuf.h"

/* Changes when the file changes. */
struct file_stamp {
    uint64_t size_bytes;
    int64_t mtime_ns;
    uint64_t device, inode;
};

/* Raises the limit of open files to the hard limit. */
void file_raise_limit(void);

/* Opens a regular file for reading and stamps it (stamp may be NULL). Refuses a
 * folder, a pipe or a device. */
enum status file_open(const char *path, int *fd, struct file_stamp *stamp, struct error *err);
/* Creates a new file for writing (and reading); it must not exist. */
enum status file_create(const char *path, int *fd, struct error *err);
/* As file_create(), relative to an open folder, which may have been renamed or
 * removed since. may_exist: opens an existing file. path is for messages. */
enum status file_create_at(int folder, const char *relative, const char *path, bool may_exist,
                           int *fd, struct error *err);
enum status file_stamp(const char *path, struct file_stamp *stamp, struct error *err);
bool file_stamp_equal(const struct file_stamp *a, const struct file_stamp *b);

/* Reads `bytes` at offset; ERR_CORRUPT "ends at" if the file is shorter. path
 * is for messages. */
enum status file_read(int fd, const char *path, void *to, size_t bytes, uint64_t offset,
                      struct error *err);
/* Makes reads of fd bypass the page cache (O_DIRECT); false, with nothing
 * changed, if the file system cannot. Then read fd only by file_read_direct(),
 * which allocates up to FILE_DIRECT_BYTES. */
#define FILE_DIRECT_BYTES ((size_t)1 << 20)
bool file_set_direct(int fd);
enum status file_read_direct(int fd, const char *path, void *to, size_t bytes, uint64_t offset,
                             struct error *err);
enum status file_write(int fd, const char *path, const void *from, size_t bytes, uint64_t offset,
                       struct error *err);
enum status file_sync(int fd, const char *path, struct error *err);

/* Reads a whole small file; ERR_CORRUPT if it is larger than max_bytes. */
enum status file_read_all(const char *path, uint64_t max_bytes, struct strbuf *out,
                          struct error *err);
/* Creates path with these bytes; durable: fsync. */
enum status file_write_all(const char *path, const void *data, size_t bytes, bool durable,
                           struct error *err);
/* Replaces path: writes a temporary file beside it and renames that, so a
 * reader sees the old or the new contents. */
enum status file_replace_all(const char *path, const void *data, size_t bytes, bool durable,
                             struct error *err);
/* Copies a regular file of any size. */
enum status file_copy(const char *from, const char *to, bool durable, struct error *err);

bool path_exists(const char *path);    /* of any type; a dangling link exists */
bool path_is_folder(const char *path); /* links followed */
bool path_is_file(const char *path);   /* a regular file, links followed */
/* The text of a symbolic link, dangling or not; NULL: path is none. */
char *path_link_target(struct arena *a, const char *path);
/* "folder/name" with one slash; name if folder is "" or ".". In the arena. */
char *path_join(struct arena *a, const char *folder, const char *name);
/* The last component, without trailing slashes; the path of its folder ("." if
 * path has none). In the arena. */
char *path_base(struct arena *a, const char *path);
char *path_parent(struct arena *a, const char *path);
/* Whether a name from a file is a relative path that stays below its folder:
 * not empty, not absolute, no "..", no NUL, no backslash. */
bool path_is_safe(const char *relative);
/* The absolute path with links resolved; NULL if path does not exist. */
char *path_real(struct arena *a, const char *path);

enum status folder_create(const char *path, struct error *err); /* and its parents; may exist */
enum status folder_sync(const char *path, struct error *err);
/* Removes a file or a tree; OK if path does not exist. Follows no links. */
enum status path_remove(const char *path, struct error *err);
/* Swaps two existing paths of one file system atomically. false, with nothing
 * changed, if the file system cannot. */
bool path_exchange(const char *a, const char *b);
/* rename() that fails with ERR_EXISTS if `to` exists. */
enum status path_rename_new(const char *from, const char *to, struct error *err);

/* The names in a folder, sorted bytewise, without . and .. */
struct name_list {
    char **names;
    size_t count;
};
enum status folder_list(const char *path, struct arena *a, struct name_list *out,
                        struct error *err);

/* Bytes on disk of a file or of a tree's files; 0 if there is none. */
uint64_t path_allocated_bytes(const char *path);
/* Bytes this user can still write to the file system of path, which exists. */
enum status folder_free_bytes(const char *path, uint64_t *bytes, struct error *err);

#endif
