/* version.h - version and build of this Ferry. */
#ifndef FERRY_COMMON_VERSION_H
#define FERRY_COMMON_VERSION_H

#include <cjson/cJSON.h>

/* As common/version.sh prints it: "0.1.0+fc116cac". */
extern const char ferry_version[];

/* Adds compiler, target, and the path of each
 * library; null if it is missing. */
void version_add_build(cJSON *o);

#endif
