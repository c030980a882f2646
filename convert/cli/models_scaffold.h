/* models_scaffold.h - a first map of a Hugging Face folder: ferry models
 * --scaffold. */
#ifndef FERRY_CONVERT_CLI_MODELS_SCAFFOLD_H
#define FERRY_CONVERT_CLI_MODELS_SCAFFOLD_H

#include "convert/map/model_map.h"

/* Makes a map that extends the one that fits most tensors: it declares unknown
 * fields, and has a row for each unknown tensor, which every rank holds whole.
 * Prints the rest on stderr. The caller deletes *out. ERR_UNSUPPORTED if no map
 * fits any tensor. */
MUST_CHECK enum status models_scaffold(const struct model_maps *m, const char *folder, cJSON **out,
                                       struct error *err);

#endif
