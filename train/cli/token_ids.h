/* token_ids.h - reads token ids from a file or the command line. */
#ifndef FERRY_TRAIN_CLI_TOKEN_IDS_H
#define FERRY_TRAIN_CLI_TOKEN_IDS_H

#include "train/model/tokens.h"

/* Rows of token ids. Call ids_release() afterwards, also after a failure. */
struct token_ids {
    struct batch batch; /* has lengths if they differ */
    int32_t *ids;       /* on the heap */
    uint64_t *lengths;
};

/* Reads tensor "input_ids" [sequences, length] (or [length]) of a safetensors
 * file, integers of any dtype. With "attention_mask" of the same shape, a row
 * is the tokens under its ones, which must be contiguous. */
MUST_CHECK enum status ids_read(const char *path, struct token_ids *out, struct error *err);
/* Parses token ids "1,2,3"; ";" separates sequences. */
MUST_CHECK enum status ids_parse(const char *text, struct token_ids *out, struct error *err);
void ids_release(struct token_ids *t);

/* ERR_UNSUPPORTED if rows differ in length. */
MUST_CHECK enum status ids_check_one_length(const struct token_ids *t, const char *path,
                                            struct error *err);

#endif
