/* hub_cache.h - finds models in the local cache of the Hugging Face hub by their names.
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
/* false if the text cannot be such a name. */
bool hub_name_parse(struct arena *a, const char *text, struct hub_name *out);

/* The folder models--ORG--NAME; NULL if the cache has none. */
const char *hub_cache_model(struct arena *a, const struct hub_name *name);
/* The snapshot of the revision; NULL if the cache has none. */
const char *hub_cache_find(struct arena *a, const struct hub_name *name);
/* The commit of a revision (a commit, or a name in refs) of a model's folder; NULL if the revision
 * is not known there or has no snapshot. */
const char *hub_cache_snapshot(struct arena *a, const char *model_folder, const char *revision);

#endif
