/* find_iteration.h - finds the iteration of a Megatron checkpoint to read, and its folder. */
#ifndef FERRY_CONVERT_MEGATRON_FIND_ITERATION_H
#define FERRY_CONVERT_MEGATRON_FIND_ITERATION_H

#include "convert/source_kind.h"

struct iteration {
    const char *folder;
    bool release;
    int64_t number; /* 0 for a release; -1: not known from the folder's name */
};

/* Whether path is the folder of an iteration, or a root of iterations. */
bool iteration_is_below(const char *path);
/* Finds the iteration of --ckpt-step, else the one that a tracker names; if path is itself an
 * iteration, takes path. ERR_CORRUPT if a tracker cannot be read, ERR_UNSUPPORTED or ERR_IO if the
 * iteration is not there. */
MUST_CHECK enum status iteration_find(struct arena *a, const char *path,
                                      const struct source_options *o, struct iteration *out,
                                      struct error *err);

#endif
