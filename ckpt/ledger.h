/* ledger.h - which tasks of a run are done, and its journal (journal.h) that tells of them.
 *
 * Tasks are entered as they end, by any thread. Once they wrote enough, what was entered is put on
 * the disk and goes to the journal, by one thread while the others work. */
#ifndef FERRY_CKPT_LEDGER_H
#define FERRY_CKPT_LEDGER_H

#include <pthread.h>
#include <stdint.h>

#include "ckpt/journal.h"

struct ledger_options {
    const char *path;     /* of the journal; NULL: there is none, and nothing is entered */
    const char *work;     /* what it is of; a journal of other work is not continued */
    unsigned rank;        /* whose it is */
    uint64_t flush_bytes; /* that tasks write before it is time to flush */
    bool durable;
    /* Called before entries go to the journal: what they tell of must be on the disk then. */
    enum status (*make_durable)(void *context, struct error *err);
    void *context;
};

struct ledger {
    struct ledger_options options;
    struct strbuf work; /* of this rank */
    bool *done;         /* [num_tasks] by an earlier run; NULL: none */
    size_t num_tasks;
    bool in_journal; /* there is something to continue */

    pthread_mutex_t lock; /* of what follows, and of in_journal */
    struct strbuf entries;
    uint64_t bytes; /* that the tasks of `entries` wrote */
    bool busy;
};

void ledger_init(struct ledger *l, const struct ledger_options *o);
void ledger_release(struct ledger *l);

/* Reads what an earlier run has entered, of num_tasks tasks, and calls take for each task: whether
 * it still holds is up to it. What does not is taken out of the journal. */
typedef enum status ledger_take(void *context, const struct journal_task *t,
                                const struct journal_run *runs, bool *holds, struct error *err);
MUST_CHECK enum status ledger_resume(struct ledger *l, size_t num_tasks, ledger_take *take,
                                     void *context, struct error *err);
bool ledger_is_done(const struct ledger *l, size_t task); /* by an earlier run */

/* Enters a task, unless it was done before. Whether it is time to flush. */
bool ledger_enter(struct ledger *l, const struct journal_task *t, const struct journal_run *runs);
/* Puts what was entered into the journal, unless another thread is at it. Where that fails and
 * nobody looks, the next run does it again. */
enum status ledger_flush(struct ledger *l, struct error *err);

/* Calls count for each task that a rank's journal tells of, once for each rank. journals[r] is the
 * path of rank r's. ERR_RANK where a task is counted by none. */
typedef enum status ledger_count(void *context, const struct journal_task *t,
                                 const struct journal_run *runs, struct error *err);
MUST_CHECK enum status ledger_join(const char *const *journals, unsigned num_ranks,
                                   const char *work, size_t num_tasks, ledger_count *count,
                                   void *context, struct error *err);

#endif
