/* ledger.h - the finished tasks of a run, and the journal (journal.h) that
 * records them.
 *
 * Any thread enters a task when it ends. After flush_bytes one thread syncs the
 * written files and appends the entries to the journal, while others go on. */
#ifndef FERRY_CKPT_LEDGER_H
#define FERRY_CKPT_LEDGER_H

#include <pthread.h>
#include <stdint.h>

#include "ckpt/journal.h"

struct ledger_options {
    const char *path;     /* of the journal; NULL: no journal */
    const char *work;     /* identifies the run; a journal of other work is not continued */
    unsigned rank;        /* of this process */
    uint64_t flush_bytes; /* bytes written between two journal records */
    bool durable;
    /* Called before entries go to the journal: syncs the files of their tasks. */
    enum status (*make_durable)(void *context, struct error *err);
    void *context;
};

struct ledger {
    struct ledger_options options;
    struct strbuf work; /* of this rank */
    bool *done;         /* [num_tasks] by an earlier run; NULL: none */
    size_t num_tasks;
    bool in_journal; /* the journal has a finished task */

    pthread_mutex_t lock; /* protects the members below, and in_journal */
    struct strbuf entries;
    uint64_t bytes; /* written by the tasks of `entries` */
    bool busy;
};

void ledger_init(struct ledger *l, const struct ledger_options *o);
void ledger_release(struct ledger *l);

/* Reads the journal of an earlier run of num_tasks tasks. Calls take for each
 * record; it sets *holds to whether the written files still match. Other
 * records are removed from the journal. */
typedef enum status ledger_take(void *context, const struct journal_task *t,
                                const struct journal_run *runs, bool *holds, struct error *err);
MUST_CHECK enum status ledger_resume(struct ledger *l, size_t num_tasks, ledger_take *take,
                                     void *context, struct error *err);
bool ledger_is_done(const struct ledger *l, size_t task); /* by an earlier run */

/* Enters a task, unless an earlier run did it. true: call ledger_flush() now. */
bool ledger_enter(struct ledger *l, const struct journal_task *t, const struct journal_run *runs);
/* Appends the entries to the journal, unless another thread is doing so.
 * Failures may be ignored: the next run repeats these tasks. */
enum status ledger_flush(struct ledger *l, struct error *err);

/* Calls count for each record of each rank's journal. journals[r]: path of rank
 * r's. ERR_RANK if no rank counted some task. */
typedef enum status ledger_count(void *context, const struct journal_task *t,
                                 const struct journal_run *runs, struct error *err);
MUST_CHECK enum status ledger_join(const char *const *journals, unsigned num_ranks,
                                   const char *work, size_t num_tasks, ledger_count *count,
                                   void *context, struct error *err);

#endif
