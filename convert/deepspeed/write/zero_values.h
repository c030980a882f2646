/* zero_values.h - Python values of DeepSpeed's files, for writing. In arena a.
 *
 * Classes are those of DeepSpeed 0.19: deepspeed/runtime/fp16/loss_scaler.py,
 * runtime/zero/config.py, utils/tensor_fragment.py. */
#ifndef FERRY_CONVERT_DEEPSPEED_WRITE_ZERO_VALUES_H
#define FERRY_CONVERT_DEEPSPEED_WRITE_ZERO_VALUES_H

#include "ckpt/training.h"
#include "formats/value.h"

/* An OrderedDict; add its pairs to the dict *pairs. */
struct value *zero_ordered_dict(struct arena *a, struct value **pairs);
/* torch.Size */
struct value *zero_size(struct arena *a, unsigned num_dims, const uint64_t *shape);
/* ZeroStageEnum */
struct value *zero_stage_value(struct arena *a, unsigned stage);
/* fragment_address: elements [start, start + numel) of a rank's partition. */
struct value *zero_fragment(struct arena *a, uint64_t start, uint64_t numel);
/* LossScaler, or with is_dynamic a DynamicLossScaler with DeepSpeed's defaults
 * at the training's position. */
struct value *zero_loss_scaler(struct arena *a, bool is_dynamic, const struct training *run);
/* v if it consists of numbers, texts and containers; else NULL. A file's
 * classes and tensors are not passed on: the former could run code in the
 * reader, the latter's bytes are in that file. */
const struct value *zero_plain(const struct value *v);

#endif
