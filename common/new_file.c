#include "common/new_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file.h"

/* The path through which a file without a name gets one. */
static void path_of_fd(char path[32], int fd)
{
    (void)snprintf(path, 32, "/proc/self/fd/%d", fd);
}

static int link_fd(int fd, const char *path)
{
    char own[32];
    path_of_fd(own, fd);
    return linkat(AT_FDCWD, own, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
}

/* Whether files without a name can get one in this folder; tries with another
 * file. Not without /proc, nor in some containers. */
static bool can_be_linked(const char *folder, const char *temp)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    bool linked = fd >= 0 && link_fd(fd, temp) == 0;
    if (linked) (void)unlink(temp);
    if (fd >= 0) close(fd);
    return linked;
}

static bool open_nameless(struct new_file *f, const char *folder, const char *temp)
{
    if (!can_be_linked(folder, temp)) return false;
    f->fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    return f->fd >= 0;
}

/* ---- with a name ---- */

static const char suffix[] = ".ferry-partial";

static const char *temp_name(const char *path, struct arena *a)
{
    char host[256] = "";
    (void)gethostname(host, sizeof host - 1);
    return arena_printf(a, "%s.%s.%ld%s", path, host, (long)getpid(), suffix);
}

/* "NAME.HOST.PID.ferry-partial" */
static bool is_partial(const char *file, const char *name)
{
    const size_t n = strlen(name), length = strlen(file), end = strlen(suffix);
    return length > n + 1 + end && memcmp(file, name, n) == 0 && file[n] == '.' &&
           strcmp(file + length - end, suffix) == 0;
}

/* Removes temporary files of the path that no process has locked. On a file
 * system without locks: a file with this process's number, left by a dead
 * one. */
static void remove_left(const char *path, const char *temp, const char *folder, struct arena *a)
{
    struct name_list names;
    const char *name = path_base(a, path), *own = path_base(a, temp);
    if (folder_list(folder, a, &names, NULL)) return;
    for (size_t i = 0; i < names.count; i++) {
        if (!is_partial(names.names[i], name)) continue;
        const char *left = path_join(a, folder, names.names[i]);
        int fd = open(left, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0) continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 ||
            (errno != EWOULDBLOCK && !strcmp(names.names[i], own)))
            (void)unlink(left);
        close(fd);
    }
}

/* Another process may have removed the file before it was locked. */
static bool still_has_name(const struct new_file *f)
{
    struct stat by_fd, by_name;
    return fstat(f->fd, &by_fd) == 0 && lstat(f->temp, &by_name) == 0 &&
           by_fd.st_ino == by_name.st_ino && by_fd.st_dev == by_name.st_dev;
}

static enum status open_named(struct new_file *f, const char *folder, const char *temp,
                              struct arena *a, struct error *err)
{
    f->temp = strdup(temp);
    if (!f->temp) return fail(err, ERR_MEMORY, "%s: no memory for a name", f->path);
    for (;;) {
        remove_left(f->path, temp, folder, a);
        TRY(file_create(f->temp, &f->fd, err));
        if (flock(f->fd, LOCK_EX)) return OK; /* no locks here: nobody removes it */
        if (still_has_name(f)) return OK;
        close(f->fd);
    }
}

enum status new_file_open(struct new_file *f, const char *path, bool nameless, struct error *err)
{
    struct arena a;
    enum status st = OK;
    *f = (struct new_file){.fd = -1, .path = path};
    if (path_exists(path)) return fail(err, ERR_EXISTS, "%s: exists already", path);
    arena_init(&a);
    const char *folder = path_parent(&a, path), *temp = temp_name(path, &a);
    if (!path_is_folder(folder))
        st = fail(err, ERR_IO, "%s: folder %s does not exist", path, folder);
    else if (!nameless || !open_nameless(f, folder, temp))
        st = open_named(f, folder, temp, &a, err);
    arena_release(&a);
    return st;
}

/* ---- publishing ---- */

static enum status give_name(struct new_file *f, struct error *err)
{
    if (f->temp) return path_rename_new(f->temp, f->path, err);
    if (link_fd(f->fd, f->path) == 0) return OK;
    if (errno == EEXIST) return fail(err, ERR_EXISTS, "%s: exists already", f->path);
    return fail_errno(err, ERR_IO, "%s", f->path);
}

enum status new_file_publish(struct new_file *f, struct error *err)
{
    struct arena a;
    TRY(file_sync(f->fd, f->path, err));
    TRY(give_name(f, err));
    free(f->temp);
    f->temp = NULL;
    arena_init(&a);
    enum status st = folder_sync(path_parent(&a, f->path), err);
    arena_release(&a);
    return st;
}

void new_file_close(struct new_file *f)
{
    if (f->temp && f->fd >= 0) (void)unlink(f->temp);
    if (f->fd >= 0) close(f->fd);
    free(f->temp);
    *f = (struct new_file){.fd = -1};
}
