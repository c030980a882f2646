/* sampler.h - which samples a rank reads for its next micro-batch, as Megatron-LM's
 * MegatronPretrainingSampler has it.
 *
 * All ranks walk through one stream of samples. Each group of micro_batch_size * dp_size
 * consecutive samples is one micro-batch for all; data-parallel rank d takes [d * micro, (d + 1) *
 * micro) of it. So the samples of a global batch are the same whatever dp is. */
#ifndef FERRY_TRAIN_DATA_SAMPLER_H
#define FERRY_TRAIN_DATA_SAMPLER_H

#include <stdint.h>

struct sampler {
    uint64_t consumed; /* samples of the stream that all ranks have read */
    uint64_t micro_batch_size;
    uint64_t dp_rank, dp_size;
};

/* Samples that all ranks read for one micro-batch. */
static inline uint64_t sampler_stride(const struct sampler *s)
{
    return s->micro_batch_size * s->dp_size;
}

/* The first of micro_batch_size consecutive samples, which are this rank's next ones. */
static inline uint64_t sampler_first(const struct sampler *s)
{
    return s->consumed + s->dp_rank * s->micro_batch_size;
}

static inline void sampler_advance(struct sampler *s)
{
    s->consumed += sampler_stride(s);
}

/* Whole micro-batches for all ranks that are left of num_samples; what remains is dropped. */
static inline uint64_t sampler_left(const struct sampler *s, uint64_t num_samples)
{
    return s->consumed < num_samples ? (num_samples - s->consumed) / sampler_stride(s) : 0;
}

#endif
