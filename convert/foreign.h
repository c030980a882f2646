/* foreign.h - recognises checkpoints of other programs by their file names, to
 * say in messages what they are and how to convert them. */
#ifndef FERRY_CONVERT_FOREIGN_H
#define FERRY_CONVERT_FOREIGN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

struct foreign {
    const char *names[2]; /* globs; each must match a name in the folder, or the file's own name */
    bool is_file, is_folder;
    const char *is;        /* "a DeepSpeed checkpoint" */
    const char *way;       /* how to make a checkpoint that Ferry reads */
    const char *beside;    /* note where weights that are read lie beside it; NULL: none */
    const char *optimizer; /* program whose optimizer state belongs to these weights; NULL: none */
    bool has_tensors;      /* no model, but ferry inspect can show its tensors */
};

/* The first row that matches the file or folder at path; NULL: none, or path
 * cannot be read. */
const struct foreign *foreign_find(const char *path);

/* Bytes on disk of the files in the folder that match its names. */
uint64_t foreign_bytes(const struct foreign *f, const char *folder);

/* Fails with ERR_UNSUPPORTED, "PATH: this is ...". */
MUST_CHECK enum status foreign_refuse(const struct foreign *f, const char *path, struct error *err);

/* Whether a parameter's name is one of PEFT's LoRA modules. */
bool foreign_is_lora(const char *parameter);
/* Fails with ERR_UNSUPPORTED for a checkpoint with such a parameter, as for an
 * adapter's folder. */
MUST_CHECK enum status foreign_refuse_lora(const char *path, const char *parameter,
                                           struct error *err);

#endif
