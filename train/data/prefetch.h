/* prefetch.h - a thread that reads a rank's next micro-batches during
 * computation.
 *
 * The consumer names a micro-batch; the thread continues from there with the
 * same stride. If the consumer wants another one than the next (micro-batch
 * size or dp have changed, or its place in the stream), micro-batches read
 * ahead are dropped and reading restarts. A change of the global batch size
 * alone drops nothing.
 *
 * Threads do not survive fork(): open it in the process that uses it. One
 * consumer. */
#ifndef FERRY_TRAIN_DATA_PREFETCH_H
#define FERRY_TRAIN_DATA_PREFETCH_H

#include "train/data/data.h"
#include "train/data/sampler.h"

struct prefetch;

/* Reads ahead up to `depth` micro-batches (at least 1) of a split; seq_length:
 * the data's. The last `kept` ones taken (at least 1) stay valid. data must
 * stay open. The first prefetch_next() starts reading. */
MUST_CHECK enum status prefetch_open(struct prefetch **out, const struct data *data,
                                     enum data_split split, uint64_t seq_length, unsigned depth,
                                     unsigned kept, struct error *err);

/* Sets *rows to the micro-batch of *s, micro_batch_size samples, and advances
 * *s. Valid for the next `kept` - 1 calls. Failures of reading are returned
 * here, not before; then *s stays, and the next call tries again. */
MUST_CHECK enum status prefetch_next(struct prefetch *p, struct sampler *s,
                                     const struct data_rows **rows, struct error *err);

/* Ends the thread; NULL allowed. */
void prefetch_close(struct prefetch *p);

#endif
