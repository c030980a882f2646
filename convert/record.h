/* record.h - ferry.json, the record beside a written checkpoint: source,
 * command, and digests of all tensors (ckpt/digest.h) for later checks.
 *
 *   {"ferry": VERSION, "written": TIME, "host", "command": [...],
 *    "source": {...}, "target": {...}, "lossy": [...],
 *    "files": [PATH, ...]          all written files
 *    "plan": fingerprint           ckpt/fingerprint.h
 *    "run":                        identifies the run of all ranks (ckpt/lock.h)
 *    "non_finite": {NAME: COUNT}   tensors with NaN or Inf in the source
 *    "overflowed": {NAME: COUNT}   tensors that a cast made partly infinite
 *    "digest": {"*": SHA-256, "optimizer.*": ...}, "tensors": {NAME: DIGEST},
 *    "source_digest": ..., "source_tensors": ...}   only after a cast
 *
 * No other written file depends on time, host and command line. */
#ifndef FERRY_CONVERT_RECORD_H
#define FERRY_CONVERT_RECORD_H

#include <cjson/cJSON.h>

#include "ckpt/plan.h"

extern const char record_name[]; /* "ferry.json" */

/* Reads the ferry.json of a folder, or of the iteration that a root links to;
 * *tree is NULL if there is none. The caller frees it. */
MUST_CHECK enum status record_read(const char *folder, cJSON **tree, struct error *err);
/* Whether a folder's record is of this run, or (run NULL) of this plan. */
bool record_is_of(const char *folder, const char *run, const char *plan);
/* ERR_EXISTS if a recorded file is missing, or a file of the plan has another
 * size. */
MUST_CHECK enum status record_check_files(const char *folder, const struct plan *p,
                                          struct error *err);

#endif
