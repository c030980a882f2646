/* embedded.h - files of convert/models, built into the program. */
#ifndef FERRY_CONVERT_MAP_EMBEDDED_H
#define FERRY_CONVERT_MAP_EMBEDDED_H

#include <cjson/cJSON.h>
#include <stddef.h>

struct embedded_file {
    const char *name; /* "llama.json" */
    const char *text;
    size_t length;
};
extern const struct embedded_file embedded_models[];
extern const size_t num_embedded_models;

/* The embedded file with this name, which must exist. */
const struct embedded_file *embedded_file_find(const char *name);
/* Its JSON, which the caller deletes. */
cJSON *embedded_file_parse(const char *name);

#endif
