#include "ckpt/ledger.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/memory.h"

/* The work in the first line of a rank's journal. */
static struct strbuf work_of(const char *work, unsigned rank)
{
    struct strbuf text = {0};
    strbuf_printf(&text, "%s, rank %u", work ? work : "", rank);
    return text;
}

void ledger_init(struct ledger *l, const struct ledger_options *o)
{
    *l = (struct ledger){.options = *o, .work = work_of(o->work, o->rank)};
    pthread_mutex_init(&l->lock, NULL);
}

void ledger_release(struct ledger *l)
{
    strbuf_release(&l->work);
    strbuf_release(&l->entries);
    free(l->done);
    pthread_mutex_destroy(&l->lock);
}

bool ledger_is_done(const struct ledger *l, size_t task)
{
    return l->done && l->done[task];
}

/* ---- tasks of this run ---- */

bool ledger_enter(struct ledger *l, const struct journal_task *t, const struct journal_run *runs)
{
    if (!l->options.path || ledger_is_done(l, t->task)) return false;
    pthread_mutex_lock(&l->lock);
    journal_add(&l->entries, t, runs);
    l->bytes += t->bytes;
    bool enough = l->bytes >= l->options.flush_bytes;
    pthread_mutex_unlock(&l->lock);
    return enough;
}

/* Takes the entries out; false if there are none, or another thread is writing. */
static bool begin_flush(struct ledger *l, struct strbuf *entries)
{
    pthread_mutex_lock(&l->lock);
    bool mine = !l->busy && l->entries.length;
    if (mine) {
        l->busy = true;
        l->bytes = 0;
        *entries = l->entries;
        l->entries = (struct strbuf){0};
    }
    pthread_mutex_unlock(&l->lock);
    return mine;
}

enum status ledger_flush(struct ledger *l, struct error *err)
{
    const struct ledger_options *o = &l->options;
    struct strbuf entries = {0};
    if (!begin_flush(l, &entries)) return OK;
    enum status st = o->make_durable(o->context, err);
    if (!st) st = journal_append(o->path, l->work.data, &entries, o->durable, err);
    strbuf_release(&entries);
    pthread_mutex_lock(&l->lock);
    l->in_journal |= !st;
    l->busy = false;
    pthread_mutex_unlock(&l->lock);
    return st;
}

/* ---- tasks of an earlier run ---- */

struct resuming {
    struct ledger *ledger;
    ledger_take *take;
    void *context;
    struct strbuf kept; /* entries that hold */
    bool dropped;       /* some do not hold */
};

static enum status no_such_task(const char *path, const struct journal_task *t, size_t num_tasks,
                                struct error *err)
{
    return fail(err, ERR_OURS, "%s: records task %" PRIu64 ", the run has %zu tasks", path, t->task,
                num_tasks);
}

static enum status take_task(void *context, const struct journal_task *t,
                             const struct journal_run *runs, struct error *err)
{
    struct resuming *r = context;
    struct ledger *l = r->ledger;
    bool holds = false;
    if (t->task >= l->num_tasks) return no_such_task(l->options.path, t, l->num_tasks, err);
    if (!l->done[t->task] && r->take(r->context, t, runs, &holds, err))
        return fail_in(err, "%s", l->options.path);
    if (!holds) {
        r->dropped = true;
        return OK;
    }
    l->done[t->task] = l->in_journal = true;
    journal_add(&r->kept, t, runs);
    return OK;
}

enum status ledger_resume(struct ledger *l, size_t num_tasks, ledger_take *take, void *context,
                          struct error *err)
{
    const struct ledger_options *o = &l->options;
    struct resuming r = {.ledger = l, .take = take, .context = context};
    l->num_tasks = num_tasks;
    l->done = must_calloc(num_tasks + 1, sizeof *l->done);
    enum status st = journal_read(o->path, l->work.data, true, take_task, &r, err);
    if (!st && r.dropped) { /* before the files of dropped records are written again */
        st = path_remove(o->path, err);
        if (!st) st = journal_append(o->path, l->work.data, &r.kept, o->durable, err);
    }
    strbuf_release(&r.kept);
    return st;
}

/* ---- tasks of all ranks ---- */

struct joining {
    const char *path;
    bool *counted, *seen; /* [num_tasks], by any rank; in this journal */
    size_t num_tasks, num_counted;
    ledger_count *count;
    void *context;
};

/* A task that two processes of one rank entered counts once. Each rank counts
 * its part of a held tensor. */
static enum status join_task(void *context, const struct journal_task *t,
                             const struct journal_run *runs, struct error *err)
{
    struct joining *j = context;
    if (t->task >= j->num_tasks) return no_such_task(j->path, t, j->num_tasks, err);
    if (j->seen[t->task]) return OK;
    j->seen[t->task] = true;
    j->num_counted += t->counts && !j->counted[t->task];
    j->counted[t->task] |= t->counts;
    return j->count(j->context, t, runs, err) ? fail_in(err, "%s", j->path) : OK;
}

enum status ledger_join(const char *const *journals, unsigned num_ranks, const char *work,
                        size_t num_tasks, ledger_count *count, void *context, struct error *err)
{
    struct joining j = {.num_tasks = num_tasks, .count = count, .context = context};
    enum status st = OK;
    j.counted = must_calloc(num_tasks + 1, sizeof *j.counted);
    j.seen = must_calloc(num_tasks + 1, sizeof *j.seen);
    for (unsigned r = 0; r < num_ranks && !st; r++) {
        struct strbuf of_rank = work_of(work, r);
        j.path = journals[r];
        memset(j.seen, 0, num_tasks * sizeof *j.seen);
        st = journal_read(journals[r], of_rank.data, false, join_task, &j, err);
        strbuf_release(&of_rank);
    }
    free(j.counted);
    free(j.seen);
    if (st || j.num_counted == num_tasks) return st;
    return fail(err, ERR_RANK,
                "the ranks' journals record %zu of the plan's %zu tasks; --restart discards them "
                "and starts over",
                j.num_counted, num_tasks);
}
