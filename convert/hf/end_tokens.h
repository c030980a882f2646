/* end_tokens.h - which tokens end a text, as the folder of a Hugging Face model says. */
#ifndef FERRY_CONVERT_HF_END_TOKENS_H
#define FERRY_CONVERT_HF_END_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

enum { MAX_END_TOKENS = 64 };

struct end_tokens {
    int32_t ids[MAX_END_TOKENS];
    size_t count;
    const char *from; /* the name of the file that has them; NULL: none has */
};

/* eos_token_id, a number or a list of them: of generation_config.json, else of config.json, else of
 * its text_config. None where no file has it, or hf_folder is NULL. ERR_CORRUPT where it is
 * something else than numbers, or more of them. */
MUST_CHECK enum status end_tokens_read(const char *hf_folder, struct end_tokens *out,
                                       struct error *err);

#endif
