/* fingerprint.h - whether two runs do the same: a SHA-256 over a plan, that is over every output
 * file, segment and piece of it, and over its source: where each element is read, and the name
 * below the source's folder, the size and time of each file. */
#ifndef FERRY_CKPT_FINGERPRINT_H
#define FERRY_CKPT_FINGERPRINT_H

#include "ckpt/plan.h"
#include "common/sha256.h"

/* Of the files of the source alone. path: the folder that they are below, as it was given. */
void source_fingerprint(const struct catalog *c, const char *path, char fingerprint[SHA256_TEXT]);
void plan_fingerprint(const struct plan *p, const char *path, char fingerprint[SHA256_TEXT]);

#endif
