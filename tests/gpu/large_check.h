/* large_check.h - compares two kernels of a device for one op, where the CPU
 * would take too long. Prints lines of ok, FAILED and skipped as ops_check
 * does; false if one failed. */
#ifndef FERRY_TESTS_GPU_LARGE_CHECK_H
#define FERRY_TESTS_GPU_LARGE_CHECK_H

#include "kernels/device.h"

/* Attention of bf16 and f16 at prefill sizes: cuDNN's and attention_sm90
 * against mma, compared and timed. */
bool check_large(const struct device *d);

/* Each kernel whose name ends in _sm90 against the portable one, on
 * random shapes. */
bool check_sm90(const struct device *d, uint64_t seed, unsigned trials, bool small);

#endif
