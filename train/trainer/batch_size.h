/* batch_size.h - how many samples each iteration takes: Megatron-LM's calculators of micro-batches
 * (megatron/core/num_microbatches_calculator.py).
 *
 * The global batch size is constant, or a schedule of steps by consumed samples
 * (--step-batch-size-schedule). Nothing here does I/O. */
#ifndef FERRY_TRAIN_TRAINER_BATCH_SIZE_H
#define FERRY_TRAIN_TRAINER_BATCH_SIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/arena.h"
#include "common/status.h"

struct batch_step {
    uint64_t from_samples; /* consumed samples from which on it holds */
    uint64_t batch_size;
};

struct batch_size {
    struct batch_step *steps; /* [num_steps], ascending, the first from 0; in an arena */
    size_t num_steps;
    bool is_schedule; /* Megatron-LM counts the iterations of a constant size otherwise */
};

/* --global-batch-size. decrease: as --decrease-batch-size-if-needed, the largest multiple of
 * micro_batch_size * dp_size that is not above it. ERR_USAGE unless it is such a multiple. */
MUST_CHECK enum status batch_size_constant(struct batch_size *b, uint64_t global_batch_size,
                                           uint64_t micro_batch_size, uint64_t dp_size,
                                           bool decrease, struct arena *a, struct error *err);
/* "0:4,1536:8" or "0:768 250B:1536": THRESHOLD:BATCH_SIZE, separated by commas or blanks, in any
 * order. Thresholds are in tokens and count whole samples of seq_length; K, M, B and T are powers
 * of 1000, "1.5K" is 1500. ERR_USAGE names the entry: not of that form, no first threshold of 0,
 * two thresholds of one sample, a batch size of 0. */
MUST_CHECK enum status batch_size_parse(struct batch_size *b, const char *schedule,
                                        uint64_t seq_length, struct arena *a, struct error *err);

/* The samples of the iteration that begins at consumed_samples. */
uint64_t batch_size_at(const struct batch_size *b, uint64_t consumed_samples);
/* The last batch size of the schedule: Megatron's global_batch_size. */
uint64_t batch_size_last(const struct batch_size *b);

/* Whether a run that begins at consumed_samples can keep to it: ERR_USAGE if micro_batch_size *
 * dp_size does not divide a batch size that is still to come, or one is smaller than that before it
 * (Megatron-LM stops there). */
MUST_CHECK enum status batch_size_check(const struct batch_size *b, uint64_t consumed_samples,
                                        uint64_t micro_batch_size, uint64_t dp_size,
                                        struct error *err);

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

/* --rampup-batch-size START INCREMENT SAMPLES: Megatron-LM (d98e8a64ddf3) takes it and ignores it,
 * and so do we. ERR_USAGE unless the three texts are whole numbers; else the caller says
 * batch_rampup_note. */
MUST_CHECK enum status batch_rampup_check(const char *const texts[3], struct error *err);
extern const char batch_rampup_note[];

#endif
