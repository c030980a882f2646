/* published.h - how the Hugging Face folder that a checkpoint came from spelt
 * its names: the prefix, experts packed or one by one. Folders of other formats
 * keep it in ferry-hf/ferry-names.json, so that an export writes names as they
 * were published. */
#ifndef FERRY_CONVERT_PUBLISHED_H
#define FERRY_CONVERT_PUBLISHED_H

#include "ckpt/checkpoint.h"
#include "convert/map/model_map.h"

/* Adds the maps that a checkpoint brings along, ferry-hf/ferry-model.json, to
 * maps: those of families that the program has not, or has otherwise. Notes a
 * user's map that differs. */
MUST_CHECK enum status published_map_read(struct checkpoint *c, const struct model_maps *maps,
                                          const char *folder, struct error *err);
/* Writes that file, if c's family has a map that is not embedded. */
MUST_CHECK enum status published_map_write(const struct checkpoint *c,
                                           const struct model_maps *maps, const char *folder,
                                           bool durable, struct error *err);

/* Sets c->published from the file in this folder; without it, to NULL. */
MUST_CHECK enum status published_read(struct checkpoint *c, const char *folder, struct error *err);
/* Writes the file, unless c->published is NULL. */
MUST_CHECK enum status published_write(const struct checkpoint *c, const char *folder, bool durable,
                                       struct error *err);

#endif
