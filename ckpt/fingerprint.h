/* fingerprint.h - a SHA-256 that is equal for runs that do the same: over each
 * output file, segment and piece of the plan, the place that each element is
 * read from, and name (below the source's folder), size and time of each source
 * file. */
#ifndef FERRY_CKPT_FINGERPRINT_H
#define FERRY_CKPT_FINGERPRINT_H

#include "ckpt/plan.h"
#include "ckpt/training.h"
#include "common/sha256.h"

/* The fingerprint of the source's files alone. path: their common folder, as
 * the user gave it. */
void source_fingerprint(const struct catalog *c, const char *path, char fingerprint[SHA256_TEXT]);
void plan_fingerprint(const struct plan *p, const char *path, char fingerprint[SHA256_TEXT]);
/* Adds a training state to a fingerprint. */
void training_fingerprint(const struct training *t, char fingerprint[SHA256_TEXT]);

#endif
