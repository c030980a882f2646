/* batch_size.h - how many samples each iteration takes: Megatron-LM's calculators of micro-batches
 * (megatron/core/num_microbatches_calculator.py).
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

/* --global-batch-size. ERR_USAGE unless it is a multiple of micro_batch_size * dp_size. */
MUST_CHECK enum status batch_size_constant(struct batch_size *b, uint64_t global_batch_size,
                                           uint64_t micro_batch_size, uint64_t dp_size,
                                           struct arena *a, struct error *err);
/* --step-batch-size-schedule, as the command line has parsed it; steps are borrowed. */
void batch_size_schedule(struct batch_size *b, const struct batch_size_step *steps,
                         size_t num_steps);

/* The samples of the iteration that begins at consumed_samples. */
uint64_t batch_size_at(const struct batch_size *b, uint64_t consumed_samples);
/* The last batch size of the schedule: Megatron's global_batch_size; and the largest of all. */
uint64_t batch_size_last(const struct batch_size *b);
uint64_t batch_size_most(const struct batch_size *b);

/* Whether a run that begins at consumed_samples and ends at end_samples can keep to it: ERR_USAGE
 * if micro_batch_size * dp_size does not divide a batch size that is still to come, or one is
 * smaller than that before it (Megatron-LM stops there). */
MUST_CHECK enum status batch_size_check(const struct batch_size *b, uint64_t consumed_samples,
                                        uint64_t end_samples, uint64_t micro_batch_size,
                                        uint64_t dp_size, struct error *err);

/* The micro-batches of that iteration on each data parallel rank, of sizes that batch_size_check
 * accepts. Where the number grows, Megatron-LM saves a checkpoint in front of the iteration. */
uint64_t batch_size_micro_batches(const struct batch_size *b, uint64_t consumed_samples,
                                  uint64_t micro_batch_size, uint64_t dp_size);

/* The iterations of a run over train_samples, from the start: of a constant size whole batches
 * only, of a schedule until the samples are reached. ERR_USAGE if there are none. */
MUST_CHECK enum status batch_size_iterations(const struct batch_size *b, uint64_t train_samples,
                                             uint64_t *iterations, struct error *err);
/* The samples that the first `iterations` iterations consume, UINT64_MAX if more than fit. */
uint64_t batch_size_samples(const struct batch_size *b, uint64_t iterations);

#endif
