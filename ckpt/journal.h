/* journal.h - what of a plan is done and on disk, so that an interrupted run can be continued.
 *
 * A file: the line "ferry journal 4 WORK", where WORK says of what, then records of one task
 * (scan.h) each, little-endian:
 *
 *     u32 bytes of the payload, u32 CRC-32 of it, payload:
 *     u64 task, u64 item, u64 1 where what follows is counted here, else 0, u64 bytes that the task
 *     wrote, u64 read[2], u64 written[2] (digests), u64 cast elements, u64 changed elements, u64
 *     non-finite elements, u64 overflowed elements, u64 number of runs, and of each run u64
 * segment, u64 offset, u64 bytes, u64 CRC-32
 *
 * A record is appended once the bytes that the task wrote are on disk. One that is cut off, or has
 * another CRC, ends the journal: it and what comes after it were not written. */
#ifndef FERRY_CKPT_JOURNAL_H
#define FERRY_CKPT_JOURNAL_H

#include <stdbool.h>

#include "common/arena.h"
#include "common/status.h"
#include "common/strbuf.h"
#include "kernels/cpu/digest_sums.h"

/* One written run of a segment that wants a CRC; or of one that wants none, but whose file ranks
 * share (held.h), so many bytes in any places. */
struct journal_run {
    uint64_t segment, offset, bytes, crc;
};

struct journal_task {
    uint64_t task, item; /* of the scan */
    uint64_t counts;     /* of many ranks that write parts of one task, one counts what it holds */
    uint64_t bytes;      /* that the task wrote */
    struct digest read, written;
    uint64_t cast_elements, changed_elements;
    uint64_t non_finite, overflowed; /* as in struct carry */
    uint64_t num_runs;
};

/* Appends a record to text that is to become part of a journal. */
void journal_add(struct strbuf *records, const struct journal_task *t,
                 const struct journal_run *runs);

/* Calls visit for each record of the file, in their order. What does not belong to one is cut off
 * where the journal is ours, to be appended to. A file that is not there has none. ERR_EXISTS where
 * it is of other work. */
MUST_CHECK enum status
journal_read(const char *path, const char *work, bool is_ours,
             enum status (*visit)(void *context, const struct journal_task *t,
                                  const struct journal_run *runs, struct error *err),
             void *context, struct error *err);

/* What a journal tells without its plan. */
struct journal_summary {
    const char *work; /* NULL: there is no journal, or its first line was not written */
    bool known;       /* it is of this version, and `bytes` is known */
    uint64_t bytes;   /* that its tasks wrote */
};
struct journal_summary journal_summarize(const char *path, struct arena *a);

/* Appends records, and waits until the disk has them where durable. Creates the file. */
MUST_CHECK enum status journal_append(const char *path, const char *work,
                                      const struct strbuf *records, bool durable,
                                      struct error *err);

#endif
