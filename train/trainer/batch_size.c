#include "train/trainer/batch_size.h"

#include <inttypes.h>

#include "common/checked.h"

/* ---- constant ---- */

static enum status refuse_indivisible(uint64_t batch_size, uint64_t micro_batch_size,
                                      uint64_t dp_size, struct error *err)
{
    return fail(err, ERR_USAGE,
                "global batch size %" PRIu64 " is not a multiple of micro batch size %" PRIu64
                " times data parallel size %" PRIu64,
                batch_size, micro_batch_size, dp_size);
}

/* micro_batch_size * dp_size; 0 if it overflows. */
static uint64_t samples_at_once(uint64_t micro_batch_size, uint64_t dp_size)
{
    uint64_t product;
    return mul_u64(micro_batch_size, dp_size, &product) ? product : 0;
}

enum status batch_size_constant(struct batch_size *b, uint64_t global_batch_size,
                                uint64_t micro_batch_size, uint64_t dp_size, struct arena *a,
                                struct error *err)
{
    const uint64_t unit = samples_at_once(micro_batch_size, dp_size);
    if (!unit || global_batch_size < unit || global_batch_size % unit)
        return refuse_indivisible(global_batch_size, micro_batch_size, dp_size, err);
    struct batch_size_step *step = arena_alloc(a, sizeof *step);
    step->global_batch_size = global_batch_size;
    *b = (struct batch_size){.steps = step, .num_steps = 1};
    return OK;
}

void batch_size_schedule(struct batch_size *b, const struct batch_size_step *steps,
                         size_t num_steps)
{
    *b = (struct batch_size){.steps = steps, .num_steps = num_steps, .is_schedule = true};
}

/* ---- use ---- */

static const struct batch_size_step *step_at(const struct batch_size *b, uint64_t consumed_samples)
{
    const struct batch_size_step *step = b->steps;
    while (step + 1 < b->steps + b->num_steps && step[1].from_sample <= consumed_samples)
        step++;
    return step;
}

uint64_t batch_size_at(const struct batch_size *b, uint64_t consumed_samples)
{
    return step_at(b, consumed_samples)->global_batch_size;
}

uint64_t batch_size_last(const struct batch_size *b)
{
    return b->steps[b->num_steps - 1].global_batch_size;
}

uint64_t batch_size_most(const struct batch_size *b)
{
    uint64_t most = 0;
    for (size_t i = 0; i < b->num_steps; i++)
        most = max_u64(most, b->steps[i].global_batch_size);
    return most;
}

enum status batch_size_check(const struct batch_size *b, uint64_t consumed_samples,
                             uint64_t end_samples, uint64_t micro_batch_size, uint64_t dp_size,
                             struct error *err)
{
    const uint64_t unit = samples_at_once(micro_batch_size, dp_size);
    const struct batch_size_step *const first = step_at(b, consumed_samples);
    for (const struct batch_size_step *step = first; step < b->steps + b->num_steps; step++) {
        if (step > first && step->from_sample >= end_samples) break;
        if (!unit || step->global_batch_size % unit)
            return refuse_indivisible(step->global_batch_size, micro_batch_size, dp_size, err);
        if (step > first && step->global_batch_size < step[-1].global_batch_size)
            return fail(err, ERR_USAGE,
                        "the batch size falls from %" PRIu64 " to %" PRIu64 " at sample %" PRIu64
                        "; it may only grow, as in Megatron-LM",
                        step[-1].global_batch_size, step->global_batch_size, step->from_sample);
    }
    return OK;
}

uint64_t batch_size_micro_batches(const struct batch_size *b, uint64_t consumed_samples,
                                  uint64_t micro_batch_size, uint64_t dp_size)
{
    return batch_size_at(b, consumed_samples) / (micro_batch_size * dp_size);
}

/* Iterations of *step from `consumed` on, up to `end` or the next step. */
static uint64_t iterations_of_step(const struct batch_size *b, const struct batch_size_step *step,
                                   uint64_t consumed, uint64_t end)
{
    const bool is_last = step + 1 == b->steps + b->num_steps;
    const uint64_t until = is_last ? end : min_u64(end, step[1].from_sample);
    return until > consumed ? ceil_div_u64(until - consumed, step->global_batch_size) : 0;
}

enum status batch_size_iterations(const struct batch_size *b, uint64_t train_samples,
                                  uint64_t *iterations, struct error *err)
{
    uint64_t consumed = 0;
    *iterations = 0;
    if (!b->is_schedule) *iterations = train_samples / b->steps[0].global_batch_size;
    for (size_t i = 0; b->is_schedule && i < b->num_steps; i++) {
        const uint64_t n = iterations_of_step(b, &b->steps[i], consumed, train_samples);
        *iterations += n;
        consumed += n * b->steps[i].global_batch_size;
    }
    if (!*iterations)
        return fail(err, ERR_USAGE, "--train-samples %" PRIu64 " is less than a batch of %" PRIu64,
                    train_samples, b->steps[0].global_batch_size);
    return OK;
}

uint64_t batch_size_samples(const struct batch_size *b, uint64_t iterations)
{
    uint64_t consumed = 0, samples;
    for (size_t i = 0; i < b->num_steps && iterations; i++) {
        const uint64_t n =
            min_u64(iterations, iterations_of_step(b, &b->steps[i], consumed, UINT64_MAX));
        if (!mul_u64(n, b->steps[i].global_batch_size, &samples) ||
            !add_u64(consumed, samples, &consumed))
            return UINT64_MAX;
        iterations -= n;
    }
    return consumed;
}
