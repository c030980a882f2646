/* source.h - opens a checkpoint of any format (format.h) as a catalog of
 * logical tensors. A name ORG/NAME without such a folder is looked up in the
 * hub's cache. */
#ifndef FERRY_CONVERT_SOURCE_H
#define FERRY_CONVERT_SOURCE_H

#include "convert/source_kind.h"

/* Where c->path does not exist but names a model (ORG/NAME, ORG/NAME@REVISION)
 * in the Hugging Face hub cache, sets c->path to its snapshot, with a note. */
void source_find_in_hub_cache(struct checkpoint *c);

/* Opens the checkpoint at path. Lists missing and unexpected tensors in
 * c->gaps, without failing. ERR_UNSUPPORTED if no format recognises path,
 * ERR_CORRUPT if a file contradicts itself or another, ERR_IO. */
MUST_CHECK enum status source_open(struct checkpoint *c, const char *path,
                                   const struct source_options *o, const struct model_maps *maps,
                                   struct error *err);

#endif
