/* record.h - ferry.json, beside the written files: source, command and the digests of all tensors
 * (ckpt/digest.h), to check the files later.
 *
 *   {"ferry": VERSION, "written": TIME, "host", "command": [...], "source": {...}, "target": {...},
 *    "lossy": [...], "files": [PATH, ...] of all that was written, "plan": fingerprint
 *    (ckpt/fingerprint.h), "run": of all ranks (ckpt/lock.h),
 *    "non_finite": {NAME: COUNT}, tensors with elements that are NaN or Inf in the source,
 *    "overflowed": {NAME: COUNT}, tensors with elements that a cast made infinite,
 *    "digest": {"*": SHA-256, "optimizer.*": ...}, "tensors": {NAME: DIGEST},
 *    "source_digest": ..., "source_tensors": ...}     the last two after a cast
 *
 * It is the only file that depends on time, host and command line. */
#ifndef FERRY_CONVERT_CLI_RECORD_H
#define FERRY_CONVERT_CLI_RECORD_H

#include <cjson/cJSON.h>

#include "ckpt/digest.h"
#include "convert/cli/report.h"

extern const char record_name[]; /* "ferry.json" */

/* Digests of what a plan wrote (or read), when it ran with these results. In arena a. */
void record_digests(const struct plan *p, const struct carry_result *results, bool written,
                    struct arena *a, struct tensor_digest **out, size_t *count);

/* The words of the command line. */
cJSON *record_command_line(void);

/* Members whole_name and tensors_name of an object; sorts digests. */
void record_add_digests(cJSON *o, const char *whole_name, const char *tensors_name,
                        struct tensor_digest *digests, size_t count);

/* ERR_EXISTS if a file that the folder's record names is gone, or a file of the plan has another
 * size. */
MUST_CHECK enum status record_check_files(const char *folder, const struct plan *p,
                                          struct error *err);
/* Whether a folder has a record of this run, or, where run is NULL, of this plan. */
bool record_is_of(const char *folder, const char *run, const char *plan);
/* Writes the record into a folder where all other files are, except `later` (may be NULL). */
MUST_CHECK enum status record_write(const struct conversion *c, const char *folder,
                                    const char *later, bool durable, struct error *err);
/* The ferry.json of a folder, or of the iteration that a root's link leads to; *tree is NULL where
 * there is none. The caller frees it. */
MUST_CHECK enum status record_read(const char *folder, cJSON **tree, struct error *err);

#endif
