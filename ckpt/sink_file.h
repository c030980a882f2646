/* sink_file.h - the files of a plan while they are filled.
 *
 * A file is created at its first write, at its full size. Whoever writes the last bytes of its last
 * segment writes the rest of it too (output_file.finish). Where the CRC-32 of a segment is wanted,
 * the runs that were written are told with theirs, before the bytes are counted; when it is
 * complete they must tile it. A shared file is completed by who has counted what all ranks wrote.
 */
#ifndef FERRY_CKPT_SINK_FILE_H
#define FERRY_CKPT_SINK_FILE_H

#include <pthread.h>

#include "ckpt/sink.h"

struct sink_file_options {
    unsigned rank;  /* whose files of the plan are ours */
    bool may_exist; /* files of an earlier run, to be continued */
    bool fsync;
    bool direct_io; /* what is written leaves the page cache */
};

struct sink_file {
    struct sink sink; /* finish: closes our files, durably */
    struct sink_file_options options;
    const char *folder;
    int folder_fd; /* so that all goes there, whatever its name is by now */
    struct filled_segment *segments;
    struct filled_file *files;
    struct arena arena;
    pthread_mutex_t lock; /* of runs, and of their arena */
};

/* Memory that a sink takes: before the first write; for the runs of segments, an estimate. */
uint64_t sink_file_state_bytes(const struct plan *p);
uint64_t sink_file_run_bytes(const struct plan *p);

/* Creates nothing yet. Plan and folder are the caller's. */
void sink_file_init(struct sink_file *s, const struct plan *p, const char *folder,
                    const struct sink_file_options *o);
void sink_file_release(struct sink_file *s);

/* Creates the folder and holds on to it: if it is removed or renamed from now on, nothing is
 * written to what takes its place. Then, the folders below it. */
MUST_CHECK enum status sink_file_open(struct sink_file *s, struct error *err);
MUST_CHECK enum status sink_file_create_folders(struct sink_file *s, struct error *err);
/* Removes all else that is in the folder but for names that begin with ".ferry-". */
MUST_CHECK enum status sink_file_remove_others(struct sink_file *s, struct error *err);
/* Whether a file is there at its full size. */
bool sink_file_is_intact(const struct sink_file *s, uint32_t file);
/* Completes those of our files that have no segment with bytes. */
MUST_CHECK enum status sink_file_complete_empty(struct sink_file *s, struct error *err);
/* Completes the shared files, durably, in the folder, which need not be open. ERR_RANK where one
 * is gone, or fewer bytes were counted than it has. */
MUST_CHECK enum status sink_file_complete_shared(struct sink_file *s, struct error *err);
/* Waits until the disk has what was written so far. */
MUST_CHECK enum status sink_file_sync(struct sink_file *s, struct error *err);

#endif
