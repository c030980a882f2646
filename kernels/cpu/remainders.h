/* remainders.h - F32 in two halves: a weight of BF16, and the rest of its
 * master.
 *
 * Transformer Engine's FusedAdam (store_param_remainders) keeps the lower 16
 * bits of a master weight only, as a signed number. The weight, rounded half
 * up, has the upper ones:
 *
 *   master = (weight - (remainder < 0)) << 16 | (remainder & 0xffff)
 *
 * Any remainder beside any weight gives a master that rounds to the weight.
 *
 * Source: transformer_engine/common/multi_tensor/adam.cu. */
#ifndef FERRY_KERNELS_CPU_REMAINDERS_H
#define FERRY_KERNELS_CPU_REMAINDERS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/dtype.h"

/* Whether a number is whole and has 16 bits. */
bool is_remainder(double number);

/* masters[i] = the F32 of weights[i], BF16, and remainders[i], which are I16 or
 * such numbers in F32; these may be the array of masters itself. Returns the
 * count; less than n if remainders[that] is no remainder. */
size_t join_remainders(void *masters, const void *weights, const void *remainders, enum dtype dtype,
                       size_t n);

#endif
