/* companions.h - small files copied with a Hugging Face model: config.json,
 * tokenizer, code, licence. */
#ifndef FERRY_CONVERT_COMPANIONS_H
#define FERRY_CONVERT_COMPANIONS_H

#include <stdbool.h>

#include "common/sha256.h"
#include "common/status.h"

/* Whether a file of this name is copied with a model: *.json *.model *.txt
 * *.jinja *.py LICENSE* README*, except weight indexes, training.json,
 * ferry.json and integrity.json. */
bool is_companion(const char *name);
/* Copies all companions from one folder to another; existing files stay. */
MUST_CHECK enum status copy_companions(const char *from, const char *to, bool durable,
                                       struct error *err);
/* SHA-256 of the names, sizes and times of a folder's companions. folder NULL:
 * none. */
void companions_fingerprint(const char *folder, char fingerprint[SHA256_TEXT]);

#endif
