/* batch_size.h - samples of each iteration: Megatron-LM's calculators of
 * micro-batches (megatron/core/num_microbatches_calculator.py).
 *
 * The global batch size is constant, or a schedule of steps by consumed samples
 * (--step-batch-size-schedule). Nothing here does I/O. */
#ifndef FERRY_TRAIN_TRAINER_BATCH_SIZE_H
#define FERRY_TRAIN_TRAINER_BATCH_SIZE_H

#include "common/status.h"
#include "train/trainer/train_options.h"

struct batch_size {
    const struct batch_size_step *steps; /* [num_steps], ascending, the first from sample 0 */
    size_t num_steps;
    bool is_schedule; /* Megatron-LM counts the iterations of a constant size otherwise */
};

/* --global-batch-size. ERR_USAGE unless it is a multiple of micro_batch_size *
 * dp_size. */
MUST_CHECK enum status batch_size_constant(struct batch_size *b, uint64_t global_batch_size,
                                           uint64_t micro_batch_size, uint64_t dp_size,
                                           struct arena *a, struct error *err);
/* --step-batch-size-schedule, parsed by the command line; steps are borrowed. */
void batch_size_schedule(struct batch_size *b, const struct batch_size_step *steps,
                         size_t num_steps);

/* Samples of the iteration that begins at consumed_samples. */
uint64_t batch_size_at(const struct batch_size *b, uint64_t consumed_samples);
/* The last batch size of the schedule, Megatron's global_batch_size; and the
 * largest. */
uint64_t batch_size_last(const struct batch_size *b);
uint64_t batch_size_most(const struct batch_size *b);

/* Checks a run from consumed_samples to end_samples: ERR_USAGE if
 * micro_batch_size * dp_size does not divide a batch size still to come, or one
 * is smaller than the one before (Megatron-LM stops there). */
MUST_CHECK enum status batch_size_check(const struct batch_size *b, uint64_t consumed_samples,
                                        uint64_t end_samples, uint64_t micro_batch_size,
                                        uint64_t dp_size, struct error *err);

/* Micro-batches of that iteration on each data parallel rank; batch_size_check
 * must accept the sizes. Where the number grows, Megatron-LM saves a checkpoint
 * before the iteration. */
uint64_t batch_size_micro_batches(const struct batch_size *b, uint64_t consumed_samples,
                                  uint64_t micro_batch_size, uint64_t dp_size);

/* Iterations of a whole run over train_samples: with a constant size whole
 * batches only, with a schedule until the samples are reached. ERR_USAGE if
 * none. */
MUST_CHECK enum status batch_size_iterations(const struct batch_size *b, uint64_t train_samples,
                                             uint64_t *iterations, struct error *err);
/* Samples consumed by the first `iterations` iterations; UINT64_MAX if they do
 * not fit. */
uint64_t batch_size_samples(const struct batch_size *b, uint64_t iterations);

#endif
