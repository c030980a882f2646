/* new_file.h - a file that appears whole under its name, or not at all.
 *
 * While it is written it has no name (O_TMPFILE): nothing of it is left by a process that ends,
 * however it ends. Where the file system knows no such files it is PATH.HOST.PID.ferry-partial, and
 * locked; what dead processes have left of the same PATH is removed by the next one. */
#ifndef FERRY_COMMON_NEW_FILE_H
#define FERRY_COMMON_NEW_FILE_H

#include <stdbool.h>

#include "common/status.h"

struct new_file {
    int fd;
    const char *path; /* the caller's */
    char *temp;       /* its name until it is published, on the heap; NULL: it has none */
};

/* ERR_EXISTS where path exists, ERR_IO where no file can be made beside it. nameless: false makes
 * one with a name, as for a file system that knows no others. new_file_close afterwards, after a
 * failure too. */
MUST_CHECK enum status new_file_open(struct new_file *f, const char *path, bool nameless,
                                     struct error *err);
/* Gives it its name once all is on disk. ERR_EXISTS where somebody was quicker; then nothing is
 * replaced. */
MUST_CHECK enum status new_file_publish(struct new_file *f, struct error *err);
/* What was not published is gone. */
void new_file_close(struct new_file *f);

#endif
