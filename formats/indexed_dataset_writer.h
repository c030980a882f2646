/* indexed_dataset_writer.h - writes Megatron's indexed datasets, PREFIX.bin and
 * PREFIX.idx; the layout is in indexed_dataset.h.
 *
 * Elements are written as they come; memory holds 12 bytes a sequence. Both
 * files appear whole, the .bin first, or not at all (new_file.h). Messages name
 * the file. */
#ifndef FERRY_FORMATS_INDEXED_DATASET_WRITER_H
#define FERRY_FORMATS_INDEXED_DATASET_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/dtype.h"
#include "common/new_file.h"
#include "common/status.h"
#include "common/strbuf.h"

struct indexed_dataset_writer {
    enum dtype dtype;
    uint64_t num_sequences, num_documents, num_elements;

    /* private */
    bool overwrite;
    char *paths[2], *temps[2]; /* .bin, .idx; temps: names until they replace old files */
    struct new_file files[2];
    struct strbuf buffer, lengths, documents;
    uint64_t data_bytes;  /* in the file */
    uint64_t in_sequence; /* elements of the current one */
};

/* dtype: U8, U16 or I32. ERR_EXISTS if one of the files exists, unless
 * overwrite is set: then it is replaced at the end. Call
 * indexed_dataset_writer_close() afterwards, even after a failure. */
MUST_CHECK enum status indexed_dataset_create(struct indexed_dataset_writer *w, const char *prefix,
                                              enum dtype dtype, bool overwrite, struct error *err);

/* Adds elements to the sequence; ERR_USAGE if one does not fit the dtype. */
MUST_CHECK enum status indexed_dataset_append(struct indexed_dataset_writer *w, const int32_t *ids,
                                              size_t count, struct error *err);
/* End a sequence (ERR_UNSUPPORTED from 2^31 elements on), and a document after
 * a sequence. */
MUST_CHECK enum status indexed_dataset_end_sequence(struct indexed_dataset_writer *w,
                                                    struct error *err);
void indexed_dataset_end_document(struct indexed_dataset_writer *w);

/* Writes the index, syncs both files and gives them their names. */
MUST_CHECK enum status indexed_dataset_finish(struct indexed_dataset_writer *w, struct error *err);
/* Removes unfinished files. */
void indexed_dataset_writer_close(struct indexed_dataset_writer *w);

#endif
