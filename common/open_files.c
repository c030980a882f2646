#include "common/open_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "common/file.h"
#include "common/memory.h"

/* Number of open files of this process. */
static size_t count_open(void)
{
    enum { USUAL = 16 }; /* without /proc */
    DIR *d = opendir("/proc/self/fd");
    size_t n = 0;
    if (!d) return USUAL;
    while (readdir(d))
        n++;
    closedir(d);
    return n - 3; /* ".", "..", and d itself */
}

size_t open_files_left(uint64_t *limit)
{
    enum { ENOUGH = 1 << 20 };
    struct rlimit now;
    file_raise_limit();
    const size_t used = count_open();
    *limit = getrlimit(RLIMIT_NOFILE, &now) || now.rlim_cur > ENOUGH ? ENOUGH : now.rlim_cur;
    return *limit > used ? *limit - used : 0;
}

/* Unused open files form a ring in the order of their releases; place num_files
 * lies between the last and the first. */
struct open_place {
    uint32_t older, newer; /* in the ring */
    uint32_t users;
    bool is_open;
};

static void take_out(struct open_files *f, size_t file)
{
    const struct open_place *p = &f->places[file];
    f->places[p->older].newer = p->newer;
    f->places[p->newer].older = p->older;
}

static void put_last(struct open_files *f, size_t file)
{
    struct open_place *ring = &f->places[f->num_files], *p = &f->places[file];
    p->older = ring->older;
    p->newer = (uint32_t)f->num_files;
    f->places[p->older].newer = (uint32_t)file;
    ring->older = (uint32_t)file;
}

uint64_t open_files_bytes(size_t num_files)
{
    return (num_files + 1) * sizeof(struct open_place);
}

void open_files_init(struct open_files *f, size_t num_files, size_t max_open, void *context,
                     enum status (*open)(void *context, size_t file, struct error *err),
                     enum status (*close)(void *context, size_t file, struct error *err))
{
    *f = (struct open_files){.num_files = num_files,
                             .max_open = max_open ? max_open : 1,
                             .places = must_calloc(num_files + 1, sizeof *f->places),
                             .open = open,
                             .close = close,
                             .context = context};
    f->places[num_files].older = f->places[num_files].newer = (uint32_t)num_files;
    pthread_mutex_init(&f->lock, NULL);
}

static enum status close_unused(struct open_files *f, size_t file, struct error *err)
{
    take_out(f, file);
    f->places[file].is_open = false;
    f->num_open--;
    return f->close(f->context, file, err);
}

void open_files_end(struct open_files *f)
{
    for (size_t i = 0; i < f->num_files; i++)
        if (f->places[i].is_open) (void)f->close(f->context, i, NULL);
    pthread_mutex_destroy(&f->lock);
    free(f->places);
    f->places = NULL;
}

/* false: all open files are in use. */
static bool find_oldest(const struct open_files *f, size_t *file)
{
    *file = f->places[f->num_files].newer;
    return *file != f->num_files;
}

/* Closes unused files until another one may be opened. */
static enum status close_oldest_files(struct open_files *f, struct error *err)
{
    size_t oldest;
    while (f->num_open >= f->max_open && find_oldest(f, &oldest))
        TRY(close_unused(f, oldest, err));
    return OK;
}

static enum status open_within_limit(struct open_files *f, size_t file, struct error *err)
{
    size_t oldest;
    for (;;) {
        TRY(close_oldest_files(f, err));
        errno = 0;
        enum status st = f->open(f->context, file, err);
        bool limited = st && (errno == EMFILE || errno == ENFILE);
        if (!limited || !find_oldest(f, &oldest)) return st;
        f->max_open = f->num_open;
    }
}

enum status open_files_acquire(struct open_files *f, size_t file, struct error *err)
{
    struct open_place *p = &f->places[file];
    enum status st = OK;
    pthread_mutex_lock(&f->lock);
    if (!p->is_open) {
        st = open_within_limit(f, file, err);
        p->is_open = !st;
        f->num_open += !st;
    } else if (!p->users) {
        take_out(f, file);
    }
    p->users += !st;
    pthread_mutex_unlock(&f->lock);
    return st;
}

void open_files_release(struct open_files *f, size_t file)
{
    pthread_mutex_lock(&f->lock);
    if (!--f->places[file].users) put_last(f, file);
    pthread_mutex_unlock(&f->lock);
}

enum status open_files_close(struct open_files *f, size_t file, struct error *err)
{
    enum status st = OK;
    pthread_mutex_lock(&f->lock);
    if (f->places[file].is_open && !f->places[file].users) st = close_unused(f, file, err);
    pthread_mutex_unlock(&f->lock);
    return st;
}
