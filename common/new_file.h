/* new_file.h - a file that appears whole under its name, or not at all.
 *
 * While it is written it has no name (O_TMPFILE), so that nothing is left if the process dies. On a
 * file system without such files it is named PATH.HOST.PID.ferry-partial and locked; the next
 * process that writes PATH removes those of dead processes. */
#ifndef FERRY_COMMON_NEW_FILE_H
#define FERRY_COMMON_NEW_FILE_H

#include <stdbool.h>

#include "common/status.h"

struct new_file {
    int fd;
    const char *path; /* the caller's */
    char *temp;       /* its temporary name, on the heap; NULL: it has none */
};

/* ERR_EXISTS if path exists, ERR_IO if no file can be created beside it. nameless false: uses a
 * temporary name on any file system. Call new_file_close() afterwards, also after a failure. */
MUST_CHECK enum status new_file_open(struct new_file *f, const char *path, bool nameless,
                                     struct error *err);
/* Syncs the file and gives it its name. ERR_EXISTS, with nothing replaced, if path exists by now.
 */
MUST_CHECK enum status new_file_publish(struct new_file *f, struct error *err);
/* Removes the file unless it was published. */
void new_file_close(struct new_file *f);

#endif
