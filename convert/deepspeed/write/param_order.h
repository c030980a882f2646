/* param_order.h - the order of torch's named_parameters(), which DeepSpeed's
 * flat vectors have.
 *
 * A model map lists a family's parameters by their Megatron tensors, so two
 * modules may be interleaved (q.weight, k.weight, q.bias, k.bias; w1, w3, w2).
 * torch walks a module whole: its parameters, then its submodules in turn,
 * numbered ones (layers.0, layers.1; w1, w2) by number. */
#ifndef FERRY_CONVERT_DEEPSPEED_WRITE_PARAM_ORDER_H
#define FERRY_CONVERT_DEEPSPEED_WRITE_PARAM_ORDER_H

#include <stddef.h>

#include "common/arena.h"

/* The order of names[0..count), modules at their first parameter's place:
 * order[0] is the index of the first name. In arena a. */
size_t *param_order(struct arena *a, const char *const *names, size_t count);

#endif
