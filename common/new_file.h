/* new_file.h - writes a file that appears whole under its name, or not at all.
 *
 * The file has no name until it is published (O_TMPFILE), so a dead process
 * leaves nothing behind. On other file systems it is named
 * PATH.HOST.PID.ferry-partial and locked; the next writer of PATH removes files
 * of dead processes. */
#ifndef FERRY_COMMON_NEW_FILE_H
#define FERRY_COMMON_NEW_FILE_H

#include <stdbool.h>

#include "common/status.h"

struct new_file {
    int fd;
    const char *path; /* the caller's */
    char *temp;       /* temporary name, on the heap; NULL: none */
};

/* ERR_EXISTS if path exists, ERR_IO if no file can be created beside it.
 * nameless false: always uses a temporary name. Call new_file_close()
 * afterwards, even after a failure. */
MUST_CHECK enum status new_file_open(struct new_file *f, const char *path, bool nameless,
                                     struct error *err);
/* Syncs the file and gives it its name. ERR_EXISTS, with nothing replaced, if
 * path exists by now. */
MUST_CHECK enum status new_file_publish(struct new_file *f, struct error *err);
/* Removes a file that was not published. */
void new_file_close(struct new_file *f);

#endif
