/* inject.c - a library to be put in front of libc (LD_PRELOAD) that makes one call fail.
 *
 *     FERRY_FAULT=pwrite:ENOSPC:17     the 17th pwrite fails; SHORT does half of it, EINTR nothing,
 * and KILL ends the process before it
 *     FERRY_FAULT_COUNT=FILE           at exit, "NAME CALLS" of each function to FILE
 *     FERRY_LATE=PATTERN:SECONDS       for so long, files of such a name are not seen to be there,
 * as on a network file system that keeps what it was told before
 *     FERRY_SLOW=BYTES:MILLISECONDS    a pread of so many bytes or more takes so long
 *
 * It stands below all that Ferry does with files, and above the kernel. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "common/count.h"

enum call {
    PREAD,
    READ,
    PWRITE,
    OPEN,
    FTRUNCATE,
    FSYNC,
    FDATASYNC,
    RENAME,
    MKDIR,
    SYMLINK,
    UNLINK,
    CLOSE,
    CALLS
};
static const char *const names[CALLS] = {"pread",     "read",    "pwrite",    "open",
                                         "ftruncate", "fsync",   "fdatasync", "rename",
                                         "mkdir",     "symlink", "unlink",    "close"};
static atomic_uint counts[CALLS];
static int armed = -1, error_number;
static unsigned at;

enum { SHORT = -1, KILL = -2 };

static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

__attribute__((constructor)) static void arm(void)
{
    static const struct {
        const char *name;
        int number;
    } errors[] = {{"EIO", EIO},       {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EINTR", EINTR},
                  {"EACCES", EACCES}, {"SHORT", SHORT},   {"KILL", KILL}};
    char name[32], error[32];
    const char *fault = getenv("FERRY_FAULT");
    if (!fault || sscanf(fault, "%31[^:]:%31[^:]:%u", name, error, &at) != 3) return;
    for (size_t i = 0; i < COUNT(errors); i++)
        if (strcmp(errors[i].name, error) == 0) error_number = errors[i].number;
    for (int i = 0; i < CALLS; i++)
        if (strcmp(names[i], name) == 0) armed = i;
}

__attribute__((destructor)) static void tell(void)
{
    const char *path = getenv("FERRY_FAULT_COUNT");
    FILE *f = path ? fopen(path, "w") : NULL;
    for (int i = 0; f && i < CALLS; i++)
        fprintf(f, "%s %u\n", names[i], atomic_load(&counts[i]));
    if (f) fclose(f);
}

/* Whether a lock's thread calls, which it does each second: runs would not have
 * the same calls twice. */
static int is_beat(void)
{
    char thread[16] = "";
    (void)prctl(PR_GET_NAME, thread);
    return strcmp(thread, "lock-beat") == 0;
}

/* Whether this call is the one; errno is set. */
static int fails(enum call call)
{
    if (is_beat()) return 0;
    unsigned number = atomic_fetch_add(&counts[call], 1) + 1;
    if ((int)call != armed || number != at) return 0;
    if (error_number == KILL) (void)kill(getpid(), SIGKILL);
    if (error_number != SHORT) errno = error_number;
    return 1;
}

/* Whether a file is not seen yet; errno is set. */
static int is_late(const char *path)
{
    static time_t start;
    char pattern[64];
    unsigned seconds;
    const char *late = getenv("FERRY_LATE"), *slash = strrchr(path, '/');
    if (!late || sscanf(late, "%63[^:]:%u", pattern, &seconds) != 2) return 0;
    if (!start) start = time(NULL);
    if (time(NULL) - start > (time_t)seconds || fnmatch(pattern, slash ? slash + 1 : path, 0))
        return 0;
    errno = ENOENT;
    return 1;
}

/* As a disk that is far away. */
static void be_slow(size_t count)
{
    static int known;
    static size_t least;
    static long ms;
    const char *slow = getenv("FERRY_SLOW");
    if (!known && slow) (void)sscanf(slow, "%zu:%ld", &least, &ms);
    known = 1;
    const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    if (ms && count >= least) (void)nanosleep(&time, NULL);
}

static size_t half(size_t count)
{
    return count > 1 ? count / 2 : count;
}

ssize_t pread(int fd, void *to, size_t count, off_t offset)
{
    static ssize_t (*real)(int, void *, size_t, off_t);
    if (!real) *(void **)(&real) = next("pread");
    be_slow(count);
    if (!fails(PREAD)) return real(fd, to, count, offset);
    return error_number == SHORT ? real(fd, to, half(count), offset) : -1;
}

ssize_t read(int fd, void *to, size_t count)
{
    static ssize_t (*real)(int, void *, size_t);
    if (!real) *(void **)(&real) = next("read");
    if (!fails(READ)) return real(fd, to, count);
    return error_number == SHORT ? real(fd, to, half(count)) : -1;
}

ssize_t pwrite(int fd, const void *from, size_t count, off_t offset)
{
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (!real) *(void **)(&real) = next("pwrite");
    if (!fails(PWRITE)) return real(fd, from, count, offset);
    return error_number == SHORT ? real(fd, from, half(count), offset) : -1;
}

static int has_mode(int flags)
{
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE;
}

int open(const char *path, int flags, ...)
{
    static int (*real)(const char *, int, ...);
    va_list more;
    va_start(more, flags);
    int mode = has_mode(flags) ? va_arg(more, int) : 0;
    va_end(more);
    if (!real) *(void **)(&real) = next("open");
    return is_late(path) || fails(OPEN) ? -1 : real(path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...)
{
    static int (*real)(int, const char *, int, ...);
    va_list more;
    va_start(more, flags);
    int mode = has_mode(flags) ? va_arg(more, int) : 0;
    va_end(more);
    if (!real) *(void **)(&real) = next("openat");
    return is_late(path) || fails(OPEN) ? -1 : real(folder, path, flags, mode);
}

int stat(const char *path, struct stat *s)
{
    static int (*real)(const char *, struct stat *);
    if (!real) *(void **)(&real) = next("stat");
    return is_late(path) ? -1 : real(path, s);
}

int lstat(const char *path, struct stat *s)
{
    static int (*real)(const char *, struct stat *);
    if (!real) *(void **)(&real) = next("lstat");
    return is_late(path) ? -1 : real(path, s);
}

int ftruncate(int fd, off_t size)
{
    static int (*real)(int, off_t);
    if (!real) *(void **)(&real) = next("ftruncate");
    return fails(FTRUNCATE) ? -1 : real(fd, size);
}

int fsync(int fd)
{
    static int (*real)(int);
    if (!real) *(void **)(&real) = next("fsync");
    return fails(FSYNC) ? -1 : real(fd);
}

int fdatasync(int fd)
{
    static int (*real)(int);
    if (!real) *(void **)(&real) = next("fdatasync");
    return fails(FDATASYNC) ? -1 : real(fd);
}

int rename(const char *from, const char *to)
{
    static int (*real)(const char *, const char *);
    if (!real) *(void **)(&real) = next("rename");
    return fails(RENAME) ? -1 : real(from, to);
}

int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    static int (*real)(int, const char *, int, const char *, unsigned);
    if (!real) *(void **)(&real) = next("renameat2");
    return fails(RENAME) ? -1 : real(a, from, b, to, flags);
}

int mkdir(const char *path, mode_t mode)
{
    static int (*real)(const char *, mode_t);
    if (!real) *(void **)(&real) = next("mkdir");
    return fails(MKDIR) ? -1 : real(path, mode);
}

int symlink(const char *target, const char *path)
{
    static int (*real)(const char *, const char *);
    if (!real) *(void **)(&real) = next("symlink");
    return fails(SYMLINK) ? -1 : real(target, path);
}

int unlinkat(int folder, const char *path, int flags)
{
    static int (*real)(int, const char *, int);
    if (!real) *(void **)(&real) = next("unlinkat");
    return fails(UNLINK) ? -1 : real(folder, path, flags);
}

int unlink(const char *path)
{
    static int (*real)(const char *);
    if (!real) *(void **)(&real) = next("unlink");
    return fails(UNLINK) ? -1 : real(path);
}

int close(int fd)
{
    static int (*real)(int);
    if (!real) *(void **)(&real) = next("close");
    int result = real(fd); /* as in Linux: the descriptor is gone, whatever it says */
    return fails(CLOSE) ? -1 : result;
}
