/* paths.h - values of --data-path as datasets and weights. */
#ifndef FERRY_TRAIN_DATA_PATHS_H
#define FERRY_TRAIN_DATA_PATHS_H

#include "common/arena.h"
#include "train/data/data.h"

struct blend_paths {
    size_t count;
    const char **prefixes;
    double *weights; /* normalised; NULL: none were given */
};

/* As Megatron-LM's get_blend_from_list: pairs of words whose first are all
 * numbers are weights and prefixes; other words are prefixes. Both lie in arena
 * a. ERR_USAGE if only some are numbers, or a weight is not above 0. */
MUST_CHECK enum status blend_paths_parse(struct blend_paths *out, const struct data_paths *paths,
                                         struct arena *a, struct error *err);

#endif
