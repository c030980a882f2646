/* tensor_stats.h - smallest, largest, mean and spread of tensors, by one
 * reading. */
#ifndef FERRY_CKPT_TENSOR_STATS_H
#define FERRY_CKPT_TENSOR_STATS_H

#include "ckpt/scan.h"
#include "common/progress.h"
#include "kernels/cpu/moments.h"

struct stats_options {
    unsigned threads;
    uint64_t max_memory;
    bool direct_io;
    enum progress_style progress;
};

/* Sets out[i] to the moments of tensors[i], a tensor of catalog c, or leaves it
 * 0 if moments_exist() is false for its dtype. Independent of the number of
 * threads. */
MUST_CHECK enum status tensor_stats(const struct catalog *c, const struct tensor *const *tensors,
                                    size_t count, const struct stats_options *o,
                                    struct moments *out, struct error *err);

#endif
