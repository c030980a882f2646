/* indexed_dataset.h - tokens in files: Megatron's indexed datasets, and raw
 * files of token ids.
 *
 * PREFIX.idx, little-endian (megatron/core/datasets/indexed_dataset.py:
 * _IndexWriter):
 *
 *   1.   0  9 bytes  "MMIDIDX\0\0"
 *   2.   9  u64      version: 1
 *   3.  17  u8       dtype code: 1 U8, 2 I8, 3 I16, 4 I32, 5 I64, 6 F64, 7 F32,
 *                    8 U16
 *   4.  18  u64      S, number of sequences
 *   5.  26  u64      D, number of document entries: documents + 1
 *   6.  34  i32[S]   tokens of each sequence
 *   7.      i64[S]   byte of PREFIX.bin where it begins
 *   8.      i64[D]   first sequence of each document; the first is 0, the last S
 *   9.      i8[S]    mode of each sequence in a multimodal dataset; else absent
 *
 * PREFIX.bin holds elements and nothing else; a raw file of U16 or U32 is a
 * dataset of one document with one sequence. Both files stay on disk; memory
 * holds one number for each 1024 sequences. Everything is checked at open, and
 * again at use, since the files may have changed. Several threads may read at
 * once.
 *
 * `ferry perplexity` reads the stream; train/data reads sequences. */
#ifndef FERRY_FORMATS_INDEXED_DATASET_H
#define FERRY_FORMATS_INDEXED_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "common/arena.h"
#include "common/dtype.h"
#include "common/status.h"
#include "formats/bytes.h"

struct indexed_dataset {
    enum dtype dtype;                      /* of the elements, a whole number */
    uint64_t num_sequences, num_documents; /* a document is a run of sequences */
    uint64_t num_tokens;                   /* of all sequences */

    /* private */
    struct arena arena;
    struct bytes index, data; /* index {0}: a raw file */
    uint64_t *starts;         /* [windows + 1] tokens before each 1024th sequence, on the heap */
};

/* path: PREFIX, PREFIX.idx or PREFIX.bin. ERR_CORRUPT names the file, the byte,
 * the expected and the found value; ERR_UNSUPPORTED for floating-point
 * elements. */
MUST_CHECK enum status indexed_dataset_open(struct indexed_dataset *d, const char *path,
                                            struct error *err);
/* A raw file of token ids; dtype: U16 or U32. */
MUST_CHECK enum status token_file_open(struct indexed_dataset *d, const char *path,
                                       enum dtype dtype, struct error *err);
void indexed_dataset_close(struct indexed_dataset *d);

/* Tokens of sequences [first, first + count). */
MUST_CHECK enum status indexed_dataset_lengths(const struct indexed_dataset *d, uint64_t first,
                                               uint64_t count, uint64_t *lengths,
                                               struct error *err);
/* The first sequence of each of documents [first, first + count); for document
 * num_documents the number of sequences. */
MUST_CHECK enum status indexed_dataset_documents(const struct indexed_dataset *d, uint64_t first,
                                                 uint64_t count, uint64_t *sequences,
                                                 struct error *err);

/* Tokens [first, first + count) of a sequence, or of the stream of all
 * sequences, as I32 or I64. ERR_CORRUPT if a token does not fit I32; ERR_OURS
 * if there are fewer tokens. */
MUST_CHECK enum status indexed_dataset_read(const struct indexed_dataset *d, uint64_t sequence,
                                            uint64_t first, uint64_t count, enum dtype as,
                                            void *tokens, struct error *err);
MUST_CHECK enum status indexed_dataset_read_stream(const struct indexed_dataset *d, uint64_t first,
                                                   uint64_t count, enum dtype as, void *tokens,
                                                   struct error *err);

/* The sequence of a token of the stream, and the token's index in it. */
MUST_CHECK enum status indexed_dataset_locate(const struct indexed_dataset *d, uint64_t token,
                                              uint64_t *sequence, uint64_t *at, struct error *err);

#endif
