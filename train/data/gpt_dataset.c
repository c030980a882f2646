#include "train/data/gpt_dataset.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "train/data/shuffle.h"

uint64_t gpt_dataset_tokens(const struct gpt_dataset *d)
{
    return d->request.seq_length + !d->request.no_extra_token;
}

static enum status fail_split(const struct gpt_dataset *d, enum status code, const char *what,
                              struct error *err)
{
    const struct gpt_request *q = &d->request;
    return fail(err, code, "%s: sequences [%" PRIu64 ", %" PRIu64 ") for %s: %s", q->path, q->first,
                q->past, split_names[q->split], what);
}

static enum status fail_empty(const struct gpt_request *q, struct error *err)
{
    const uint64_t all = q->file->num_sequences;
    if (!all)
        return fail(err, ERR_UNSUPPORTED, "%s: no document for %s", q->path, split_names[q->split]);
    return fail(err, ERR_UNSUPPORTED,
                "%s: --split leaves no document for %s: there %s %" PRIu64
                " in all; --split 1,0,0 trains on all of them",
                q->path, split_names[q->split], all == 1 ? "is" : "are", all);
}

/* ---- how many ---- */

static enum status read_lengths(struct gpt_dataset *d, struct error *err)
{
    const struct gpt_request *q = &d->request;
    const uint64_t count = q->past - q->first;
    d->lengths = calloc(count + 1, sizeof *d->lengths);
    if (!d->lengths) return fail_split(d, ERR_MEMORY, "no memory for their lengths", err);
    TRY(indexed_dataset_lengths(q->file, q->first, count, d->lengths, err));
    d->tokens_per_epoch = 0;
    for (uint64_t i = 0; i < count; i++)
        d->tokens_per_epoch += d->lengths[i]; /* the open file guarantees no overflow */
    return OK;
}

static uint64_t samples_in(const struct gpt_dataset *d, uint64_t tokens)
{
    return (tokens - !d->request.no_extra_token) / d->request.seq_length;
}

/* Rounded up in float32, as in helpers.cpp. */
static uint64_t samples_rounded_up(const struct gpt_dataset *d, uint64_t tokens)
{
    const float all = (float)(tokens - !d->request.no_extra_token);
    return (uint64_t)ceilf(all / (float)d->request.seq_length);
}

/* Fewest epochs with the requested samples. */
static enum status count_epochs(struct gpt_dataset *d, struct error *err)
{
    const struct gpt_request *q = &d->request;
    uint64_t wanted, all;
    d->num_epochs = 1;
    if (q->num_samples == ONE_EPOCH) return OK;
    if (!mul_u64(q->num_samples, q->seq_length, &wanted) ||
        !add_u64(wanted, !q->no_extra_token, &wanted))
        return fail_split(d, ERR_USAGE, "the requested tokens overflow 64 bits", err);
    d->num_epochs = max_u64(1, ceil_div_u64(wanted, d->tokens_per_epoch));
    if (!mul_u64(d->num_epochs, d->tokens_per_epoch, &all))
        return fail_split(d, ERR_USAGE, "the requested tokens overflow 64 bits", err);
    return OK;
}

/* Whether the last epoch is shuffled separately; *before: samples in front of
 * it. */
static bool last_is_apart(const struct gpt_dataset *d, uint64_t *before)
{
    if (d->num_epochs == 1) return false;
    *before = samples_in(d, (d->num_epochs - 1) * d->tokens_per_epoch);
    const double in_epoch = (double)samples_in(d, d->tokens_per_epoch);
    return d->request.num_samples - *before < (uint64_t)(0.80 * in_epoch);
}

static enum status count_all(struct gpt_dataset *d, struct error *err)
{
    const struct gpt_request *q = &d->request;
    uint64_t before;
    if (q->past == q->first) return fail_empty(q, err);
    if (d->tokens_per_epoch < 2)
        return fail_split(d, ERR_UNSUPPORTED, "fewer than two tokens", err);
    TRY(count_epochs(d, err));
    const uint64_t all = d->num_epochs * d->tokens_per_epoch;
    d->num_samples = q->keep_partial ? samples_rounded_up(d, all) : samples_in(d, all);
    d->num_apart = d->num_samples;
    if (last_is_apart(d, &before)) d->num_apart = before;
    if (d->num_samples == 0)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: %" PRIu64 " tokens for %s, fewer than a sample of %" PRIu64, q->path,
                    d->tokens_per_epoch, split_names[q->split], gpt_dataset_tokens(d));
    if (q->past > INT32_MAX || d->num_samples >= UINT32_MAX - 1 ||
        !mul_u64(d->num_epochs, q->past - q->first, &d->num_documents) ||
        d->num_documents > INT32_MAX || q->seq_length >= INT32_MAX)
        return fail_split(d, ERR_UNSUPPORTED, "indices are limited to 2^31; request fewer samples",
                          err);
    return OK;
}

/* ---- indices ---- */

static enum status allocate_indices(struct gpt_dataset *d, struct error *err)
{
    d->document_index = calloc(d->num_documents, sizeof *d->document_index);
    d->sample_index = calloc(d->num_samples + 1, 2 * sizeof *d->sample_index);
    d->shuffle_index = calloc(d->num_samples, sizeof *d->shuffle_index);
    if (d->document_index && d->sample_index && d->shuffle_index) return OK;
    return fail_split(d, ERR_MEMORY, "no memory for the indices", err);
}

static void make_document_index(struct gpt_dataset *d, struct mt19937 *r)
{
    const uint64_t n = d->request.past - d->request.first;
    const uint64_t apart = d->num_apart < d->num_samples ? n : 0;
    for (uint64_t i = 0; i < d->num_documents; i++)
        d->document_index[i] = (int32_t)(d->request.first + i % n);
    shuffle_u32(r, (uint32_t *)d->document_index, d->num_documents - apart);
    shuffle_u32(r, (uint32_t *)d->document_index + (d->num_documents - apart), apart);
}

/* Cuts the stream into samples. The last one of a partial stream ends with the
 * last sequence. */
static void cut_samples(const struct gpt_dataset *d, const int32_t *documents, int32_t *samples)
{
    const uint64_t extra = !d->request.no_extra_token;
    uint64_t document = 0, offset = 0;
    samples[0] = samples[1] = 0;
    for (uint64_t i = 1; i <= d->num_samples; i++) {
        for (uint64_t left = d->request.seq_length + extra;;) {
            const uint64_t sequence = (uint64_t)documents[document] - d->request.first;
            const uint64_t length = d->lengths[sequence] - offset;
            const bool is_last = document + 1 == d->num_documents;
            if (left <= length || is_last) {
                offset += min_u64(left, length) - extra;
                break;
            }
            left -= length;
            document++;
            offset = 0;
        }
        samples[2 * i] = (int32_t)document;
        samples[2 * i + 1] = (int32_t)offset;
    }
}

static void make_shuffle_index(struct gpt_dataset *d, struct mt19937 *r)
{
    for (uint64_t i = 0; i < d->num_samples; i++)
        d->shuffle_index[i] = (uint32_t)i;
    shuffle_u32(r, d->shuffle_index, d->num_apart);
    shuffle_u32(r, d->shuffle_index + d->num_apart, d->num_samples - d->num_apart);
}

static void drop_lengths(struct gpt_dataset *d)
{
    free(d->lengths);
    d->lengths = NULL;
}

enum status gpt_dataset_prepare(struct gpt_dataset *d, const struct gpt_request *q,
                                struct error *err)
{
    *d = (struct gpt_dataset){.request = *q};
    TRY(read_lengths(d, err));
    return count_all(d, err);
}

enum status gpt_dataset_build(struct gpt_dataset *d, struct error *err)
{
    struct mt19937 r;
    TRY(allocate_indices(d, err));
    mt19937_seed(&r, (uint32_t)d->request.seed);
    make_document_index(d, &r);
    cut_samples(d, d->document_index, d->sample_index);
    make_shuffle_index(d, &r);
    drop_lengths(d);
    return OK;
}

void gpt_dataset_release(struct gpt_dataset *d)
{
    free(d->document_index);
    free(d->sample_index);
    free(d->shuffle_index);
    free(d->lengths);
    *d = (struct gpt_dataset){.num_samples = 0};
}

/* ---- stored indices ---- */

/* Whether items [0, count), minus `first`, are all numbers below n, each
 * `times` times. */
static bool all_are_there(const uint32_t *items, uint64_t count, uint64_t first, uint64_t n,
                          uint64_t times)
{
    uint32_t *seen = calloc(n, sizeof *seen);
    bool good = seen != NULL;
    for (uint64_t i = 0; i < count && good; i++)
        good = items[i] >= first && items[i] - first < n && ++seen[items[i] - first] <= times;
    free(seen);
    return good && count == n * times;
}

static bool samples_match(const struct gpt_dataset *d, const int32_t *documents,
                          const int32_t *samples)
{
    const size_t bytes = (d->num_samples + 1) * 2 * sizeof *samples;
    int32_t *own = malloc(bytes);
    bool same = own != NULL;
    if (same) {
        cut_samples(d, documents, own);
        same = memcmp(own, samples, bytes) == 0;
    }
    free(own);
    return same;
}

bool gpt_dataset_adopt(struct gpt_dataset *d, int32_t *document_index, int32_t *sample_index,
                       uint32_t *shuffle_index)
{
    const struct gpt_request *q = &d->request;
    const bool good = all_are_there((const uint32_t *)document_index, d->num_documents, q->first,
                                    q->past - q->first, d->num_epochs) &&
                      samples_match(d, document_index, sample_index) &&
                      all_are_there(shuffle_index, d->num_apart, 0, d->num_apart, 1) &&
                      all_are_there(shuffle_index + d->num_apart, d->num_samples - d->num_apart,
                                    d->num_apart, d->num_samples - d->num_apart, 1);
    if (!good) return false;
    d->document_index = document_index;
    d->sample_index = sample_index;
    d->shuffle_index = shuffle_index;
    drop_lengths(d);
    return true;
}

/* ---- reading ---- */

static enum status check_tokens(const struct gpt_dataset *d, const int32_t *tokens, uint64_t count,
                                uint64_t vocab_size, uint64_t sequence, uint64_t first,
                                struct error *err)
{
    for (uint64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || (uint64_t)tokens[i] >= vocab_size)
            return fail(err, ERR_CORRUPT,
                        "%s.bin: document %" PRIu64 " (sequence of the index), element %" PRIu64
                        " is %d: the model has %" PRIu64 " tokens",
                        d->request.path, sequence, first + i, tokens[i], vocab_size);
    return OK;
}

/* Start of a sample, and its end in its last sequence. */
struct span {
    uint64_t document, last;     /* in document_index */
    uint64_t offset, end_offset; /* tokens */
};

static struct span span_of(const struct gpt_dataset *d, uint64_t sample)
{
    const int32_t *at = d->sample_index + 2 * (uint64_t)d->shuffle_index[sample];
    return (struct span){(uint64_t)at[0], (uint64_t)at[2], (uint64_t)at[1],
                         (uint64_t)(at[3] + !d->request.no_extra_token)};
}

/* Tokens of one sequence from s->offset to its end or the sample's. */
static enum status part_length(const struct gpt_dataset *d, const struct span *s, uint64_t room,
                               uint64_t *count, struct error *err)
{
    const uint64_t sequence = (uint64_t)d->document_index[s->document];
    uint64_t end = s->end_offset, length;
    TRY(indexed_dataset_lengths(d->request.file, sequence, 1, &length, err));
    if (s->document < s->last) end = length;
    if (end <= length && s->offset <= end && end - s->offset <= room) {
        *count = end - s->offset;
        return OK;
    }
    return fail(err, ERR_CORRUPT,
                "%s.idx: sequence %" PRIu64 " has %" PRIu64
                " tokens; the file changed while it was read",
                d->request.path, sequence, length);
}

enum status gpt_dataset_read(const struct gpt_dataset *d, uint64_t sample, uint64_t vocab_size,
                             int32_t padding, int32_t *tokens, bool *parts, struct error *err)
{
    const uint64_t all = gpt_dataset_tokens(d);
    struct span s = span_of(d, sample);
    uint64_t at = 0, count = 0;
    memset(parts, 0, all * sizeof *parts);
    for (; s.document <= s.last; s.document++, s.offset = 0, at += count) {
        const uint64_t sequence = (uint64_t)d->document_index[s.document];
        TRY(part_length(d, &s, all - at, &count, err));
        TRY(indexed_dataset_read(d->request.file, sequence, s.offset, count, DT_I32, tokens + at,
                                 err));
        if (vocab_size)
            TRY(check_tokens(d, tokens + at, count, vocab_size, sequence, s.offset, err));
        if (count) parts[at] = true;
    }
    for (; at < all; at++)
        tokens[at] = padding;
    parts[0] = true;
    return OK;
}
