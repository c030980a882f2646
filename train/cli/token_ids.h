/* token_ids.h - reads token ids from a file or the command line. */
#ifndef FERRY_TRAIN_CLI_TOKEN_IDS_H
#define FERRY_TRAIN_CLI_TOKEN_IDS_H

#include "train/model/tokens.h"

/* Rows of token ids; ids_release afterwards, after a failure too. */
struct token_ids {
    struct batch batch; /* with lengths where they are not all the same */
    int32_t *ids;       /* on the heap */
    uint64_t *lengths;
};

/* Token ids from a tensor "input_ids" [sequences, length] (or [length]) of a safetensors file,
 * whole numbers of any type. With an "attention_mask" of the same shape, a row is the tokens where
 * the mask is 1, which must be contiguous. */
MUST_CHECK enum status ids_read(const char *path, struct token_ids *out, struct error *err);
/* Token ids "1,2,3"; sequences are separated by ";". */
MUST_CHECK enum status ids_parse(const char *text, struct token_ids *out, struct error *err);
void ids_release(struct token_ids *t);

/* ERR_UNSUPPORTED if rows differ in length. */
MUST_CHECK enum status ids_check_one_length(const struct token_ids *t, const char *path,
                                            struct error *err);

#endif
