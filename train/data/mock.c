/* mock.c - mock data: x = 6364136223846793005 x + 1442695040888963407 mod 2^64
 * (Knuth's MMIX), first from mock_seed; the next token is (x >> 33) mod
 * vocab_size. Samples of seq_length + 1 tokens follow each other: inputs are
 * all but the last token, labels all but the first. A jump reaches sample i. */
#include "train/data/data_internal.h"

/* x -> factor * x + addend, modulo 2^64 */
struct steps {
    uint64_t factor, addend;
};

static const struct steps one_step = {6364136223846793005u, 1442695040888963407u};

/* First a, then b. */
static struct steps compose_steps(struct steps a, struct steps b)
{
    return (struct steps){b.factor * a.factor, b.factor * a.addend + b.addend};
}

static uint64_t apply_steps(struct steps s, uint64_t x)
{
    return s.factor * x + s.addend;
}

/* `count` steps, by repeated squaring. */
static struct steps steps_of(uint64_t count)
{
    struct steps all = {1, 0}, square = one_step;
    for (; count; count >>= 1, square = compose_steps(square, square))
        if (count & 1) all = compose_steps(all, square);
    return all;
}

static enum status open_mock(struct data *d, struct error *err)
{
    (void)err;
    for (unsigned k = 0; k < NUM_SPLITS; k++)
        d->num_samples[k] = UINT64_MAX;
    return OK;
}

static enum status read_mock(const struct data *d, enum data_split split, uint64_t sample,
                             struct data_rows *row, struct error *err)
{
    const uint64_t length = d->options.seq_length, vocab = d->options.vocab_size;
    uint64_t x = apply_steps(steps_of(sample * (length + 1)), d->options.mock_seed);
    (void)split;
    (void)err;
    for (uint64_t i = 0; i <= length; i++) {
        x = apply_steps(one_step, x);
        const int32_t token = (int32_t)((x >> 33) % vocab);
        if (i < length) row->tokens[i] = token;
        if (i > 0) row->labels[i - 1] = token;
    }
    for (uint64_t i = 0; i < length; i++) {
        row->positions[i] = (int32_t)i;
        row->loss_mask[i] = 1;
        row->starts[i] = i == 0;
    }
    return OK;
}

static void describe_mock(const struct data *d, struct strbuf *out)
{
    (void)d;
    strbuf_printf(out, "  mock tokens\n");
}

const struct data_kind data_kind_mock = {
    .open = open_mock, .read = read_mock, .describe = describe_mock};
