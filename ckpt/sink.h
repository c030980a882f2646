/* sink.h - the files of a plan while they are filled, by any number of threads.
 *
 * A file is created at its first write, at its full size. Whoever writes the last bytes of its last
 * segment writes the rest of it too (output_file.finish). Every byte of a segment is written once:
 * plan_finish() has seen to it. Where the CRC-32 of a segment is wanted, the runs that were written
 * are told with theirs, before the bytes are counted; when it is complete they must tile it. */
#ifndef FERRY_CKPT_SINK_H
#define FERRY_CKPT_SINK_H

#include <pthread.h>
#include <stdatomic.h>

#include "ckpt/journal.h"
#include "ckpt/plan.h"

struct sink_options {
    unsigned rank;  /* whose files of the plan are ours */
    bool may_exist; /* files of an earlier run, to be continued */
    bool fsync;
    bool direct_io; /* what is written leaves the page cache */
};

struct sink {
    const struct plan *plan;
    struct sink_options options;
    const char *folder;
    int folder_fd; /* so that all goes there, whatever its name is by now */
    struct sink_segment *segments;
    struct sink_file *files;
    uint64_t our_bytes; /* of the segments of our files */
    _Atomic uint64_t written_bytes;
    struct arena arena;
    pthread_mutex_t lock; /* of runs, and of their arena */
};

/* Memory that a sink takes: before the first write; for the runs of segments, an estimate. */
uint64_t sink_state_bytes(const struct plan *p);
uint64_t sink_run_bytes(const struct plan *p);

/* Creates nothing yet. Plan and folder are the caller's. */
void sink_init(struct sink *s, const struct plan *p, const char *folder,
               const struct sink_options *o);
void sink_release(struct sink *s);

/* Creates the folder and holds on to it: if it is removed or renamed from now on, nothing is
 * written to what takes its place. Then, the folders below it. */
MUST_CHECK enum status sink_open(struct sink *s, struct error *err);
MUST_CHECK enum status sink_create_folders(struct sink *s, struct error *err);
/* Removes all else that is in the folder but for names that begin with ".ferry-". */
MUST_CHECK enum status sink_remove_others(struct sink *s, struct error *err);

bool sink_is_ours(const struct sink *s, uint32_t file);
/* Whether a file is there at its full size. */
bool sink_is_intact(const struct sink *s, uint32_t file);

MUST_CHECK enum status sink_write(struct sink *s, uint32_t segment, uint64_t offset,
                                  const void *from, uint64_t bytes, struct error *err);
void sink_add_run(struct sink *s, const struct journal_run *run);
/* Counts bytes of a segment that are written and whose runs are told. */
MUST_CHECK enum status sink_count(struct sink *s, uint32_t segment, uint64_t bytes,
                                  struct error *err);
/* Completes those of our files that have no segment with bytes. */
MUST_CHECK enum status sink_complete_empty(struct sink *s, struct error *err);

/* Waits until the disk has what was written so far. */
MUST_CHECK enum status sink_sync(struct sink *s, struct error *err);
/* Closes our files, durably. ERR_OURS where one is not complete. */
MUST_CHECK enum status sink_finish(struct sink *s, struct error *err);

#endif
