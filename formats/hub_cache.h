/* hub_cache.h - finds models by name in the local cache of the Hugging Face
 * hub.
 *
 * The cache is the first of $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE,
 * $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub and ~/.cache/huggingface/hub
 * that is set (huggingface_hub/constants.py). It holds
 *
 *   1. models--ORG--NAME/refs/REVISION      commit of a branch or tag
 *   2. models--ORG--NAME/snapshots/COMMIT/  files, as links to blobs */
#ifndef FERRY_FORMATS_HUB_CACHE_H
#define FERRY_FORMATS_HUB_CACHE_H

#include <stdbool.h>

#include "common/arena.h"

/* A name on the hub: [ORG/]NAME, and @REVISION unless main. In arena a. */
struct hub_name {
    const char *model;    /* "ORG/NAME" */
    const char *revision; /* "main", a branch or tag, a commit */
};
/* false if the text is not such a name. */
bool hub_name_parse(struct arena *a, const char *text, struct hub_name *out);

/* The cache, whether it exists or not;
 * NULL: no variable tells. */
const char *hub_cache_folder(struct arena *a);
/* The folder models--ORG--NAME; NULL if the cache has none. */
const char *hub_cache_model(struct arena *a, const struct hub_name *name);
/* The snapshot of the revision; NULL if the cache has none. */
const char *hub_cache_find(struct arena *a, const struct hub_name *name);
/* The snapshot of a revision (a commit, or a name in refs) in a model's folder;
 * NULL if the revision is unknown there or has no snapshot. */
const char *hub_cache_snapshot(struct arena *a, const char *model_folder, const char *revision);

#endif
