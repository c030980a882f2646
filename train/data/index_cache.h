/* index_cache.h - indices of datasets in files shared with Megatron-LM:
 * PREFIX-NAME.npy for each array, and PREFIX-description.txt (description.h).
 *
 * A cache only saves time. Files that cannot be read or written, are damaged,
 * or belong to another dataset cause a note, and indices are rebuilt. Files are
 * written under another name and renamed. */
#ifndef FERRY_TRAIN_DATA_INDEX_CACHE_H
#define FERRY_TRAIN_DATA_INDEX_CACHE_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "common/status.h"
#include "train/data/blend.h"
#include "train/data/gpt_dataset.h"

struct index_cache {
    const char *folder;                            /* NULL: no cache */
    bool read_only;                                /* for all ranks but one */
    void (*note)(void *context, const char *text); /* NULL: silent */
    void *context;
};

/* Sets the indices of a prepared dataset, from the cache, or built and stored.
 */
MUST_CHECK enum status index_cache_gpt(const struct index_cache *c, struct gpt_dataset *d,
                                       const cJSON *description, struct error *err);

/* Stores the indices of a blend, unless present; building them is as fast as
 * reading. */
void index_cache_blend(const struct index_cache *c, const struct blend *b, enum data_split split,
                       const cJSON *description);

#endif
