/* open_files.h - keeps some of many numbered files open, for several threads.
 *
 * An acquired file stays open until its release, and after that until another
 * file needs its place. The file released the longest time ago is closed
 * first. */
#ifndef FERRY_COMMON_OPEN_FILES_H
#define FERRY_COMMON_OPEN_FILES_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

struct open_files {
    size_t num_files, num_open;
    _Atomic size_t max_open;   /* exceeded only while all open files are acquired */
    struct open_place *places; /* [num_files + 1] */
    pthread_mutex_t lock;
    /* Called with the lock held. errno tells whether the process reached its
     * limit; then fewer files stay open. */
    enum status (*open)(void *context, size_t file, struct error *err);
    enum status (*close)(void *context, size_t file, struct error *err);
    void *context;
};

/* Number of files this process can still open, after raising its soft limit to
 * the hard one. *limit: `ulimit -n`. */
size_t open_files_left(uint64_t *limit);

/* Bytes of memory it allocates. */
uint64_t open_files_bytes(size_t num_files);
void open_files_init(struct open_files *f, size_t num_files, size_t max_open, void *context,
                     enum status (*open)(void *context, size_t file, struct error *err),
                     enum status (*close)(void *context, size_t file, struct error *err));
/* Closes all files. */
void open_files_end(struct open_files *f);

/* Opens a closed file; fails if that or closing another one fails. */
MUST_CHECK enum status open_files_acquire(struct open_files *f, size_t file, struct error *err);
void open_files_release(struct open_files *f, size_t file);
/* Closes the file if it is open and unused. */
MUST_CHECK enum status open_files_close(struct open_files *f, size_t file, struct error *err);

#endif
