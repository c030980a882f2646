/* fingerprint.h - a digest of a model, which all ranks of a job must share:
 * ranks with different programs would wait for each other for ever, or mix up
 * their sums. */
#ifndef FERRY_TRAIN_MODEL_FINGERPRINT_H
#define FERRY_TRAIN_MODEL_FINGERPRINT_H

#include "ckpt/checkpoint.h"
#include "ckpt/field.h"
#include "common/sha256.h"

/* Digest of a model's config and its parameters' names and shapes, without
 * elements. */
void fingerprint_model(const struct checkpoint *c, char text[SHA256_TEXT]);

/* Adds one field of a struct. */
void fingerprint_field(struct sha256 *s, const void *of, const struct field *f);

#endif
