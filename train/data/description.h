/* description.h - Megatron-LM's description of a dataset with cached indices:
 * JSON as by Python's json.dumps(indent=4). Its MD5 is part of their file
 * names.
 *
 *   PREFIX = MD5-GPTDataset-SPLIT or MD5-BlendedDataset-SPLIT
 *
 * (megatron/core/datasets/megatron_dataset.py, blended_dataset.py:
 * unique_description). It has the path of a dataset as given by the user. */
#ifndef FERRY_TRAIN_DATA_DESCRIPTION_H
#define FERRY_TRAIN_DATA_DESCRIPTION_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include "common/strbuf.h"
#include "train/data/gpt_dataset.h"

/* Tree of a dataset, for cJSON_Delete. split_text and shares: NULL if each
 * split has its own paths. tokenizer: its object, copied. */
cJSON *describe_gpt(const struct gpt_request *q, const char *split_text,
                    const struct split_shares *shares, const cJSON *tokenizer);

/* Tree of a blend; takes the trees of its datasets. It has `size` samples by
 * weights, or, if weights is NULL, all samples of datasets of these lengths. */
cJSON *describe_blend(cJSON **datasets, size_t count, enum data_split split, const double *weights,
                      const uint64_t *lengths, uint64_t size);

/* The text of a tree, in ASCII. */
void description_print(struct strbuf *out, const cJSON *tree);
/* Appends PREFIX of a text (class: "GPTDataset"); false if libcrypto refuses
 * MD5, as in FIPS mode. */
bool description_prefix(struct strbuf *out, const struct strbuf *text, const char *class,
                        enum data_split split);

#endif
