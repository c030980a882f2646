/* prefetch.h - a thread that reads the next micro-batches of a rank while the current one is
 * computed.
 *
 * The consumer says which micro-batch it wants; the thread goes on from there with the same
 * stride. If the consumer wants another one than comes next (the micro-batch size or dp has
 * changed, or it has moved in the stream), what was read ahead is dropped and reading starts anew.
 * So a change of the global batch size alone drops nothing.
 *
 * Threads do not survive fork(): open it in the process that uses it. One consumer. */
#ifndef FERRY_TRAIN_DATA_PREFETCH_H
#define FERRY_TRAIN_DATA_PREFETCH_H

#include "train/data/data.h"
#include "train/data/sampler.h"

struct prefetch;

/* Reads ahead up to `depth` micro-batches (at least 1) of a split, of seq_length as in the data's
 * options; the last `kept` ones (at least 1) that were taken stay. data must stay open. The first
 * read starts with the first prefetch_next(). */
MUST_CHECK enum status prefetch_open(struct prefetch **out, const struct data *data,
                                     enum data_split split, uint64_t seq_length, unsigned depth,
                                     unsigned kept, struct error *err);

/* The micro-batch of *s, which is advanced: rows of micro_batch_size samples, valid for the next
 * `kept` - 1 calls. A failure to read it is returned by this call, not before; *s then stays as it
 * is, and the next call tries again. */
MUST_CHECK enum status prefetch_next(struct prefetch *p, struct sampler *s,
                                     const struct data_rows **rows, struct error *err);

/* Ends the thread; NULL allowed. */
void prefetch_close(struct prefetch *p);

#endif
