/* data.h - the tokens of a training run, as samples of equal length.
 *
 * Samples of a split are numbered; their order depends on the options alone, so
 * a run continues from a number of consumed samples. Three kinds of data:
 *
 *   Indexed datasets   Megatron-LM's GPTDataset, or a BlendedDataset of several
 *                      (gpt_dataset.h, blend.h). Tokens, labels, positions and masks
 *                      are Megatron-LM's too (GPTDataset.__getitem__,
 *                      _get_ltor_masks_and_position_ids), except that padding of one
 *                      sample never hides labels of another (README.md)
 *   Packed documents   for fine-tuning: whole documents, first-fit in their order,
 *                      with a loss mask for each token (packed.h). Samples are not
 *                      shuffled; passes repeat them
 *   Mock data          a linear congruential stream (mock.c), the same for every
 *                      split, without end
 *
 * Several threads may read data at once; one thread calls data_open() and
 * data_close(). */
#ifndef FERRY_TRAIN_DATA_DATA_H
#define FERRY_TRAIN_DATA_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "common/strbuf.h"
#include "train/data/gpt_dataset.h"
#include "train/data/split.h"

/* Values of --data-path: PREFIX, PREFIX PREFIX .., or WEIGHT PREFIX WEIGHT
 * PREFIX .. */
struct data_paths {
    const char *const *words;
    size_t count; /* 0: not given */
};

struct data_options {
    struct data_paths paths;                   /* divided into splits by `split` */
    struct data_paths split_paths[NUM_SPLITS]; /* of each split; excludes `paths` */
    const char *split;         /* NULL: "969, 30, 1", as Megatron-LM's arguments.py */
    uint64_t seq_length, seed; /* the seed fits 32 bits */
    /* Minimum number of samples, or ONE_EPOCH; 0: the split is not read. */
    uint64_t samples[NUM_SPLITS];

    /* eod_id: end of a document; -1: none. pad_id: labels without loss; -1:
     * none. */
    int64_t eod_id, pad_id;
    bool reset_position_ids;      /* positions restart behind an end of document */
    bool reset_attention_mask;    /* attention does not cross an end of document */
    bool eod_mask_loss;           /* no loss where an end of document is the input */
    bool inter_document_masking;  /* positions and attention restart at each sequence */
    bool no_extra_token;          /* add_extra_token_to_sequence of GPTDatasetConfig, inverted */
    bool keep_partial_validation; /* drop_last_partial_validation_sequence, inverted */
    uint64_t vocab_size;          /* checks ids; 0: no check. Required for mock data */

    bool packed; /* paths of packed documents: one PREFIX (or .jsonl) each */
    bool mock;   /* mock data; no paths */
    uint64_t mock_seed;

    const char *cache_path; /* folder of indices (index_cache.h), or NULL */
    bool cache_read_only;
    /* Opens, checks and counts the files. Makes and stores no index of a
     * dataset, so data_read() must not be called. */
    bool only_counts;
    /* JSON for the tokenizer in the description of indices; NULL: Megatron-LM's
     * NullTokenizer of null_vocab_size tokens. */
    const char *tokenizer;
    uint64_t null_vocab_size;

    /* Called with a sentence about a deviation; NULL: silent. */
    void (*note)(void *context, const char *text);
    void *context;
};

/* Rows of a batch, each [count, seq_length], row-major; the caller's. */
struct data_rows {
    int32_t *tokens, *labels, *positions;
    float *loss_mask; /* 0 or 1 for each label */
    /* True at the first token of a run: tokens attend within their run. True at
     * the first token of each row. Independent of positions. */
    bool *starts;
};

struct data;

/* Opens the data and makes all indices. options are not kept. Errors name the
 * option, or file and split: ERR_USAGE for contradictions, ERR_UNSUPPORTED for
 * a split with requested samples and no data. A split with share 0 in `split`
 * has no samples; only for training is that an error. */
MUST_CHECK enum status data_open(struct data **out, const struct data_options *options,
                                 struct error *err);
void data_close(struct data *d); /* NULL allowed */

/* Samples of a split: at least the requested number, UINT64_MAX for mock data.
 * A blend by the lengths of its datasets may have fewer. */
uint64_t data_num_samples(const struct data *d, enum data_split split);

/* Appends " NAME: ..." lines: the files, and the samples of each split. */
void data_describe(const struct data *d, struct strbuf *out);

/* Fills rows with samples [first, first + count). ERR_USAGE if the split has
 * fewer, ERR_CORRUPT for changed files or tokens beyond vocab_size. */
MUST_CHECK enum status data_read(const struct data *d, enum data_split split, uint64_t first,
                                 uint64_t count, struct data_rows *rows, struct error *err);

/* Memory for count rows, on the heap. */
MUST_CHECK enum status data_rows_allocate(struct data_rows *rows, uint64_t count,
                                          uint64_t seq_length, struct error *err);
void data_rows_release(struct data_rows *rows);

#endif
