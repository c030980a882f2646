/* companions.h - small files copied with a model: config.json, tokenizer, code,
 * licence of a Hugging Face folder; a Megatron iteration's tokenizer. */
#ifndef FERRY_CONVERT_COMPANIONS_H
#define FERRY_CONVERT_COMPANIONS_H

#include <stdbool.h>

#include "common/sha256.h"
#include "common/status.h"

/* Whether a file of this name is copied with a model: *.json *.model *.txt
 * *.jinja *.py LICENSE* README*, except weight indexes, training.json,
 * ferry.json, ferry-names.json, ferry-model.json and integrity.json. */
bool is_companion(const char *name);
/* Copies all companions from one folder to another, but for the file `without`
 * (NULL: none); existing files stay. */
MUST_CHECK enum status copy_companions(const char *from, const char *to, const char *without,
                                       bool durable, struct error *err);
/* SHA-256 of the names, sizes and times of a folder's companions. folder NULL:
 * none. */
void companions_fingerprint(const char *folder, char fingerprint[SHA256_TEXT]);

/* ---- the tokenizer of a Megatron iteration: a folder ---- */

/* Why a file of the folder is not copied, as a noun ("a link"); NULL: it is.
 * beside_model: into a Hugging Face folder, which takes companions without
 * config.json. */
const char *tokenizer_file_stays(const char *folder, const char *name, bool beside_model);
/* The same as above for its files; copy_tokenizer() creates `to` if needed. */
MUST_CHECK enum status copy_tokenizer(const char *from, const char *to, bool beside_model,
                                      bool durable, struct error *err);
void tokenizer_fingerprint(const char *folder, char fingerprint[SHA256_TEXT]);

#endif
