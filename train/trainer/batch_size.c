#include "train/trainer/batch_size.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/numbers.h"

const char batch_rampup_note[] =
    "--rampup-batch-size is ignored, as Megatron-LM ignores it; use --step-batch-size-schedule";

enum status batch_rampup_check(const char *const texts[3], struct error *err)
{
    static const char *const names[3] = {"start", "increment", "number of samples"};
    uint64_t n;
    for (int i = 0; i < 3; i++)
        if (!parse_u64(texts[i], &n))
            return fail(err, ERR_USAGE, "--rampup-batch-size: %s %s is no whole number", names[i],
                        texts[i]);
    return OK;
}

/* ---- constant ---- */

static enum status refuse_indivisible(uint64_t batch_size, uint64_t micro_batch_size,
                                      uint64_t dp_size, struct error *err)
{
    return fail(err, ERR_USAGE,
                "global batch size %" PRIu64 " is no multiple of micro batch size %" PRIu64
                " times data parallel size %" PRIu64,
                batch_size, micro_batch_size, dp_size);
}

/* micro_batch_size * dp_size, or 0 if that is no number above 0. */
static uint64_t samples_at_once(uint64_t micro_batch_size, uint64_t dp_size)
{
    uint64_t product;
    return mul_u64(micro_batch_size, dp_size, &product) ? product : 0;
}

enum status batch_size_constant(struct batch_size *b, uint64_t global_batch_size,
                                uint64_t micro_batch_size, uint64_t dp_size, bool decrease,
                                struct arena *a, struct error *err)
{
    const uint64_t unit = samples_at_once(micro_batch_size, dp_size);
    if (!unit || global_batch_size < unit || (global_batch_size % unit && !decrease))
        return refuse_indivisible(global_batch_size, micro_batch_size, dp_size, err);
    b->steps = arena_alloc(a, sizeof *b->steps);
    b->steps[0].batch_size = global_batch_size / unit * unit;
    b->num_steps = 1;
    b->is_schedule = false;
    return OK;
}

/* ---- a schedule ---- */

static double factor_of(char suffix)
{
    switch (toupper((unsigned char)suffix)) {
    case 'K':
        return 1e3;
    case 'M':
        return 1e6;
    case 'B':
        return 1e9;
    case 'T':
        return 1e12;
    default:
        return 0;
    }
}

/* "250", "1.5K", "2e3": a number from 0 on, cut to a whole one. */
static bool parse_count(const char *text, size_t length, uint64_t *out)
{
    char number[64];
    char *end;
    double factor = 1;
    if (!length || length >= sizeof number) return false;
    memcpy(number, text, length);
    number[length] = '\0';
    if (factor_of(number[length - 1]) > 0) {
        factor = factor_of(number[length - 1]);
        number[length - 1] = '\0';
    }
    if (!number[0] || strspn(number, "0123456789.eE+") != strlen(number)) return false;
    const double x = strtod(number, &end) * factor;
    if (*end || !(x >= 0 && x < 9007199254740992.0)) return false;
    *out = (uint64_t)x;
    return true;
}

static enum status parse_entry(struct batch_step *step, const char *entry, size_t length,
                               uint64_t seq_length, struct error *err)
{
    const char *colon = memchr(entry, ':', length);
    uint64_t tokens;
    if (!colon || !parse_count(entry, (size_t)(colon - entry), &tokens) ||
        !parse_count(colon + 1, length - (size_t)(colon + 1 - entry), &step->batch_size))
        return fail(err, ERR_USAGE,
                    "--step-batch-size-schedule: \"%.*s\" is not THRESHOLD:BATCH_SIZE", (int)length,
                    entry);
    if (!step->batch_size)
        return fail(err, ERR_USAGE, "--step-batch-size-schedule: \"%.*s\" has a batch size of 0",
                    (int)length, entry);
    step->from_samples = tokens / seq_length;
    return OK;
}

static int by_threshold(const void *x, const void *y)
{
    const struct batch_step *a = x, *b = y;
    return (a->from_samples > b->from_samples) - (a->from_samples < b->from_samples);
}

static enum status check_thresholds(const struct batch_size *b, struct error *err)
{
    if (!b->num_steps || b->steps[0].from_samples)
        return fail(err, ERR_USAGE, "--step-batch-size-schedule: no entry has the threshold 0");
    for (size_t i = 1; i < b->num_steps; i++)
        if (b->steps[i].from_samples == b->steps[i - 1].from_samples)
            return fail(err, ERR_USAGE,
                        "--step-batch-size-schedule: two entries begin at sample %" PRIu64,
                        b->steps[i].from_samples);
    return OK;
}

enum status batch_size_parse(struct batch_size *b, const char *schedule, uint64_t seq_length,
                             struct arena *a, struct error *err)
{
    static const char separators[] = ", \t\n";
    size_t capacity = 0;
    *b = (struct batch_size){.is_schedule = true};
    if (!seq_length) return fail(err, ERR_USAGE, "--step-batch-size-schedule needs --seq-length");
    for (const char *at = schedule + strspn(schedule, separators); *at;) {
        const size_t length = strcspn(at, separators);
        struct batch_step *step = ARENA_PUSH(a, b->steps, b->num_steps, capacity);
        TRY(parse_entry(step, at, length, seq_length, err));
        at += length;
        at += strspn(at, separators);
    }
    if (b->num_steps) qsort(b->steps, b->num_steps, sizeof *b->steps, by_threshold);
    return check_thresholds(b, err);
}

/* ---- use ---- */

static const struct batch_step *step_at(const struct batch_size *b, uint64_t consumed_samples)
{
    const struct batch_step *step = b->steps;
    while (step + 1 < b->steps + b->num_steps && step[1].from_samples <= consumed_samples)
        step++;
    return step;
}

uint64_t batch_size_at(const struct batch_size *b, uint64_t consumed_samples)
{
    return step_at(b, consumed_samples)->batch_size;
}

uint64_t batch_size_last(const struct batch_size *b)
{
    return b->steps[b->num_steps - 1].batch_size;
}

enum status batch_size_check(const struct batch_size *b, uint64_t consumed_samples,
                             uint64_t micro_batch_size, uint64_t dp_size, struct error *err)
{
    const uint64_t unit = samples_at_once(micro_batch_size, dp_size);
    const struct batch_step *const first = step_at(b, consumed_samples);
    for (const struct batch_step *step = first; step < b->steps + b->num_steps; step++) {
        if (!unit || step->batch_size % unit)
            return refuse_indivisible(step->batch_size, micro_batch_size, dp_size, err);
        if (step > first && step->batch_size < step[-1].batch_size)
            return fail(err, ERR_USAGE,
                        "the batch size falls from %" PRIu64 " to %" PRIu64 " at sample %" PRIu64
                        "; Megatron-LM lets it grow only",
                        step[-1].batch_size, step->batch_size, step->from_samples);
    }
    return OK;
}

uint64_t batch_size_micro_batches(const struct batch_size *b, uint64_t consumed_samples,
                                  uint64_t micro_batch_size, uint64_t dp_size)
{
    return batch_size_at(b, consumed_samples) / (micro_batch_size * dp_size);
}

/* The iterations of *step from consumed on, until `end` or the next step is reached. */
static uint64_t iterations_of_step(const struct batch_size *b, const struct batch_step *step,
                                   uint64_t consumed, uint64_t end)
{
    const bool is_last = step + 1 == b->steps + b->num_steps;
    const uint64_t until = is_last ? end : min_u64(end, step[1].from_samples);
    return until > consumed ? ceil_div_u64(until - consumed, step->batch_size) : 0;
}

enum status batch_size_iterations(const struct batch_size *b, uint64_t train_samples,
                                  uint64_t *iterations, struct error *err)
{
    uint64_t consumed = 0;
    *iterations = 0;
    if (!b->is_schedule) *iterations = train_samples / b->steps[0].batch_size;
    for (size_t i = 0; b->is_schedule && i < b->num_steps; i++) {
        const uint64_t n = iterations_of_step(b, &b->steps[i], consumed, train_samples);
        *iterations += n;
        consumed += n * b->steps[i].batch_size;
    }
    if (!*iterations)
        return fail(err, ERR_USAGE, "--train-samples %" PRIu64 " is less than a batch of %" PRIu64,
                    train_samples, b->steps[0].batch_size);
    return OK;
}

uint64_t batch_size_samples(const struct batch_size *b, uint64_t iterations)
{
    uint64_t consumed = 0, samples;
    for (size_t i = 0; i < b->num_steps && iterations; i++) {
        const uint64_t n =
            min_u64(iterations, iterations_of_step(b, &b->steps[i], consumed, UINT64_MAX));
        if (!mul_u64(n, b->steps[i].batch_size, &samples) || !add_u64(consumed, samples, &consumed))
            return UINT64_MAX;
        iterations -= n;
    }
    return consumed;
}
