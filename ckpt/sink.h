/* sink.h - where the bytes of a plan's segments go, from any number of threads: files (sink_file.h)
 * or arrays in memory (sink_memory.h).
 *
 * Every byte of a segment goes there once: plan_finish() has seen to it. A sink either has its
 * segments in memory, where elements are then put as they are strided, or takes runs of bytes. */
#ifndef FERRY_CKPT_SINK_H
#define FERRY_CKPT_SINK_H

#include <stdatomic.h>

#include "ckpt/journal.h"
#include "ckpt/plan.h"

struct sink {
    const struct plan *plan;
    _Atomic uint64_t written_bytes;

    /* The first byte of a segment; where there is one, the functions below are NULL. NULL: it is in
     * no memory, and they take its bytes. */
    void *(*address)(const struct sink *s, uint32_t segment);

    enum status (*write)(struct sink *s, uint32_t segment, uint64_t offset, const void *from,
                         uint64_t bytes, struct error *err);
    /* Tells of a run that was written, with its CRC-32. */
    void (*add_run)(struct sink *s, const struct journal_run *run);
    /* Counts bytes of a segment that are written and whose runs are told. */
    enum status (*count)(struct sink *s, uint32_t segment, uint64_t bytes, struct error *err);
    /* When all is written. ERR_OURS where that is not so. */
    enum status (*finish)(struct sink *s, struct error *err);
};

#endif
