#include "ckpt/lock.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/file.h"
#include "common/memory.h"
#include "common/progress.h"
#include "common/threads.h"

struct lock {
    int folder; /* open; the same folder after a rename */
    char *name;
    struct lock_record record;
    pthread_t thread;
    bool has_thread, stop, lost; /* behind mutex */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
};

/* ---- this process ---- */

/* Start time of a process in clock ticks since boot; 0: no such process, or a
 * zombie. */
static unsigned long long start_time(long pid)
{
    char path[64], text[1024];
    unsigned long long ticks = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    const char *p = strrchr(text, ')'); /* the name before it may hold anything */
    if (p && (strncmp(p, ") Z", 3) == 0 || strncmp(p, ") X", 3) == 0)) return 0;
    for (int field = 2; p && field < 22; field++)
        p = strchr(p + 1, ' ');
    if (p) ticks = strtoull(p, NULL, 10);
    return ticks;
}

void lock_own_scope(char scope[64])
{
    char boot[9] = "-", space[40] = "-";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f && fscanf(f, "%8s", boot) != 1) strcpy(boot, "-");
    if (f) fclose(f);
    ssize_t n = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    if (n > 0) space[n] = '\0';
    snprintf(scope, 64, "%s-%s", boot, space);
    char *to = scope; /* "pid:[4026531836]" */
    for (const char *from = scope; *from; from++)
        if (isalnum((unsigned char)*from) || *from == '-') *to++ = *from;
    *to = '\0';
}

static void own_record(struct lock_record *r)
{
    *r = (struct lock_record){.pid = (long)getpid()};
    (void)gethostname(r->host, sizeof r->host - 1);
    lock_own_scope(r->scope);
    r->start = start_time(r->pid);
    r->since = (unsigned long long)time(NULL);
    strcpy(r->state, "at work");
}

bool lock_is_same_process(const struct lock_record *a, const struct lock_record *b)
{
    return a->pid == b->pid && a->start == b->start && strcmp(a->host, b->host) == 0 &&
           strcmp(a->scope, b->scope) == 0;
}

/* ---- records as text ---- */

static void print_record(char text[LOCK_BYTES], const struct lock_record *r)
{
    memset(text, ' ', LOCK_BYTES);
    int n = snprintf(text, LOCK_BYTES, "%s %ld %llu %s %s %020llu %llu\n%s\n%s\n", r->host, r->pid,
                     r->start, r->scope, r->run, r->beat, r->since, r->work, r->state);
    if (n < LOCK_BYTES) text[n] = ' '; /* in place of snprintf's '\0' */
    text[LOCK_BYTES - 1] = '\n';
}

const char *lock_since(struct arena *a, const struct lock_record *r)
{
    struct tm utc;
    time_t since = (time_t)r->since;
    char text[64];
    if (!r->since || !gmtime_r(&since, &utc) ||
        !strftime(text, sizeof text, " since %Y-%m-%d %H:%M:%S UTC", &utc))
        return "";
    return arena_printf(a, "%s", text);
}

static const char *take_line(const char *text, char *line, size_t room)
{
    size_t n = strcspn(text, "\n"), kept = n < room ? n : room - 1;
    memcpy(line, text, kept);
    line[kept] = '\0';
    return text[n] ? text + n + 1 : text + n;
}

static bool parse_record(const char *text, struct lock_record *r)
{
    char line[LOCK_BYTES];
    text = take_line(text, line, sizeof line);
    int n = sscanf(line, "%255s %ld %llu %63s %16s %llu %llu", r->host, &r->pid, &r->start,
                   r->scope, r->run, &r->beat, &r->since);
    text = take_line(text, r->work, sizeof r->work);
    (void)take_line(text, r->state, sizeof r->state);
    return n >= 3;
}

enum reading {
    NOT_THERE,
    EMPTY, /* no complete record: its writer was killed */
    READ,
    UNREADABLE,
};

static enum reading read_record(int folder, const char *path, struct lock_record *r)
{
    char text[LOCK_BYTES + 1];
    *r = (struct lock_record){.pid = 0};
    int fd = openat(folder, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR ? NOT_THERE : UNREADABLE;
    ssize_t n = 1;
    size_t length = 0;
    while (n > 0 && length < LOCK_BYTES) {
        n = pread(fd, text + length, LOCK_BYTES - length, (off_t)length);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            length += (size_t)n;
    }
    close(fd);
    if (n < 0) return UNREADABLE;
    text[length] = '\0';
    return parse_record(text, r) ? READ : EMPTY;
}

/* ---- looking ---- */

static bool has_ended(const struct lock_record *r)
{
    return strncmp(r->state, "ended", 5) == 0 || strncmp(r->state, "failed", 6) == 0;
}

/* Judges a process of another host or container by its beat; one look a second
 * counts. */
static enum lock_life watch_beat(struct lock_watch *w, bool same, unsigned long long before)
{
    double now = seconds_now();
    unsigned patience = w->patience ? w->patience : LOCK_PATIENCE;
    if (!same) {
        w->unchanged = 0;
        w->seen_beating = false;
    } else if (w->record.beat != before) {
        w->unchanged = 0;
        w->seen_beating = true;
    } else if (now - w->last_look >= 1) {
        w->unchanged++;
    } else {
        now = w->last_look;
    }
    w->last_look = now;
    if (w->unchanged >= patience) return LOCK_FREE;
    return w->seen_beating ? LOCK_HELD : LOCK_UNSURE;
}

enum lock_life lock_look(struct lock_watch *w, const char *path)
{
    struct lock_record before = w->record, us;
    bool was_found = w->found;
    enum reading reading = read_record(AT_FDCWD, path, &w->record);
    w->found = reading != NOT_THERE;
    w->error_number = reading == UNREADABLE ? errno : 0;
    if (reading == UNREADABLE) return LOCK_UNSURE;
    if (reading != READ || has_ended(&w->record)) return LOCK_FREE;
    own_record(&us);
    bool here = strcmp(w->record.host, us.host) == 0 &&
                (!*w->record.scope || strcmp(w->record.scope, us.scope) == 0);
    if (here)
        return w->record.pid > 0 && start_time(w->record.pid) == w->record.start ? LOCK_HELD
                                                                                 : LOCK_FREE;
    return watch_beat(w, was_found && lock_is_same_process(&before, &w->record), before.beat);
}

enum status lock_watch_until_sure(struct lock_watch *w, const char *path, enum lock_life *life,
                                  struct error *err)
{
    const struct timespec pause = {0, 200000000};
    *life = lock_look(w, path);
    if (*life == LOCK_UNSURE && !w->error_number)
        fprintf(stderr,
                "%s belongs to a process on %s: checking for up to %u s whether it is alive\n",
                path, w->record.host, w->patience ? w->patience : LOCK_PATIENCE);
    while (*life == LOCK_UNSURE) {
        if (interrupted()) return fail(err, ERR_INTERRUPTED, "interrupted");
        errno = w->error_number;
        if (errno) return fail_errno(err, ERR_IO, "%s", path);
        (void)nanosleep(&pause, NULL);
        *life = lock_look(w, path);
    }
    return OK;
}

/* ---- holding ---- */

/* Writes this process's record if it still has the lock. Without a file,
 * another process has removed the folder. The caller holds the mutex. */
static void beat(struct lock *l)
{
    char text[LOCK_BYTES];
    struct lock_record there;
    enum reading reading = read_record(l->folder, l->name, &there);
    if (reading == UNREADABLE) return;
    l->lost |= reading != READ || !lock_is_same_process(&there, &l->record);
    int fd = l->lost ? -1 : openat(l->folder, l->name, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    l->record.beat++;
    print_record(text, &l->record);
    (void)!pwrite(fd, text, sizeof text, 0);
    close(fd);
}

static void *keep_beating(void *argument)
{
    struct lock *l = argument;
    struct timespec until;
    (void)prctl(PR_SET_NAME, "lock-beat"); /* tests/faults/inject.c knows it by this name */
    pthread_mutex_lock(&l->mutex);
    clock_gettime(CLOCK_MONOTONIC, &until);
    while (!l->stop) {
        until.tv_sec++;
        while (!l->stop && pthread_cond_timedwait(&l->wake, &l->mutex, &until) != ETIMEDOUT) {
        }
        if (!l->stop) beat(l);
    }
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

static void start_beating(struct lock *l)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&l->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&l->mutex, NULL);
    l->has_thread = pthread_create(&l->thread, NULL, keep_beating, l) == 0;
}

static void new_run(char run[17])
{
    uint64_t bits = 0;
    if (getrandom(&bits, sizeof bits, 0) != sizeof bits)
        bits = (uint64_t)(seconds_now() * 1e9) ^ (uint64_t)getpid() << 40;
    snprintf(run, 17, "%016" PRIx64, bits);
}

/* ERR_EXISTS if another process took the lock since w saw it free; ERR_IO. */
static enum status check_still_free(int folder, const char *name, const struct lock_watch *w,
                                    struct error *err)
{
    struct lock_record now;
    enum reading reading = read_record(folder, name, &now);
    if (reading == NOT_THERE && !w->found) return OK;
    if (reading == UNREADABLE) return fail_errno(err, ERR_IO, "%s", name);
    if (w->found && lock_is_same_process(&now, &w->record) &&
        (now.beat == w->record.beat || has_ended(&now)))
        return OK;
    return fail(err, ERR_EXISTS, "%s: busy: another ferry holds it", name);
}

bool lock_is_still_free(const struct lock_watch *w, const char *path)
{
    return check_still_free(AT_FDCWD, path, w, NULL) == OK;
}

/* Writes the first record. The caller holds flock of the folder: of two
 * processes, one sees the other's record. */
static enum status write_first(const struct lock *l, const char *folder, const struct lock_watch *w,
                               struct error *err)
{
    char text[LOCK_BYTES];
    if (check_still_free(l->folder, l->name, w, err)) return fail_in(err, "%s", folder);
    int fd = openat(l->folder, l->name, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return fail_errno(err, ERR_IO, "%s/%s", folder, l->name);
    print_record(text, &l->record);
    enum status st = file_write(fd, l->name, text, sizeof text, 0, err);
    close(fd);
    return st;
}

static void free_lock(struct lock *l)
{
    close(l->folder);
    free(l->name);
    free(l);
}

enum status lock_take(struct lock **out, const char *folder, const char *name,
                      const struct lock_watch *w, const char *run, const char *work,
                      struct error *err)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    *out = NULL;
    if (fd < 0) return fail_errno(err, ERR_IO, "%s", folder);
    struct lock *l = must_calloc(1, sizeof *l);
    l->folder = fd;
    l->name = must_strdup(name);
    own_record(&l->record);
    snprintf(l->record.work, sizeof l->record.work, "%s", work);
    if (run)
        snprintf(l->record.run, sizeof l->record.run, "%s", run);
    else
        new_run(l->record.run);
    while (flock(fd, LOCK_EX) && errno == EINTR && !interrupted()) {
    }
    enum status st = write_first(l, folder, w, err);
    (void)flock(fd, LOCK_UN);
    if (st) {
        free_lock(l);
        return st;
    }
    start_beating(l);
    *out = l;
    return OK;
}

const char *lock_run(const struct lock *l)
{
    return l->record.run;
}

const char *lock_state(const struct lock *l)
{
    return l->record.state; /* only the owner of the lock changes it */
}

bool lock_is_lost(struct lock *l)
{
    pthread_mutex_lock(&l->mutex);
    beat(l);
    bool lost = l->lost;
    pthread_mutex_unlock(&l->mutex);
    return lost;
}

void lock_say(struct lock *l, const char *state)
{
    pthread_mutex_lock(&l->mutex);
    snprintf(l->record.state, sizeof l->record.state, "%s", state);
    for (char *p = l->record.state; *p; p++)
        if (*p == '\n') *p = ' ';
    beat(l);
    pthread_mutex_unlock(&l->mutex);
}

void lock_drop(struct lock *l, const char *state)
{
    if (!l) return;
    if (state) lock_say(l, state);
    pthread_mutex_lock(&l->mutex);
    l->stop = true;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->mutex);
    if (l->has_thread) pthread_join(l->thread, NULL);
    pthread_cond_destroy(&l->wake);
    pthread_mutex_destroy(&l->mutex);
    free_lock(l);
}
