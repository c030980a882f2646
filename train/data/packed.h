/* packed.h - documents for fine-tuning, with a loss mask for each token: their
 * sources, and their packing into samples.
 *
 * A source is an indexed dataset PREFIX (a document is a sequence) with masks
 * in PREFIX.mask, if it exists, as written by `ferry data`; or a file of JSON
 * lines (ids_lines.h), NAME.jsonl, kept in memory. Without masks all tokens
 * count.
 *
 * Documents are placed first-fit in their order: each into the first sample
 * with room for all of it. Within a sample they keep their order. A document of
 * n tokens takes n - 1 places: inputs are all but the last, labels all but the
 * first. Longer documents than a sample are truncated, those with fewer than
 * two tokens are skipped. */
#ifndef FERRY_TRAIN_DATA_PACKED_H
#define FERRY_TRAIN_DATA_PACKED_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "formats/indexed_dataset.h"

struct packed_source {
    const char *path; /* the caller's */
    uint64_t num_documents;
    uint64_t *lengths; /* [num_documents] tokens, on the heap */

    /* private */
    struct indexed_dataset file, mask;
    bool has_file, has_mask;
    int32_t *ids; /* of JSON lines: all of them; NULL if has_file */
    uint8_t *flags;
    uint64_t *starts; /* [num_documents + 1] in ids */
};

/* Whether path is JSON lines, or a dataset with masks. */
bool packed_source_matches(const char *path);
/* ERR_CORRUPT if the shapes of masks and tokens differ. Call
 * packed_source_close() afterwards, after a failure too. */
MUST_CHECK enum status packed_source_open(struct packed_source *s, const char *path,
                                          struct error *err);
void packed_source_close(struct packed_source *s);

/* Reads the first `count` tokens of a document, and their masks. */
MUST_CHECK enum status packed_source_read(const struct packed_source *s, uint64_t document,
                                          uint64_t count, int32_t *ids, int32_t *mask,
                                          struct error *err);

/* Documents in samples. */
struct packing {
    uint64_t num_samples;
    uint64_t *firsts;    /* [num_samples + 1] in documents, on the heap */
    uint64_t *documents; /* document numbers, sample by sample */
    uint64_t num_cut, num_left_out;
};

/* Packs documents of these lengths into samples of seq_length places.
 * ERR_MEMORY. */
MUST_CHECK enum status packing_make(struct packing *p, const uint64_t *lengths, uint64_t count,
                                    uint64_t seq_length, struct error *err);
void packing_release(struct packing *p);

/* The places of a document, at most seq_length. */
uint64_t packing_places(uint64_t length, uint64_t seq_length);

#endif
