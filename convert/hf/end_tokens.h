/* end_tokens.h - the tokens that end a text, by the files of a Hugging Face
 * folder. */
#ifndef FERRY_CONVERT_HF_END_TOKENS_H
#define FERRY_CONVERT_HF_END_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

enum { MAX_END_TOKENS = 64 };

struct end_tokens {
    int32_t ids[MAX_END_TOKENS];
    size_t count;
    const char *from; /* the file that gives them; NULL: none does */
};

/* Reads eos_token_id, a number or a list, from the first of these that has it:
 * generation_config.json, config.json, text_config of config.json. No tokens if
 * none has it or hf_folder is NULL. ERR_CORRUPT if it is anything but token
 * ids, or more than MAX_END_TOKENS. */
MUST_CHECK enum status end_tokens_read(const char *hf_folder, struct end_tokens *out,
                                       struct error *err);

/* The token that ends a document: the first. -1: none. */
int64_t end_tokens_of_document(const struct end_tokens *e);

#endif
