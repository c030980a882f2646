/* executor_internal.h - what the files of the executor share. */
#ifndef FERRY_CKPT_EXECUTOR_INTERNAL_H
#define FERRY_CKPT_EXECUTOR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "ckpt/executor.h"
#include "ckpt/ledger.h"
#include "ckpt/scan.h"
#include "ckpt/sink_file.h"

/* A run that grows while a task lasts and what it writes follows it; where no CRC is wanted, all
 * that the task writes of a piece. */
struct chain {
    uint64_t offset, bytes;
    uint32_t crc;
};

/* What a worker has of its task: for each target piece of the carry, a chain and the bytes. */
struct worker {
    struct chain *chains;
    uint64_t *bytes;
    struct journal_run *runs; /* that ended, where there is a journal */
    size_t num_runs, runs_capacity;
    bool counts; /* digests and casts of this task are ours to count */
    struct digest read, written;
    struct cast_counts casts;
    uint64_t non_finite;
};

/* What is counted of all tasks that ended. */
struct tally {
    const struct plan *plan;
    struct carry_result *carries; /* NULL: not wanted */
    struct cast_counts casts;
};

struct executor {
    const struct plan *plan;
    const struct executor_options *options;
    const struct carry *carries; /* of the plan, as far as they may be ours to write */
    const struct scan_item *items;
    struct sink *sink; /* one of the two */
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

/* Tells the sink of what was written, and notes it for the journal. */
void executor_end_chain(struct executor *x, struct worker *w, uint32_t segment, struct chain *c);
/* Of shared files not: rank 0 is told of them, by the journals (executor_join). */
void executor_tell_run(struct executor *x, const struct journal_run *run);

#endif
