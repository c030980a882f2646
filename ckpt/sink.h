/* sink.h - the destination of a plan's segments: files (sink_file.h) or arrays
 * in memory (sink_memory.h). Threads may call its functions at once.
 *
 * Every byte of a segment is written once, as plan_finish() has checked. A sink
 * either gives the address of a segment, where callers write elements, or takes
 * runs of bytes. */
#ifndef FERRY_CKPT_SINK_H
#define FERRY_CKPT_SINK_H

#include <stdatomic.h>

#include "ckpt/journal.h"
#include "ckpt/plan.h"

struct sink {
    const struct plan *plan;
    _Atomic uint64_t written_bytes;

    /* The address of a segment's first byte in memory. NULL in sinks that take
     * runs of bytes, by the functions below, which are NULL in the others. */
    void *(*address)(const struct sink *s, uint32_t segment);

    enum status (*write)(struct sink *s, uint32_t segment, uint64_t offset, const void *from,
                         uint64_t bytes, struct error *err);
    /* Reports a written run with its CRC-32. */
    void (*add_run)(struct sink *s, const struct journal_run *run);
    /* Counts written bytes of a segment, after add_run() for their runs. */
    enum status (*count)(struct sink *s, uint32_t segment, uint64_t bytes, struct error *err);
    /* Called at the end. ERR_OURS if bytes are missing. */
    enum status (*finish)(struct sink *s, struct error *err);
};

#endif
