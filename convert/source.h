/* source.h - opens any checkpoint that Ferry knows as a catalog of logical tensors. format.h lists
 * the formats.
 *
 * If there is no folder ORG/NAME, the model of that name is looked up in the hub's cache. */
#ifndef FERRY_CONVERT_SOURCE_H
#define FERRY_CONVERT_SOURCE_H

#include "convert/source_kind.h"

/* If c->path does not exist but names a model (ORG/NAME, ORG/NAME@REVISION) in the cache of the
 * Hugging Face hub, c->path becomes the model's snapshot, with a note. */
void source_find_in_hub_cache(struct checkpoint *c);

/* Opens the checkpoint at path. Missing and unexpected tensors are listed in c->gaps and are no
 * failure here. ERR_UNSUPPORTED if no format recognises path, ERR_CORRUPT if a file contradicts
 * itself or another, ERR_IO. */
MUST_CHECK enum status source_open(struct checkpoint *c, const char *path,
                                   const struct source_options *o, const struct model_maps *maps,
                                   struct error *err);

#endif
