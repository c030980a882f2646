/* find_iteration.h - finds a Megatron checkpoint's iteration and its folder. */
#ifndef FERRY_CONVERT_MEGATRON_FIND_ITERATION_H
#define FERRY_CONVERT_MEGATRON_FIND_ITERATION_H

#include "convert/source_kind.h"

struct iteration {
    const char *folder;
    bool release;
    int64_t number;   /* 0 for a release; -1: not in the folder's name */
    const char *note; /* how it was found without tracker or link; NULL: it has both */
};

/* Whether path is an iteration's folder or a root of iterations: it has a
 * tracker, or iterations and no model of its own. */
bool iteration_is_below(const char *path);
/* Finds the iteration of --ckpt-step, else the tracker's; path itself if it is
 * an iteration. Without a tracker: the only iteration; where the tracker says
 * release and that link was lost: iteration 0, if it is the only one.
 * ERR_CORRUPT if a tracker cannot be read, ERR_UNSUPPORTED or ERR_IO if the
 * iteration is missing or not the only one. */
MUST_CHECK enum status iteration_find(struct arena *a, const char *path,
                                      const struct source_options *o, struct iteration *out,
                                      struct error *err);

#endif
