/* gpt_dataset.h - samples of equal length from the sequences of an indexed
 * dataset, in the order of Megatron-LM's GPTDataset
 * (megatron/core/datasets/gpt_dataset.py, helpers.cpp), bit for bit.
 *
 * The sequences [first, past) of a file are repeated for E epochs, the fewest
 * with the requested samples, and shuffled. Their tokens form one stream, cut
 * into samples of seq_length tokens and one more; the next sample begins
 * seq_length tokens later. Samples are shuffled, too. If less than 0.8 of the
 * last epoch is needed, it is shuffled by itself, behind the others.
 *
 *   document_index [E * (past - first)]  sequences, in the order of the stream
 *   sample_index   [samples + 1][2]      starts of samples: an index into
 *                                        document_index, a token
 *   shuffle_index  [samples]             the i-th sample to read, as an index into
 *                                        sample_index
 *
 * All whole samples of the E epochs are there, possibly more than requested. A
 * "document" of Megatron-LM is a sequence of the file here. */
#ifndef FERRY_TRAIN_DATA_GPT_DATASET_H
#define FERRY_TRAIN_DATA_GPT_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "formats/indexed_dataset.h"
#include "train/data/split.h"

#define ONE_EPOCH UINT64_MAX /* in place of a number of samples */

struct gpt_request {
    const struct indexed_dataset *file; /* borrowed by the dataset */
    const char *path;                   /* as given by the user; borrowed, too */
    enum data_split split;
    uint64_t first, past; /* sequences of the file */
    uint64_t num_samples; /* at least; or ONE_EPOCH */
    uint64_t seq_length;
    uint64_t seed; /* fits 32 bits */
    /* A sample has seq_length tokens; its last label is padding. */
    bool no_extra_token;
    /* Rounds the number of samples up; the last one is padded. */
    bool keep_partial;
};

struct gpt_dataset {
    struct gpt_request request;
    uint64_t num_epochs, tokens_per_epoch;
    uint64_t num_documents; /* of document_index */
    uint64_t num_samples;
    /* On the heap, as in Megatron-LM's files. */
    int32_t *document_index, *sample_index;
    uint32_t *shuffle_index;

    /* private */
    uint64_t num_apart; /* samples shuffled separately, in front; num_samples: all */
    uint64_t *lengths;  /* [past - first] until indices exist */
};

/* Reads the lengths of sequences and sets all numbers. Refuses, naming path and
 * split: no sequences, fewer tokens than a sample, numbers beyond the indices.
 *
 * Then gpt_dataset_build() or gpt_dataset_adopt() sets the indices. Call
 * gpt_dataset_release() afterwards, after a failure too. */
MUST_CHECK enum status gpt_dataset_prepare(struct gpt_dataset *d, const struct gpt_request *q,
                                           struct error *err);
MUST_CHECK enum status gpt_dataset_build(struct gpt_dataset *d, struct error *err);
void gpt_dataset_release(struct gpt_dataset *d);

/* Takes stored indices of these shapes, on the heap. False, taking nothing, if
 * they cannot be this dataset's: a sequence missing in an epoch, samples that
 * begin elsewhere, a sample twice. */
bool gpt_dataset_adopt(struct gpt_dataset *d, int32_t *document_index, int32_t *sample_index,
                       uint32_t *shuffle_index);

/* Reads the tokens [seq_length + 1] of a sample (seq_length without an extra
 * token), the end of the last one filled with `padding`. parts[i]: true where a
 * sequence begins, and for i = 0. ERR_CORRUPT names file, sequence and element
 * of a token outside [0, vocab_size), unless vocab_size is 0. */
MUST_CHECK enum status gpt_dataset_read(const struct gpt_dataset *d, uint64_t sample,
                                        uint64_t vocab_size, int32_t padding, int32_t *tokens,
                                        bool *parts, struct error *err);

/* Tokens of a sample: seq_length + 1, or seq_length. */
uint64_t gpt_dataset_tokens(const struct gpt_dataset *d);

#endif
