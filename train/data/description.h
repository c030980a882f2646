/* description.h - what Megatron-LM says of a dataset whose indices it keeps in files: JSON as
 * Python's json.dumps(indent=4) writes it. Its MD5 is part of their names.
 *
 *   PREFIX = MD5-GPTDataset-SPLIT or MD5-BlendedDataset-SPLIT
 *
 * (megatron/core/datasets/megatron_dataset.py, blended_dataset.py: unique_description). The path of
 * a dataset stands there as the user gave it. */
#ifndef FERRY_TRAIN_DATA_DESCRIPTION_H
#define FERRY_TRAIN_DATA_DESCRIPTION_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include "common/strbuf.h"
#include "train/data/gpt_dataset.h"

/* The tree of one dataset, for cJSON_Delete. split_text and shares: NULL if each split has paths of
 * its own. tokenizer: the object that stands for it, copied. */
cJSON *describe_gpt(const struct gpt_request *q, const char *split_text,
                    const struct split_shares *shares, const cJSON *tokenizer);

/* The tree of a blend; takes the trees of its datasets. Either size samples by weights, or, if
 * weights is NULL, all samples of datasets of these lengths. */
cJSON *describe_blend(cJSON **datasets, size_t count, enum data_split split, const double *weights,
                      const uint64_t *lengths, uint64_t size);

/* The text of a tree, in ASCII. */
void description_print(struct strbuf *out, const cJSON *tree);
/* PREFIX of a text (class: "GPTDataset"); false if libcrypto refuses MD5, as in FIPS mode. */
bool description_prefix(struct strbuf *out, const struct strbuf *text, const char *class,
                        enum data_split split);

#endif
