/* foreign.h - what other programs write, known by the names of its files: for messages. */
#ifndef FERRY_CONVERT_FOREIGN_H
#define FERRY_CONVERT_FOREIGN_H

#include <stdbool.h>

#include "common/status.h"

struct foreign {
    const char *names[2]; /* globs: each matches a name in the folder, or the file's own name */
    bool is_file, is_folder;
    const char *is;     /* "a DeepSpeed checkpoint" */
    const char *way;    /* how its model comes to be one that is read here */
    const char *beside; /* what is said of it where a model's weights are beside; NULL: nothing */
    bool has_tensors;   /* a file that is read, though it is no model: inspect shows its tensors */
};

/* The row that fits what is at path; NULL: none does, or nothing can be read there. */
const struct foreign *foreign_find(const char *path);

/* ERR_UNSUPPORTED "PATH: this is ...". */
MUST_CHECK enum status foreign_refuse(const struct foreign *f, const char *path, struct error *err);

#endif
