/* temporary.h - new files and folders of tests and fuzzers, below $TMPDIR or /tmp; the caller
 * removes them.
 */
#ifndef FERRY_TESTS_TEMPORARY_H
#define FERRY_TESTS_TEMPORARY_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { TEMPORARY_PATH = 256 }; /* bytes of such a path */

static inline char *temporary_template(char path[TEMPORARY_PATH])
{
    const char *where = getenv("TMPDIR");
    int length =
        snprintf(path, TEMPORARY_PATH, "%s/ferry-test-XXXXXX", where && *where ? where : "/tmp");
    if (length >= TEMPORARY_PATH) *path = '\0'; /* which no call takes */
    return path;
}

/* Makes a folder; false where none can be made. */
static inline bool temporary_folder(char path[TEMPORARY_PATH])
{
    return mkdtemp(temporary_template(path)) != NULL;
}

/* Makes an empty file; returns its descriptor, below 0 where none can be made. */
static inline int temporary_file(char path[TEMPORARY_PATH])
{
    return mkstemp(temporary_template(path));
}

#endif
