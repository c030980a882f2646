/* executor.h - runs a plan: scans the source (scan.h) and writes each panel to
 * its target pieces, in files or memory (sink.h).
 *
 * - Every source byte is read once, even for many files.
 * - Every output byte is written once.
 * - Memory does not depend on the size of the model.
 * - Each rank writes the files of plan_split(), and reads only their elements.
 *   Ranks write the tensors that they hold in memory (held.h).
 * - One rank counts the digests and casts of a task; executor_join() sums the
 *   ranks' journals.
 * - Elements that a cast makes infinite are always counted, NaN and infinite
 *   elements of the source only with digests. */
#ifndef FERRY_CKPT_EXECUTOR_H
#define FERRY_CKPT_EXECUTOR_H

#include "ckpt/plan.h"
#include "common/progress.h"
#include "kernels/cpu/digest_sums.h"

/* Digests and counts of a copy. */
struct copy_result {
    struct digest read, written; /* written: in the target's dtype */
    uint64_t non_finite;         /* elements of the source that are NaN or infinite */
    uint64_t overflowed;         /* finite ones that a cast made infinite */
};

struct executor_options {
    unsigned threads;    /* 0: as many as there are CPUs */
    uint64_t max_memory; /* bytes resident, of the whole process; 0: no limit */
    bool fsync;
    bool direct_io; /* reads bypass the page cache; written pages are dropped from it, as they are
                       in any case if they would fill a quarter of the free memory */
    bool digests;   /* of elements read and written, in `copies` */
    struct copy_result *copies; /* the caller's [num_copies], set; NULL: not wanted */
    unsigned rank, num_ranks;   /* writes the files of this rank; 0 of 0: all files */
    /* The journal (journal.h) of this rank; NULL: none. Records are appended
     * after each journal_bytes, at the end, and on an interrupt. resume: skips
     * tasks that the journal records as done. */
    const char *journal_path;
    const char *work;       /* identifies the run; a journal of other work is not continued */
    uint64_t journal_bytes; /* bytes written between two journal records */
    bool resume;
    /* Called by one thread at a time; each may be NULL. keep_going: at the
     * start and each second. is_ours: before each journal record; fails if
     * another process took over the folder. */
    enum status (*keep_going)(void *context, struct error *err);
    enum status (*is_ours)(void *context, struct error *err);
    void *asking_context;
    enum progress_style progress;
    const char *what;       /* title of the progress bar; NULL: "converting" */
    struct progress *shown; /* the caller's, for several runs; NULL: one for this run */
};

struct executor_result {
    uint64_t read_bytes, written_bytes;       /* by this process */
    uint64_t cast_elements, changed_elements; /* by casts */
    uint64_t overflowed;                      /* finite ones that casts made infinite */
    uint64_t resumed_bytes;                   /* written by an earlier run */
    bool in_journal;                          /* after a failure: a later run can continue */
};

/* Peak resident bytes of a run. ERR_MEMORY if they exceed max_memory; then
 * *peak_bytes is the least limit that works, as the message says. ERR_IO if
 * this process may open too few files. Call it when the plan is complete:
 * memory that is resident now counts. */
MUST_CHECK enum status executor_memory(const struct plan *p, const struct executor_options *o,
                                       uint64_t *peak_bytes, struct error *err);

/* Bytes that a run without a memory limit allocates until it ends. */
uint64_t executor_own_bytes(const struct plan *p, const struct executor_options *o);

/* Creates the plan's files and their folders below `folder`, and fills them.
 *
 * - folder NULL: fills the plan's arrays.
 * - If the folder is removed or renamed during the run, a new folder of its
 *   name stays untouched.
 * - After a failure the written files stay.
 * - With resume, rank 0 first removes all other files of the folder, except
 *   names that begin with ".ferry-". */
MUST_CHECK enum status executor_run(const struct plan *p, const char *folder,
                                    const struct executor_options *o,
                                    struct executor_result *result, struct error *err);

/* Rank 0, once all ranks are done: sums o->copies and the result's casts over
 * all ranks' journals, and completes shared files (held.h). journals[r]: path
 * of rank r's journal. ERR_RANK if no rank counted a task, or wrote some
 * elements of a shared file. */
MUST_CHECK enum status executor_join(const struct plan *p, const char *folder,
                                     const struct executor_options *o, const char *const *journals,
                                     struct executor_result *result, struct error *err);

#endif
