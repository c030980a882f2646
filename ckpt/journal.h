/* journal.h - a file of the tasks that are finished and on disk, to continue an
 * interrupted run.
 *
 * The first line is "ferry journal 4 WORK"; WORK identifies the run. A record
 * for each task (scan.h) follows, little-endian:
 *
 * 1. u32 bytes of the payload, u32 CRC-32 of the payload
 * 2. payload: u64 task, u64 item, u64 counts (1 or 0), u64 bytes written
 * 3. u64 read[2], u64 written[2] (digests)
 * 4. u64 cast elements, u64 changed elements, u64 non-finite elements,
 *    u64 overflowed elements
 * 5. u64 number of runs, and for each run u64 segment, u64 offset, u64 bytes,
 *    u64 CRC-32
 *
 * A record is appended once its task's bytes are on disk. The journal ends at
 * the first record that is incomplete or has another CRC. */
#ifndef FERRY_CKPT_JOURNAL_H
#define FERRY_CKPT_JOURNAL_H

#include <stdbool.h>

#include "common/arena.h"
#include "common/status.h"
#include "common/strbuf.h"
#include "kernels/cpu/digest_sums.h"

/* A written run of a segment that wants a CRC. Without CRC, in a file that
 * ranks share (held.h): the bytes that the task wrote, in any places. */
struct journal_run {
    uint64_t segment, offset, bytes, crc;
};

struct journal_task {
    uint64_t task, item; /* of the scan */
    uint64_t counts;     /* 1: this rank counts the task's digests and casts */
    uint64_t bytes;      /* written by the task */
    struct digest read, written;
    uint64_t cast_elements, changed_elements;
    uint64_t non_finite, overflowed; /* as in struct copy_result */
    uint64_t num_runs;
};

/* Appends a record to a buffer for journal_append(). */
void journal_add(struct strbuf *records, const struct journal_task *t,
                 const struct journal_run *runs);

/* Calls visit for each record, in order. is_ours: truncates the file behind the
 * last complete record, for appending. A missing file has no records.
 * ERR_EXISTS if the journal is of other work. */
MUST_CHECK enum status
journal_read(const char *path, const char *work, bool is_ours,
             enum status (*visit)(void *context, const struct journal_task *t,
                                  const struct journal_run *runs, struct error *err),
             void *context, struct error *err);

/* The contents of a journal, as far as known without its plan. */
struct journal_summary {
    const char *work; /* NULL: no journal, or no first line */
    bool known;       /* it has this version, and `bytes` is known */
    uint64_t bytes;   /* written by its tasks */
};
struct journal_summary journal_summarize(const char *path, struct arena *a);

/* Appends records; durable: waits until they are on disk. Creates the file. */
MUST_CHECK enum status journal_append(const char *path, const char *work,
                                      const struct strbuf *records, bool durable,
                                      struct error *err);

#endif
