/* blend.h - several datasets as one: the dataset and sample of each index, as
 * in Megatron-LM's BlendedDataset (megatron/core/datasets/blended_dataset.py,
 * helpers.cpp).
 *
 * Sample i comes from the dataset that lacks most: the largest weight * max(i,
 * 1) - used, in doubles, the first of equals. */
#ifndef FERRY_TRAIN_DATA_BLEND_H
#define FERRY_TRAIN_DATA_BLEND_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

enum { MAX_BLENDED = 32766 }; /* datasets: dataset_index is i16 */

struct blend {
    uint64_t size;
    int16_t *dataset_index;        /* [size] on the heap */
    int64_t *dataset_sample_index; /* [size] */
};

/* Divides count weights by their sum, computed as by NumPy. */
void blend_normalize(double *weights, size_t count);

/* Samples of a dataset in a blend of `size`, and samples to build: 0.005 more.
 */
uint64_t blend_share(uint64_t size, double weight);
uint64_t blend_share_to_build(uint64_t size, double weight);

/* size samples by normalised weights. ERR_MEMORY. */
MUST_CHECK enum status blend_by_weight(struct blend *b, const double *weights, size_t count,
                                       uint64_t size, struct error *err);
/* All samples of all datasets, which have `lengths`. */
MUST_CHECK enum status blend_exhaustive(struct blend *b, const uint64_t *lengths, size_t count,
                                        struct error *err);
void blend_release(struct blend *b);

#endif
