/* sink_file.h - the files of a plan while they are filled.
 *
 * - A file is created at its first write, with its full size.
 * - If more files are needed than may be open, the least recently written one
 *   is closed, and opened again when needed.
 * - The thread that counts the last bytes of a file calls output_file.finish.
 * - If a segment wants a CRC-32, its runs are added with theirs before their
 *   bytes are counted; runs and holes of a complete segment must tile it.
 * - Rank 0 completes a shared file, and counts the bytes of all ranks. */
#ifndef FERRY_CKPT_SINK_FILE_H
#define FERRY_CKPT_SINK_FILE_H

#include <pthread.h>

#include "ckpt/sink.h"
#include "common/open_files.h"

struct sink_file_options {
    unsigned rank;  /* whose files are written */
    bool may_exist; /* continues files of an earlier run */
    bool fsync;
    bool drops_pages; /* from the page cache, once they are on disk */
};

struct sink_file {
    struct sink sink; /* finish() closes the files of this rank, durably */
    struct sink_file_options options;
    const char *folder;
    int folder_fd; /* the open folder: writes go there even if it is renamed */
    struct filled_segment *segments;
    struct filled_file *files;
    struct open_files open; /* of files */
    struct arena arena;
    pthread_mutex_t lock; /* protects the runs of all segments */
};

/* Bytes of memory that a sink needs: before the first write; at most, for runs
 * of segments that `threads` of a scan write. */
uint64_t sink_file_state_bytes(const struct plan *p);
uint64_t sink_file_run_bytes(const struct plan *p, unsigned threads);

/* Creates no file yet. Borrows plan and folder. */
void sink_file_init(struct sink_file *s, const struct plan *p, const char *folder,
                    const struct sink_file_options *o);
void sink_file_release(struct sink_file *s);
/* Limits the number of open files; no limit before. */
void sink_file_keep_open(struct sink_file *s, size_t max_open);

/* Creates and opens the folder: if it is removed or renamed later, a new folder
 * of its name stays untouched. sink_file_create_folders() then creates those
 * below. */
MUST_CHECK enum status sink_file_open(struct sink_file *s, struct error *err);
MUST_CHECK enum status sink_file_create_folders(struct sink_file *s, struct error *err);
/* Removes all other files of the folder, except names that begin with
 * ".ferry-". */
MUST_CHECK enum status sink_file_remove_others(struct sink_file *s, struct error *err);
/* Whether a file exists with its full size. */
bool sink_file_is_intact(const struct sink_file *s, uint32_t file);
/* Completes this rank's files whose segments are all empty. */
MUST_CHECK enum status sink_file_complete_empty(struct sink_file *s, struct error *err);
/* Completes the shared files, durably; the folder need not be open. ERR_RANK if
 * a file is gone or some of its bytes were not counted. */
MUST_CHECK enum status sink_file_complete_shared(struct sink_file *s, struct error *err);
/* Waits until all written bytes are on disk. */
MUST_CHECK enum status sink_file_sync(struct sink_file *s, struct error *err);

#endif
