/* record_write.h - writes ferry.json (convert/record.h) after a conversion. */
#ifndef FERRY_CONVERT_CLI_RECORD_WRITE_H
#define FERRY_CONVERT_CLI_RECORD_WRITE_H

#include <cjson/cJSON.h>

#include "ckpt/digest.h"
#include "convert/cli/report.h"
#include "convert/record.h"

/* Digests of the tensors that plan p wrote (or read, if not `written`) with
 * these results. Includes the master of a weight that is its own
 * (weight_is_its_master), if it has other states. In arena a. */
void record_digests(const struct plan *p, const struct copy_result *results, bool written,
                    struct arena *a, struct tensor_digest **out, size_t *count);

/* Adds members whole_name and tensors_name to an object; sorts digests. */
void record_add_digests(cJSON *o, const char *whole_name, const char *tensors_name,
                        struct tensor_digest *digests, size_t count);

/* Writes ferry.json into the folder, with its files, and `later` (may be NULL),
 * which is written afterwards. */
MUST_CHECK enum status record_write(const struct conversion *c, const char *folder,
                                    const char *later, bool durable, struct error *err);
#endif
