#include "common/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/checked.h"

static void stamp_of(const struct stat *s, struct file_stamp *stamp)
{
    *stamp = (struct file_stamp){
        .size_bytes = (uint64_t)s->st_size,
        .mtime_ns = (int64_t)s->st_mtim.tv_sec * 1000000000 + s->st_mtim.tv_nsec,
        .device = s->st_dev,
        .inode = s->st_ino,
    };
}

enum status file_open(const char *path, int *fd, struct file_stamp *stamp, struct error *err)
{
    struct stat s;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not block */
    if (*fd < 0) return fail_errno(err, ERR_IO, "%s", path);
    enum status st = OK;
    if (fstat(*fd, &s))
        st = fail_errno(err, ERR_IO, "%s", path);
    else if (!S_ISREG(s.st_mode))
        st = fail(err, ERR_IO, "%s: %s, not a file", path,
                  S_ISDIR(s.st_mode) ? "a folder" : "a device or pipe");
    if (st) {
        close(*fd);
        *fd = -1;
    } else if (stamp) {
        stamp_of(&s, stamp);
    }
    return st;
}

void file_raise_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

enum status file_create(const char *path, int *fd, struct error *err)
{
    return file_create_at(AT_FDCWD, path, path, false, fd, err);
}

enum status file_create_at(int folder, const char *relative, const char *path, bool may_exist,
                           int *fd, struct error *err)
{
    int flags = O_RDWR | O_CREAT | O_CLOEXEC | (may_exist ? O_NOFOLLOW : O_EXCL);
    *fd = openat(folder, relative, flags, 0666);
    return *fd < 0 ? fail_errno(err, ERR_IO, "%s", path) : OK;
}

enum status file_stamp(const char *path, struct file_stamp *stamp, struct error *err)
{
    struct stat s;
    if (stat(path, &s)) return fail_errno(err, ERR_IO, "%s", path);
    stamp_of(&s, stamp);
    return OK;
}

bool file_stamp_equal(const struct file_stamp *a, const struct file_stamp *b)
{
    return a->size_bytes == b->size_bytes && a->mtime_ns == b->mtime_ns && a->device == b->device &&
           a->inode == b->inode;
}

enum status file_read(int fd, const char *path, void *to, size_t bytes, uint64_t offset,
                      struct error *err)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return fail_errno(err, ERR_IO, "%s: reading %zu bytes at %llu", path, bytes,
                              (unsigned long long)offset);
        if (n == 0)
            return fail(err, ERR_CORRUPT, "%s: ends at %llu, %zu bytes at %llu were expected", path,
                        (unsigned long long)(offset + done), bytes, (unsigned long long)offset);
        done += (size_t)n;
    }
    return OK;
}

bool file_set_direct(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
}

/* Reads whole blocks; only the last block of a file is short. */
enum status file_read_direct(int fd, const char *path, void *to, size_t bytes, uint64_t offset,
                             struct error *err)
{
    enum { BLOCK = 4096 }; /* no device has larger logical blocks */
    enum status st = OK;
    char *blocks = NULL;
    if (posix_memalign((void **)&blocks, BLOCK, FILE_DIRECT_BYTES))
        return fail(err, ERR_MEMORY, "%s: no memory to read past the page cache", path);
    for (size_t done = 0; done < bytes && !st;) {
        uint64_t begin = offset + done - (offset + done) % BLOCK;
        size_t skip = (size_t)(offset + done - begin);
        size_t wanted = (size_t)min_u64(bytes - done, FILE_DIRECT_BYTES - skip);
        ssize_t n = pread(fd, blocks, (skip + wanted + BLOCK - 1) / BLOCK * BLOCK, (off_t)begin);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            st = fail_errno(err, ERR_IO, "%s: reading %zu bytes at %llu", path, bytes,
                            (unsigned long long)offset);
        } else if ((size_t)n <= skip) {
            st = fail(err, ERR_CORRUPT, "%s: ends at %llu, %zu bytes at %llu were expected", path,
                      (unsigned long long)begin + (size_t)n, bytes, (unsigned long long)offset);
        } else {
            size_t got = (size_t)min_u64((size_t)n - skip, wanted);
            memcpy((char *)to + done, blocks + skip, got);
            done += got;
        }
    }
    free(blocks);
    return st;
}

enum status file_write(int fd, const char *path, const void *from, size_t bytes, uint64_t offset,
                       struct error *err)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const char *)from + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            if (n == 0) errno = ENOSPC;
            return fail_errno(err, ERR_IO, "%s: writing %zu bytes at %llu", path, bytes,
                              (unsigned long long)offset);
        }
        done += (size_t)n;
    }
    return OK;
}

enum status file_sync(int fd, const char *path, struct error *err)
{
    int r;
    do
        r = fsync(fd);
    while (r && errno == EINTR);
    return r ? fail_errno(err, ERR_IO, "%s: fsync", path) : OK;
}

enum status file_read_all(const char *path, uint64_t max_bytes, struct strbuf *out,
                          struct error *err)
{
    int fd;
    struct file_stamp stamp;
    TRY(file_open(path, &fd, &stamp, err));
    enum status st = OK;
    strbuf_clear(out);
    if (stamp.size_bytes > max_bytes) {
        st = fail(err, ERR_CORRUPT, "%s: %llu bytes, at most %llu were expected", path,
                  (unsigned long long)stamp.size_bytes, (unsigned long long)max_bytes);
    } else {
        strbuf_add_repeated(out, '\0', (size_t)stamp.size_bytes);
        st = file_read(fd, path, out->data, out->length, 0, err);
    }
    close(fd);
    return st;
}

/* Closes fd, after an fsync if durable; removes the file after any failure. */
static enum status end_write(int fd, const char *path, bool durable, enum status st,
                             struct error *err)
{
    if (!st && durable) st = file_sync(fd, path, err);
    if (close(fd) && !st) st = fail_errno(err, ERR_IO, "%s: close", path);
    if (st) unlink(path);
    return st;
}

enum status file_write_all(const char *path, const void *data, size_t bytes, bool durable,
                           struct error *err)
{
    int fd;
    TRY(file_create(path, &fd, err));
    return end_write(fd, path, durable, file_write(fd, path, data, bytes, 0, err), err);
}

enum status file_replace_all(const char *path, const void *data, size_t bytes, bool durable,
                             struct error *err)
{
    struct strbuf name = {0};
    strbuf_printf(&name, "%s.%ld.tmp", path, (long)getpid());
    unlink(name.data);
    enum status st = file_write_all(name.data, data, bytes, durable, err);
    if (!st && rename(name.data, path)) {
        st = fail_errno(err, ERR_IO, "%s", path);
        unlink(name.data);
    }
    strbuf_release(&name);
    return st;
}

enum status file_copy(const char *from, const char *to, bool durable, struct error *err)
{
    int in, out;
    struct file_stamp stamp;
    char chunk[1 << 16];
    TRY(file_open(from, &in, &stamp, err));
    enum status st = file_create(to, &out, err);
    if (!st) {
        for (uint64_t at = 0, n; at < stamp.size_bytes && !st; at += n) {
            n = min_u64(stamp.size_bytes - at, sizeof chunk);
            st = file_read(in, from, chunk, n, at, err);
            if (!st) st = file_write(out, to, chunk, n, at, err);
        }
        st = end_write(out, to, durable, st, err);
    }
    close(in);
    return st;
}

bool path_exists(const char *path)
{
    struct stat s;
    return lstat(path, &s) == 0;
}

bool path_is_folder(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

bool path_is_file(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode);
}

char *path_link_target(struct arena *a, const char *path)
{
    char text[PATH_MAX];
    const ssize_t n = readlink(path, text, sizeof text);
    return n < 0 ? NULL : arena_printf(a, "%.*s", (int)n, text);
}

char *path_join(struct arena *a, const char *folder, const char *name)
{
    size_t n = strlen(folder);
    if (n == 0 || strcmp(folder, ".") == 0) return arena_printf(a, "%s", name);
    return arena_printf(a, "%s%s%s", folder, folder[n - 1] == '/' ? "" : "/", name);
}

/* Length of path without trailing slashes; at least 1 for "/". */
static size_t trimmed_length(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    return n;
}

char *path_base(struct arena *a, const char *path)
{
    size_t n = trimmed_length(path), begin = n;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    return arena_text(a, path + begin, n - begin);
}

char *path_parent(struct arena *a, const char *path)
{
    size_t n = trimmed_length(path);
    while (n > 0 && path[n - 1] != '/')
        n--;
    while (n > 1 && path[n - 1] == '/')
        n--;
    return n ? arena_text(a, path, n) : arena_text(a, ".", 1);
}

bool path_is_safe(const char *relative)
{
    if (!*relative || *relative == '/' || strchr(relative, '\\')) return false;
    for (const char *p = relative; p; p = strchr(p, '/')) {
        if (*p == '/') p++;
        size_t n = strcspn(p, "/");
        if (n == 0 || (n <= 2 && strspn(p, ".") >= n)) return false;
    }
    return true;
}

char *path_real(struct arena *a, const char *path)
{
    char *real = realpath(path, NULL);
    if (!real) return NULL;
    char *copy = arena_copy_text(a, real);
    free(real);
    return copy;
}

enum status folder_create(const char *path, struct error *err)
{
    struct strbuf part = {0};
    enum status st = OK;
    for (const char *p = path; *p && !st;) {
        p += strspn(p, "/");
        p += strcspn(p, "/");
        strbuf_clear(&part);
        strbuf_add(&part, path, (size_t)(p - path));
        if (mkdir(part.data, 0777) && (errno != EEXIST || !path_is_folder(part.data)))
            st = fail_errno(err, ERR_IO, "%s", part.data);
        p += strspn(p, "/");
    }
    strbuf_release(&part);
    return st;
}

enum status folder_sync(const char *path, struct error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return fail_errno(err, ERR_IO, "%s", path);
    enum status st = file_sync(fd, path, err);
    close(fd);
    return st;
}

static enum status remove_at(int folder, const char *name, const char *shown, struct error *err)
{
    struct stat s;
    if (unlinkat(folder, name, 0) == 0 || errno == ENOENT) return OK;
    if (errno == EROFS) { /* also the error for a missing path */
        if (fstatat(folder, name, &s, AT_SYMLINK_NOFOLLOW) && errno == ENOENT) return OK;
        errno = EROFS;
    }
    if (errno != EISDIR && errno != EPERM) return fail_errno(err, ERR_IO, "%s: removing", shown);

    int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return fail_errno(err, ERR_IO, "%s: removing", shown);
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return fail_errno(err, ERR_IO, "%s: removing", shown);
    }
    enum status st = OK;
    for (struct dirent *e; !st && (e = readdir(dir));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            st = remove_at(fd, e->d_name, shown, err);
    closedir(dir);
    if (!st && unlinkat(folder, name, AT_REMOVEDIR) && errno != ENOENT)
        st = fail_errno(err, ERR_IO, "%s: removing", shown);
    return st;
}

enum status path_remove(const char *path, struct error *err)
{
    return remove_at(AT_FDCWD, path, path, err);
}

bool path_exchange(const char *a, const char *b)
{
    return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0;
}

enum status path_rename_new(const char *from, const char *to, struct error *err)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return OK;
    if (errno == EEXIST || errno == ENOTEMPTY)
        return fail(err, ERR_EXISTS, "%s: exists already", to);
    if (errno != EINVAL && errno != ENOSYS) return fail_errno(err, ERR_IO, "%s", to);

    /* The file system lacks NOREPLACE. rename() replaces only an empty folder,
     * and mkdir claims the name for this process. */
    if (!path_is_folder(from)) {
        if (link(from, to) == 0) return unlink(from) ? fail_errno(err, ERR_IO, "%s", from) : OK;
    } else if (mkdir(to, 0777) == 0) {
        if (rename(from, to) == 0) return OK;
        rmdir(to);
    }
    if (errno == EEXIST) return fail(err, ERR_EXISTS, "%s: exists already", to);
    return fail_errno(err, ERR_IO, "%s", to);
}

static int by_file_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum status folder_list(const char *path, struct arena *a, struct name_list *out, struct error *err)
{
    size_t capacity = 0;
    *out = (struct name_list){0};
    DIR *dir = opendir(path);
    if (!dir) return fail_errno(err, ERR_IO, "%s", path);
    errno = 0;
    for (struct dirent *e; (e = readdir(dir)); errno = 0)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            *ARENA_PUSH(a, out->names, out->count, capacity) = arena_copy_text(a, e->d_name);
    enum status st = errno ? fail_errno(err, ERR_IO, "%s", path) : OK;
    closedir(dir);
    TRY(st);
    if (out->count) qsort(out->names, out->count, sizeof *out->names, by_file_name);
    return OK;
}

static uint64_t allocated_in_tree(struct arena *a, const char *path)
{
    struct name_list list;
    struct stat s;
    if (lstat(path, &s)) return 0;
    uint64_t bytes = S_ISREG(s.st_mode) ? (uint64_t)s.st_blocks * 512 : 0;
    if (!S_ISDIR(s.st_mode) || folder_list(path, a, &list, NULL)) return bytes;
    for (size_t i = 0; i < list.count; i++)
        bytes += allocated_in_tree(a, path_join(a, path, list.names[i]));
    return bytes;
}

uint64_t path_allocated_bytes(const char *path)
{
    struct arena a;
    arena_init(&a);
    uint64_t bytes = allocated_in_tree(&a, path);
    arena_release(&a);
    return bytes;
}

enum status folder_free_bytes(const char *path, uint64_t *bytes, struct error *err)
{
    struct statvfs s;
    if (statvfs(path, &s)) return fail_errno(err, ERR_IO, "%s", path);
    *bytes = (uint64_t)s.f_bavail * s.f_frsize;
    return OK;
}
