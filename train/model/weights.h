/* weights.h - digests of the loaded tensors: each rank digests its parts in memory, and rank 0 adds
 * them up.
 *
 * Weights in memory can so be compared with files and with other runs, at any layout and on any
 * device. */
#ifndef FERRY_TRAIN_MODEL_WEIGHTS_H
#define FERRY_TRAIN_MODEL_WEIGHTS_H

#include "ckpt/digest.h"
#include "train/model/model.h"

/* A tensor's digest over all ranks; its dtype is that of memory. */
typedef enum status weights_visit(void *context, const struct tensor_digest *d, struct error *err);

/* Calls visit on rank 0 for each tensor that the ranks hold, in the order of the catalog. All ranks
 * call it, after model_load. ERR_RANK if two ranks have different copies of one part: the message
 * names the tensor and both ranks. ERR_OURS if an element of a tensor is on no rank, or in two
 * parts. */
MUST_CHECK enum status weights_digest(struct model *m, weights_visit *visit, void *context,
                                      struct error *err);

#endif
