/* find_iteration.h - which iteration of a Megatron checkpoint is read, and where it lies. */
#ifndef FERRY_CONVERT_MEGATRON_FIND_ITERATION_H
#define FERRY_CONVERT_MEGATRON_FIND_ITERATION_H

#include "convert/source_kind.h"

struct iteration {
    const char *folder;
    bool release;
    int64_t number; /* 0 for a release; -1: the folder's name does not tell */
};

/* Whether path is an iteration, or the root of iterations. */
bool iteration_is_below(const char *path);
/* The iteration of --ckpt-step, else the one that the tracker names; path itself if it is one. */
MUST_CHECK enum status iteration_find(struct arena *a, const char *path,
                                      const struct source_options *o, struct iteration *out,
                                      struct error *err);

#endif
