/* open_files.h - keeps some of many numbered files open, for several threads.
 *
 * A file that is acquired stays open until it is released; then it stays open until another one
 * needs its place. The file that was released the longest time ago is closed first. */
#ifndef FERRY_COMMON_OPEN_FILES_H
#define FERRY_COMMON_OPEN_FILES_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

struct open_files {
    size_t num_files, num_open;
    _Atomic size_t max_open;   /* more are open only while they are all acquired */
    struct open_place *places; /* [num_files + 1] */
    pthread_mutex_t lock;
    /* Called behind the lock. errno tells open_files whether the limit of the process is reached:
     * then it keeps fewer open. */
    enum status (*open)(void *context, size_t file, struct error *err);
    enum status (*close)(void *context, size_t file, struct error *err);
    void *context;
};

/* How many more files this process may open, once it has raised its limit to the hard one. *limit:
 * that of all its files, `ulimit -n`. */
size_t open_files_left(uint64_t *limit);

/* Bytes of memory that it allocates. */
uint64_t open_files_bytes(size_t num_files);
void open_files_init(struct open_files *f, size_t num_files, size_t max_open, void *context,
                     enum status (*open)(void *context, size_t file, struct error *err),
                     enum status (*close)(void *context, size_t file, struct error *err));
/* Closes all files. */
void open_files_end(struct open_files *f);

/* Opens the file, if it is closed; fails if it cannot, or if another one cannot be closed. */
MUST_CHECK enum status open_files_acquire(struct open_files *f, size_t file, struct error *err);
void open_files_release(struct open_files *f, size_t file);
/* Closes the file, if it is open and nobody uses it. */
MUST_CHECK enum status open_files_close(struct open_files *f, size_t file, struct error *err);

#endif
