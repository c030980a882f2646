/* hub_cache.h - models of the Hugging Face hub that lie on this machine, by their names.
 *
 * The cache is the first of $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE, $HF_HOME/hub,
 * $XDG_CACHE_HOME/huggingface/hub and ~/.cache/huggingface/hub that is set
 * (huggingface_hub/constants.py); in it are
 *
 *   1. models--ORG--NAME/refs/REVISION        the commit that a branch or tag means
 *   2. models--ORG--NAME/snapshots/COMMIT/    the files, as links to blobs */
#ifndef FERRY_FORMATS_HUB_CACHE_H
#define FERRY_FORMATS_HUB_CACHE_H

#include <stdbool.h>

#include "common/arena.h"

/* A name on the hub: ORG/NAME or NAME, and @REVISION where it is not main. In arena a. */
struct hub_name {
    const char *model;    /* "ORG/NAME" */
    const char *revision; /* "main", a branch or tag, a commit */
};
/* Whether a text can be one. */
bool hub_name_parse(struct arena *a, const char *text, struct hub_name *out);

/* The folder models--ORG--NAME; NULL where the cache has none. */
const char *hub_cache_model(struct arena *a, const struct hub_name *name);
/* The snapshot of its revision; NULL where the cache has none. */
const char *hub_cache_find(struct arena *a, const struct hub_name *name);
/* The commit that the model's folder calls `revision`, a commit itself or one of refs; NULL where
 * it knows none of the name, or has no snapshot of it. */
const char *hub_cache_snapshot(struct arena *a, const char *model_folder, const char *revision);

#endif
