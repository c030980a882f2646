/* integrity.h - integrity.json, which Megatron-Core (from 0.18 on;
 * megatron/core/dist_checkpointing/validation.py:save_integrity_manifest)
 * writes beside a checkpoint and checks with --verify-integrity:
 *
 *   {"algorithm": "sha256", "files": {NAME: SHA-256 in hexadecimal digits}}
 *
 * for every file directly in the folder. */
#ifndef FERRY_CONVERT_CLI_INTEGRITY_H
#define FERRY_CONVERT_CLI_INTEGRITY_H

#include <stdbool.h>

#include "common/status.h"

extern const char integrity_name[]; /* "integrity.json" */

/* Reads all files of the folder, one thread per file. */
MUST_CHECK enum status integrity_write(const char *folder, unsigned threads, bool durable,
                                       struct error *err);

#endif
