/* executor_internal.h - types of executor.c and executor_panel.c. */
#ifndef FERRY_CKPT_EXECUTOR_INTERNAL_H
#define FERRY_CKPT_EXECUTOR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "ckpt/executor.h"
#include "ckpt/ledger.h"
#include "ckpt/scan.h"
#include "ckpt/sink_file.h"

/* A run of a segment that grows while a task's bytes are consecutive. If the
 * segment wants no CRC: all bytes that the task writes to it, in any places. */
struct chain {
    uint64_t offset, bytes;
    uint32_t crc;
};

/* A worker and its task: a chain, and the bytes to write, for each target piece
 * of the copy. */
struct worker {
    struct chain *chains;
    uint64_t *bytes;
    struct journal_run *runs; /* finished ones, if there is a journal */
    size_t num_runs, runs_capacity;
    bool counts; /* this rank counts the task's digests and casts */
    struct digest read, written;
    struct cast_counts casts;
    uint64_t non_finite;
};

/* Sums over all finished tasks. */
struct tally {
    const struct plan *plan;
    struct copy_result *copies; /* NULL: not wanted */
    struct cast_counts casts;
};

struct executor {
    const struct plan *plan;
    const struct executor_options *options;
    const struct plan_copy *copies; /* of the plan, without pieces of other ranks */
    const struct scan_item *items;
    struct sink *sink; /* &files.sink or &memory */
    struct sink_file files;
    struct sink memory;
    struct ledger ledger;
    struct tally tally;
    pthread_mutex_t lock; /* of tally */
    struct worker *workers;
    unsigned num_workers;
    struct arena arena; /* workers, items */
    struct progress *progress;
    _Atomic uint64_t resumed_bytes;
    pthread_mutex_t asking; /* of keep_going and is_ours */
    _Atomic int64_t next_asking;
};

/* ---- executor_panel.c ---- */

/* Visitors of the scan: to files; to memory. */
enum status executor_write_panel(void *executor, const struct scan_panel *p, struct error *err);
enum status executor_fill_memory(void *executor, const struct scan_panel *p, struct error *err);

/* Reports a chain to the sink and keeps it for the journal. */
void executor_end_chain(struct executor *x, struct worker *w, uint32_t segment, struct chain *c);
/* Reports a run to the sink. Runs of shared files reach rank 0 by the journals
 * (executor_join). */
void executor_report_run(struct executor *x, const struct journal_run *run);

#endif
