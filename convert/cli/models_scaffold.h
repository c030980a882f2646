/* models_scaffold.h - a first map of a Hugging Face folder: ferry models
 * --scaffold. */
#ifndef FERRY_CONVERT_CLI_MODELS_SCAFFOLD_H
#define FERRY_CONVERT_CLI_MODELS_SCAFFOLD_H

#include "convert/map/model_map.h"

/* Makes a map that extends the map whose tensors match most: with a declared
 * field for each field of config.json that it does not know, and a row, which
 * every rank holds whole, for each tensor. Prints on stderr what it leaves to be
 * done. *out: the caller deletes it. ERR_UNSUPPORTED if no map fits any tensor. */
MUST_CHECK enum status models_scaffold(const struct model_maps *m, const char *folder, cJSON **out,
                                       struct error *err);

#endif
