/* json_fields.h - fields of the objects that verdicts are written as. */
#ifndef FERRY_VALIDATE_JSON_FIELDS_H
#define FERRY_VALIDATE_JSON_FIELDS_H

#include <cjson/cJSON.h>
#include <stdint.h>

void json_add_u64(cJSON *o, const char *name, uint64_t n);
/* null where it is infinite or none: JSON has no such number. */
void json_add_number(cJSON *o, const char *name, double x);
/* null where there is none. */
void json_add_text(cJSON *o, const char *name, const char *text);

#endif
