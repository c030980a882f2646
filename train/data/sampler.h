/* sampler.h - the samples of a rank's next micro-batch, as in Megatron-LM's
 * MegatronPretrainingSampler.
 *
 * All ranks walk through one stream of samples. A micro-batch of all ranks is
 * micro_batch_size * dp_size consecutive samples; data-parallel rank d takes [d
 * * micro, (d + 1) * micro) of it. So a global batch has the same samples for
 * any dp. */
#ifndef FERRY_TRAIN_DATA_SAMPLER_H
#define FERRY_TRAIN_DATA_SAMPLER_H

#include <stdint.h>

struct sampler {
    uint64_t consumed; /* samples of the stream read by all ranks */
    uint64_t micro_batch_size;
    uint64_t dp_rank, dp_size;
};

/* Samples of one micro-batch on all ranks. */
static inline uint64_t sampler_stride(const struct sampler *s)
{
    return s->micro_batch_size * s->dp_size;
}

/* First of this rank's micro_batch_size next samples, which are consecutive. */
static inline uint64_t sampler_first(const struct sampler *s)
{
    return s->consumed + s->dp_rank * s->micro_batch_size;
}

static inline void sampler_advance(struct sampler *s)
{
    s->consumed += sampler_stride(s);
}

/* Whole micro-batches of all ranks left in num_samples; the rest is dropped. */
static inline uint64_t sampler_left(const struct sampler *s, uint64_t num_samples)
{
    return s->consumed < num_samples ? (num_samples - s->consumed) / sampler_stride(s) : 0;
}

#endif
