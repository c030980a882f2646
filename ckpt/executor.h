/* executor.h - runs a plan: a scan of the source (scan.h) that writes each panel to the
 * target pieces that take it, in files or in memory (sink.h). So every source byte is read once and
 * every output byte written once, what is replicated is read once, and memory does not depend on
 * the model.
 *
 * Of several ranks each writes the files that plan_split() gave it, and reads what these need; of
 * tensors that lie in the memory of ranks each writes what it holds (held.h). What
 * a tensor's digest and the number of its casts are is counted by one rank, task by task, and is
 * added up from their journals. Elements that a cast makes infinite are always counted, those that
 * are NaN or infinite in the source where there are digests, for which they are read anyway. */
#ifndef FERRY_CKPT_EXECUTOR_H
#define FERRY_CKPT_EXECUTOR_H

#include "ckpt/plan.h"
#include "common/progress.h"
#include "kernels/cpu/digest_sums.h"

/* What became of a carry. */
struct carry_result {
    struct digest read, written; /* written is of the target's dtype */
    uint64_t non_finite;         /* elements of the source that are NaN or infinite */
    uint64_t overflowed;         /* finite ones that a cast made infinite */
};

struct executor_options {
    unsigned threads;    /* 0: as many as there are CPUs */
    uint64_t max_memory; /* bytes resident, of the whole process; 0: no limit */
    bool fsync;
    bool direct_io; /* reads pass by the page cache, and what is written leaves it */
    bool digests;   /* of what is read and written, in `carries` */
    struct carry_result
        *carries; /* [num_carries of the plan], the caller's, is set; NULL: not wanted */
    unsigned rank, num_ranks; /* whose files; 0 of 0: all files */
    /* The journal (journal.h) gets a record each time that journal_bytes were written, at the
     * end, and when the run is interrupted; resume continues what an earlier run has noted there.
     * NULL: there is no journal. Each of several ranks has its own. */
    const char *journal_path;
    const char *work; /* what the journal is of; a journal of other work is not continued */
    uint64_t journal_bytes;
    bool resume;
    /* keep_going is asked when it begins and each second; is_ours before anything is noted: whether
     * the folder is still ours to write to. By one thread at a time. Each may be NULL. */
    enum status (*keep_going)(void *context, struct error *err);
    enum status (*is_ours)(void *context, struct error *err);
    void *asking_context;
    enum progress_style progress;
    const char *what; /* that progress shows; NULL: "converting" */
};

struct executor_result {
    uint64_t read_bytes, written_bytes;       /* by this process */
    uint64_t cast_elements, changed_elements; /* by casts */
    uint64_t overflowed;                      /* finite ones that casts made infinite */
    uint64_t resumed_bytes;                   /* that an earlier run had written */
    bool in_journal;                          /* after a failure: there is something to continue */
};

/* Bytes that buffers will take, or ERR_MEMORY with the least --max-memory that works. To be asked
 * when the plan is complete: what is resident already counts. */
MUST_CHECK enum status executor_memory(const struct plan *p, const struct executor_options *o,
                                       uint64_t *peak_bytes, struct error *err);

/* Bytes that a run without a limit allocates for a while. */
uint64_t executor_own_bytes(const struct plan *p, const struct executor_options *o);

/* Creates all files of the plan below `folder` (their folders too) and fills them; NULL: the plan
 * is of memory. If the folder is removed or renamed meanwhile, nothing is written to what takes its
 * place. On failure what was written stays where it is. To resume, all else that is in the folder
 * is removed first (by rank 0), but for names that begin with ".ferry-". */
MUST_CHECK enum status executor_run(const struct plan *p, const char *folder,
                                    const struct executor_options *o,
                                    struct executor_result *result, struct error *err);

/* Rank 0, once all ranks are done: o->carries and the result's casts are what the journals of all
 * say, and files that ranks share are completed (held.h). journals[r] is the path of rank r's.
 * ERR_RANK where a task is counted by none, or elements of a shared file were written by none. */
MUST_CHECK enum status executor_join(const struct plan *p, const char *folder,
                                     const struct executor_options *o, const char *const *journals,
                                     struct executor_result *result, struct error *err);

#endif
