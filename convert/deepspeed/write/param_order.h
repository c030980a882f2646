/* param_order.h - the order of torch's named_parameters().
 *
 * DeepSpeed's flat vectors have parameters in this order. A model map lists a family's parameters
 * by what they are of in Megatron, so that two modules may be interleaved (q.weight, k.weight,
 * q.bias, k.bias; w1, w3, w2). A module of torch is walked whole: first its own parameters, then
 * its modules in turn, those of one name with a number (layers.0, layers.1; w1, w2) by the number.
 */
#ifndef FERRY_CONVERT_DEEPSPEED_WRITE_PARAM_ORDER_H
#define FERRY_CONVERT_DEEPSPEED_WRITE_PARAM_ORDER_H

#include <stddef.h>

#include "common/arena.h"

/* The order of names[0..count), in which modules stand where their first parameter does:
 * order[0] is the index of the first name. In arena a. */
size_t *param_order(struct arena *a, const char *const *names, size_t count);

#endif
