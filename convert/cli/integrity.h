/* integrity.h - integrity.json, as Megatron-Core writes it beside a checkpoint (from 0.18 on;
 * megatron/core/dist_checkpointing/validation.py:save_integrity_manifest) and checks it with
 * --verify-integrity: {"algorithm": "sha256", "files": {NAME: SHA-256 in hexadecimal digits}} of
 * every file that lies directly in the folder. */
#ifndef FERRY_CONVERT_CLI_INTEGRITY_H
#define FERRY_CONVERT_CLI_INTEGRITY_H

#include <stdbool.h>

#include "common/status.h"

extern const char integrity_name[]; /* "integrity.json" */

/* Reads all files of the folder, each by one thread. */
MUST_CHECK enum status integrity_write(const char *folder, unsigned threads, bool durable,
                                       struct error *err);

#endif
