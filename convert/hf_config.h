/* hf_config.h - the file config.json of a Hugging Face folder. */
#ifndef FERRY_CONVERT_HF_CONFIG_H
#define FERRY_CONVERT_HF_CONFIG_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "common/dtype.h"
#include "common/status.h"

/* Reads FOLDER/config.json; the caller frees the tree. */
MUST_CHECK enum status hf_config_read(const char *folder, cJSON **tree, struct error *err);

/* Sets the dtype under the key that is there: "torch_dtype", or "dtype" since
 * transformers 4.56. A config with neither gets "torch_dtype", which all
 * releases read. */
void hf_config_set_dtype(cJSON *config, enum dtype dtype);
/* Writes FROM/config.json with another dtype to the file `to`. */
MUST_CHECK enum status hf_config_write_dtype(const char *from, const char *to, enum dtype dtype,
                                             bool durable, struct error *err);

#endif
