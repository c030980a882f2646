/* weights.h - digests of loaded tensors: each rank digests its parts in memory,
 * and rank 0 joins them. So weights in memory can be compared with files and
 * other runs, at any layout, on any device. */
#ifndef FERRY_TRAIN_MODEL_WEIGHTS_H
#define FERRY_TRAIN_MODEL_WEIGHTS_H

#include "ckpt/digest.h"
#include "train/model/model.h"

/* Gets a tensor's digest over all ranks, with the dtype in memory. */
typedef enum status weights_visit(void *context, const struct tensor_digest *d, struct error *err);

/* Collective, after model_load. Calls visit on rank 0 for each tensor, in the
 * order of the catalog. ERR_RANK, naming the tensor and both ranks, if two
 * ranks have different copies of a part. ERR_OURS if an element of a tensor is
 * on no rank, or in two parts. */
MUST_CHECK enum status weights_digest(struct model *m, weights_visit *visit, void *context,
                                      struct error *err);

#endif
