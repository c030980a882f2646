/* companions.h - the small files that travel with a Hugging Face model: config.json, the tokenizer,
 * code, the licence. */
#ifndef FERRY_CONVERT_COMPANIONS_H
#define FERRY_CONVERT_COMPANIONS_H

#include <stdbool.h>

#include "common/sha256.h"
#include "common/status.h"

/* Whether a file of this name travels with a model: *.json *.model *.txt *.jinja *.py, LICENSE*,
 * README*; but no index of weights, no training.json, no ferry.json and no integrity.json. */
bool is_companion(const char *name);
/* Copies all companions of one folder to another; files that are there already stay. */
MUST_CHECK enum status copy_companions(const char *from, const char *to, bool durable,
                                       struct error *err);
/* The SHA-256 of the names, sizes and times of a folder's companions. A NULL folder has none. */
void companions_fingerprint(const char *folder, char fingerprint[SHA256_TEXT]);

#endif
