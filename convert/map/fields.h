/* fields.h - the declared fields of model configs (ckpt/model_config.h):
 * convert/models/fields.json for all families, a map's member "fields" for its
 * own.
 *
 * A row has `name`, `type` (whole, real, bool, text), and may have `by_layer`
 * (true: layers may have values of their own), `role` (model: it changes what is
 * computed, the usual one; training: not), `about`, and in fields.json `args` and
 * `run_config`, its names in Megatron's files, and `when`, a condition for these
 * to count. */
#ifndef FERRY_CONVERT_MAP_FIELDS_H
#define FERRY_CONVERT_MAP_FIELDS_H

#include <cjson/cJSON.h>

#include "common/status.h"

/* Declares the fields of fields.json. Only the first call does anything. */
void fields_load(void);
/* Declares the fields of a list. ERR_USAGE names a wrong row. */
MUST_CHECK enum status fields_declare(const cJSON *list, struct error *err);
/* The list of fields.json. */
const cJSON *fields_list(void);
/* Adds to a list of config rows those of fields with names in Megatron's files. */
void fields_add_rows(cJSON *rows);

#endif
