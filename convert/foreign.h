/* foreign.h - recognises checkpoints of other programs by the names of their files, for messages
 * that say what the folder is and how to convert it. */
#ifndef FERRY_CONVERT_FOREIGN_H
#define FERRY_CONVERT_FOREIGN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

struct foreign {
    const char *names[2]; /* globs; each must match a name in the folder, or the file's own name */
    bool is_file, is_folder;
    const char *is;     /* "a DeepSpeed checkpoint" */
    const char *way;    /* how to make a checkpoint from it that Ferry reads */
    const char *beside; /* the note if a model's weights lie beside it and are read; NULL: none */
    const char *optimizer; /* whose optimizer it is, which goes with these weights; NULL: none */
    bool has_tensors; /* a file whose tensors can be shown (ferry inspect), though it is no model */
};

/* The first row that fits the file or folder at path; NULL if none fits or path cannot be read. */
const struct foreign *foreign_find(const char *path);

/* Bytes on the disk of what its names match in the folder. */
uint64_t foreign_bytes(const struct foreign *f, const char *folder);

/* Fails with ERR_UNSUPPORTED, "PATH: this is ...". */
MUST_CHECK enum status foreign_refuse(const struct foreign *f, const char *path, struct error *err);

#endif
