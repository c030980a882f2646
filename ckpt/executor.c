/* executor.c - see executor.h. Invariants:
 *
 * 1. A panel is a run [low, low + count) of one logical tensor's elements, in
 *    order.
 * 2. Each worker has its own buffers; shared state is atomic or locked.
 * 3. The sink gets every byte of a segment once, and each run before its bytes
 *    are counted. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/executor_internal.h"
#include "ckpt/held.h"
#include "ckpt/sink_memory.h"
#include "common/checked.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/host_memory.h"
#include "common/memory.h"

enum { CACHED_SHARE = 4 }; /* of free memory, the part for written pages */

/* ---- the plan as a scan ---- */

static bool is_in_memory(const struct plan *p)
{
    return p->num_files && !p->files[0].path;
}

static enum status begin_task(void *context, const struct scan_task *t, bool *skip,
                              struct error *err);
static bool wants_panel(void *context, const struct scan_task *t, uint64_t low, uint64_t count);
static enum status end_task(void *context, const struct scan_task *t, struct error *err);

static struct scan_item scan_item_of(const struct plan *p, const struct plan_copy *c, bool *casts)
{
    struct scan_item item = {.tensors = {c->source, NULL}};
    for (size_t i = 0; i < c->num_pieces; i++) {
        enum dtype to = plan_piece_dtype(p, &c->pieces[i]);
        item.element_bytes = max_u64(item.element_bytes, dtype_bytes(to));
        const struct pair pair = pair_unpack(&c->pieces[i].pair);
        item.wide |= pair_is_transposed(&pair);
        *casts |= to != c->source->dtype || c->add != 0;
    }
    return item;
}

/* Restricts the item to the elements that go to memory. */
static void read_parts_alone(struct scan_item *item, const struct plan_copy *c, struct arena *a)
{
    struct pair *parts = arena_array(a, c->num_pieces, sizeof *parts);
    for (size_t i = 0; i < c->num_pieces; i++)
        parts[i] = pair_unpack(&c->pieces[i].pair);
    scan_item_read_parts(item, parts, c->num_pieces);
}

static unsigned threads_of(const struct executor_options *o)
{
    return scan_threads(&(struct scan){.threads = o->threads});
}

/* Sets how many of the rank's files stay open at once. */
static enum status share_files(const struct plan *p, const struct executor_options *o,
                               struct scan *s, struct error *err)
{
    size_t wanted = 0;
    for (size_t i = 0; i < p->num_files; i++) {
        const struct output_file *f = &p->files[i];
        wanted += f->path && (f->held || f->rank == o->rank);
    }
    return scan_share_files(s, wanted, &s->kept_files, err);
}

/* Makes a scan with an item for each copy, in arena a. */
static struct scan scan_of(const struct plan *p, const struct executor_options *o, struct arena *a)
{
    struct scan_item *items = arena_array(a, p->num_copies + 1, sizeof *items);
    const bool in_memory = is_in_memory(p);
    struct scan s = {.catalogs = {p->source, NULL},
                     .items = items,
                     .num_items = p->num_copies,
                     .threads = o->threads,
                     .max_memory = o->max_memory,
                     .direct_io = o->direct_io,
                     .kept_bytes = in_memory ? 0 : sink_file_run_bytes(p, threads_of(o)),
                     .begin = begin_task,
                     .wants = o->num_ranks > 1 ? wants_panel : NULL,
                     .visit = in_memory ? executor_fill_memory : executor_write_panel,
                     .end = end_task};
    for (size_t i = 0; i < p->num_copies; i++) {
        const struct tensor *t = p->copies[i].source;
        items[i] = scan_item_of(p, &p->copies[i], &s.casts);
        if (in_memory)
            read_parts_alone(&items[i], &p->copies[i], a);
        else if (tensor_is_held(t))
            items[i].parts = held_parts(t, o->rank, a, &items[i].num_parts);
    }
    if (in_memory) s.casts = false; /* cast_pair() casts block by block */
    return s;
}

enum status executor_memory(const struct plan *p, const struct executor_options *o,
                            uint64_t *peak_bytes, struct error *err)
{
    const struct plan_copy *copies; /* stay allocated, so they count as resident */
    struct arena a;
    arena_init(&a);
    struct scan s = scan_of(p, o, &a);
    s.kept_bytes += sink_file_state_bytes(p) + p->num_copies * sizeof *s.items;
    enum status st = share_files(p, o, &s, err);
    if (!st) st = held_copies(p, o->rank, &a, &copies, err);
    if (!st) st = scan_memory(&s, peak_bytes, err);
    arena_release(&a);
    return st;
}

uint64_t executor_own_bytes(const struct plan *p, const struct executor_options *o)
{
    struct arena a;
    arena_init(&a);
    struct scan s = scan_of(p, o, &a);
    uint64_t bytes = scan_own_bytes(&s);
    arena_release(&a);
    return bytes;
}

/* ---- tasks ---- */

static enum status count_joined(void *context, const struct pair *p, struct error *err)
{
    (void)err;
    *(uint64_t *)context += pair_count(p);
    return OK;
}

/* Counts the tensor's elements [low, low + count) that go to a piece. */
static uint64_t elements_of(const struct target_piece *piece, uint64_t low, uint64_t count)
{
    const struct pair window = pair_whole(low, 0, count), pair = pair_unpack(&piece->pair);
    uint64_t n = 0;
    if (pair_is_apart(&piece->pair, low, count)) return 0;
    return pair_join(&window, &pair, "", count_joined, &n, NULL) ? 0 : n;
}

static bool is_held(const struct executor *x, const struct plan_copy *c)
{
    return !x->sink->address && tensor_is_held(c->source);
}

/* Whether this rank writes the elements of a copy that go to a file. A copy of
 * a held tensor has only elements of this rank. */
static bool writes_file(const struct executor *x, bool held, uint32_t file)
{
    return held || x->plan->files[file].rank == x->options->rank;
}

static bool holds_any(const struct executor *x, const struct scan_task *t)
{
    const struct scan_item *item = &x->items[t->item];
    const struct pair window = pair_whole(t->low, 0, t->high - t->low);
    for (size_t i = 0; i < item->num_parts; i++)
        if (pair_overlap(&window, &item->parts[i])) return true;
    return false;
}

/* Sets w->bytes to the bytes that this rank writes of a task; returns whether
 * it counts the task in digests and casts. Each rank counts the elements that
 * it holds of a held tensor. Other tasks are counted by the rank that writes
 * their first element, or by rank 0 if no rank writes any. */
static bool find_share(const struct executor *x, struct worker *w, const struct scan_task *t)
{
    const struct plan_copy *c = &x->copies[t->item];
    bool held = is_held(x, c), counts = held ? holds_any(x, t) : x->options->rank == 0;
    bool found = held;
    for (size_t i = 0; i < c->num_pieces; i++) {
        const struct segment *s = &x->plan->segments[c->pieces[i].segment];
        bool ours = writes_file(x, held, s->file);
        w->bytes[i] = 0;
        if (!ours && found) continue;
        uint64_t n = elements_of(&c->pieces[i], t->low, t->high - t->low);
        if (ours) w->bytes[i] = dtype_run_bytes(s->dtype, n);
        if (n && !found) counts = ours;
        found |= n > 0;
    }
    return counts;
}

static enum status ask_caller(struct executor *x, enum status (*question)(void *, struct error *),
                              struct error *err)
{
    if (!question) return OK;
    pthread_mutex_lock(&x->asking);
    enum status st = question(x->options->asking_context, err);
    pthread_mutex_unlock(&x->asking);
    return st;
}

/* Calls keep_going() at most once a second. */
static enum status ask_each_second(struct executor *x, struct error *err)
{
    int64_t now = (int64_t)(1000 * seconds_now()), next = atomic_load(&x->next_asking);
    if (now < next || !atomic_compare_exchange_strong(&x->next_asking, &next, now + 1000))
        return OK;
    return ask_caller(x, x->options->keep_going, err);
}

/* Skips tasks that write nothing, holes of files (made by setting the file's
 * size), and tasks of an earlier run. */
static enum status begin_task(void *context, const struct scan_task *t, bool *skip,
                              struct error *err)
{
    struct executor *x = context;
    struct worker *w = &x->workers[t->worker];
    const struct plan_copy *c = &x->copies[t->item];
    uint64_t bytes = 0;
    TRY(ask_each_second(x, err));
    w->read = w->written = (struct digest){{0}};
    w->casts = (struct cast_counts){0};
    w->non_finite = w->num_runs = 0;
    w->chains = must_calloc(c->num_pieces + 1, sizeof *w->chains);
    w->bytes = must_calloc(c->num_pieces + 1, sizeof *w->bytes);
    w->counts = find_share(x, w, t);
    for (size_t i = 0; i < c->num_pieces; i++)
        bytes += w->bytes[i];
    *skip = (bytes == 0 && !(w->counts && is_held(x, c))) ||
            (tensor_is_hole(c->source) && !x->sink->address) ||
            ledger_is_done(&x->ledger, t->number);
    if (*skip) progress_skip(x->progress, bytes);
    if (!ledger_is_done(&x->ledger, t->number)) return OK;
    atomic_fetch_add_explicit(&x->resumed_bytes, bytes, memory_order_relaxed);
    return OK;
}

/* With several ranks: whether this rank writes or counts any element of the
 * panel. */
static bool wants_panel(void *context, const struct scan_task *t, uint64_t low, uint64_t count)
{
    const struct executor *x = context;
    const struct worker *w = &x->workers[t->worker];
    const struct plan_copy *c = &x->copies[t->item];
    struct pair window = pair_whole(low, 0, count);
    bool wanted = w->counts;
    for (size_t i = 0; i < c->num_pieces && !wanted; i++) {
        if (pair_is_apart(&c->pieces[i].pair, low, count)) continue;
        const struct pair pair = pair_unpack(&c->pieces[i].pair);
        wanted = w->bytes[i] && pair_overlap(&window, &pair);
    }
    return wanted;
}

/* ---- the journal ---- */

/* Whether the files of a copy are still as an earlier run left them. */
static bool is_intact(const struct executor *x, const struct plan_copy *c)
{
    const bool held = is_held(x, c);
    for (size_t i = 0; i < c->num_pieces; i++) {
        uint32_t file = x->plan->segments[c->pieces[i].segment].file;
        if (writes_file(x, held, file) && !sink_file_is_intact(&x->files, file)) return false;
    }
    return true;
}

static struct tally start_tally(const struct plan *p, const struct executor_options *o)
{
    if (o->copies) memset(o->copies, 0, p->num_copies * sizeof *o->copies);
    return (struct tally){.plan = p, .copies = o->copies};
}

static void count_task(struct tally *tally, const struct journal_task *t)
{
    if (!t->counts) return;
    cast_counts_join(&tally->casts,
                     &(struct cast_counts){t->cast_elements, t->changed_elements, t->overflowed});
    if (!tally->copies) return;
    struct copy_result *c = &tally->copies[t->item];
    digest_join(&c->read, &t->read);
    digest_join(&c->written, &t->written);
    c->non_finite += t->non_finite;
    c->overflowed += t->overflowed;
}

static enum status check_task(const struct plan *p, const struct journal_task *t,
                              const struct journal_run *runs, struct error *err)
{
    if (t->item >= p->num_copies)
        return fail(err, ERR_OURS, "journal: task %" PRIu64 " names tensor %" PRIu64 " of %zu",
                    t->task, t->item, p->num_copies);
    for (uint64_t i = 0; i < t->num_runs; i++)
        if (runs[i].segment >= p->num_segments)
            return fail(err, ERR_OURS, "journal: %s is written to segment %" PRIu64 " of %zu",
                        p->copies[t->item].source->name, runs[i].segment, p->num_segments);
    return OK;
}

/* Takes over a task of an earlier run. */
static enum status resume_task(void *context, const struct journal_task *t,
                               const struct journal_run *runs, bool *holds, struct error *err)
{
    struct executor *x = context;
    TRY(check_task(x->plan, t, runs, err));
    *holds = is_intact(x, &x->copies[t->item]);
    if (!*holds) return OK;
    count_task(&x->tally, t);
    for (uint64_t i = 0; i < t->num_runs; i++)
        executor_report_run(x, &runs[i]);
    return OK;
}

/* Resumes an earlier run. Removes files that the plan does not fill: the small
 * ones are written again. */
static enum status resume_run(struct executor *x, const struct scan *s, struct error *err)
{
    if (!x->options->resume) return OK;
    TRY(ledger_resume(&x->ledger, scan_count_tasks(s), resume_task, x, err));
    return x->options->rank ? OK : sink_file_remove_others(&x->files, err);
}

/* Makes the journal record of a finished task. */
static struct journal_task task_of(const struct executor *x, const struct scan_task *t,
                                   uint64_t bytes)
{
    const struct worker *w = &x->workers[t->worker];
    return (struct journal_task){.task = t->number,
                                 .item = t->item,
                                 .bytes = bytes,
                                 .counts = w->counts && !ledger_is_done(&x->ledger, t->number),
                                 .read = w->read,
                                 .written = w->written,
                                 .cast_elements = w->casts.elements,
                                 .changed_elements = w->casts.changed,
                                 .non_finite = w->non_finite,
                                 .overflowed = w->casts.overflowed,
                                 .num_runs = w->num_runs};
}

/* Ends the chains of a task and counts the bytes of its segments. All runs are
 * reported before bytes are counted: the last count completes the file and its
 * CRC. */
static enum status end_task(void *context, const struct scan_task *t, struct error *err)
{
    struct executor *x = context;
    struct worker *w = &x->workers[t->worker];
    const struct plan_copy *c = &x->copies[t->item];
    uint64_t bytes = 0;
    enum status st = OK;
    if (plan_digest_dtype(x->plan, &x->plan->copies[t->item]) == c->source->dtype)
        w->written = w->read;
    for (size_t i = 0; i < c->num_pieces; i++) {
        executor_end_chain(x, w, c->pieces[i].segment, &w->chains[i]);
        bytes += w->bytes[i];
    }
    const struct journal_task done = task_of(x, t, bytes);
    pthread_mutex_lock(&x->lock);
    count_task(&x->tally, &done);
    pthread_mutex_unlock(&x->lock);
    bool flush = ledger_enter(&x->ledger, &done, w->runs);
    for (size_t i = 0; i < c->num_pieces && !st; i++)
        if (w->bytes[i] && x->sink->count)
            st = x->sink->count(x->sink, c->pieces[i].segment, w->bytes[i], err);
    if (!st && flush) st = ledger_flush(&x->ledger, err);
    free(w->chains);
    free(w->bytes);
    w->chains = NULL;
    w->bytes = NULL;
    return st;
}

/* ---- a run of the plan ---- */

/* Called before the journal records tasks: syncs their bytes. */
static enum status make_durable(void *context, struct error *err)
{
    struct executor *x = context;
    TRY(sink_file_sync(&x->files, err));
    return ask_caller(x, x->options->is_ours, err);
}

/* Whether written pages would drive others out of the page cache. */
static bool drops_pages(const struct plan *p, const struct executor_options *o)
{
    return o->direct_io || p->target_bytes > host_memory_available() / CACHED_SHARE;
}

static void set_up_executor(struct executor *x, const struct plan *p, const char *folder,
                            const struct executor_options *o)
{
    const struct sink_file_options files = {.rank = o->rank,
                                            .may_exist = o->resume,
                                            .fsync = o->fsync,
                                            .drops_pages = drops_pages(p, o)};
    const struct ledger_options ledger = {.path = o->journal_path,
                                          .work = o->work,
                                          .rank = o->rank,
                                          .flush_bytes = o->journal_bytes,
                                          .durable = o->fsync,
                                          .make_durable = make_durable,
                                          .context = x};
    *x =
        (struct executor){.plan = p, .options = o, .copies = p->copies, .tally = start_tally(p, o)};
    arena_init(&x->arena);
    pthread_mutex_init(&x->lock, NULL);
    pthread_mutex_init(&x->asking, NULL);
    sink_memory_init(&x->memory, p);
    if (folder) sink_file_init(&x->files, p, folder, &files);
    x->sink = folder ? &x->files.sink : &x->memory;
    ledger_init(&x->ledger, &ledger);
}

static void tear_down(struct executor *x)
{
    for (unsigned i = 0; x->workers && i < x->num_workers; i++) {
        free(x->workers[i].chains);
        free(x->workers[i].bytes);
        free(x->workers[i].runs);
    }
    ledger_release(&x->ledger);
    if (x->sink == &x->files.sink) sink_file_release(&x->files);
    pthread_mutex_destroy(&x->asking);
    pthread_mutex_destroy(&x->lock);
    arena_release(&x->arena);
}

static bool has_holder_from(const struct tensor *t, unsigned rank)
{
    for (size_t i = 0; i < t->num_pieces; i++)
        if (t->pieces[i].holder >= rank) return true;
    return false;
}

/* Refuses elements that a rank outside of this run holds. */
static enum status check_holders(const struct executor *x, struct error *err)
{
    const unsigned ranks = x->options->num_ranks ? x->options->num_ranks : 1;
    for (size_t i = 0; i < x->plan->num_copies; i++) {
        const struct tensor *t = x->plan->copies[i].source;
        if (tensor_is_held(t) && has_holder_from(t, ranks))
            return fail(err, ERR_OURS, "%s: has elements that another rank holds", t->name);
    }
    return OK;
}

/* Opens and creates the output folders, and resumes an earlier run. */
static enum status prepare_folder(struct executor *x, const struct scan *s, struct error *err)
{
    if (x->sink != &x->files.sink) return OK;
    TRY(check_holders(x, err));
    TRY(held_copies(x->plan, x->options->rank, &x->arena, &x->copies, err));
    TRY(sink_file_open(&x->files, err));
    TRY(ask_caller(x, x->options->keep_going, err)); /* again, now that the folder is open */
    TRY(sink_file_create_folders(&x->files, err));
    TRY(resume_run(x, s, err));
    return sink_file_complete_empty(&x->files, err);
}

static uint64_t our_bytes(const struct executor *x)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < x->plan->num_copies; i++) {
        const struct plan_copy *c = &x->copies[i];
        const bool held = is_held(x, c);
        for (size_t k = 0; k < c->num_pieces; k++) {
            const struct segment *s = &x->plan->segments[c->pieces[k].segment];
            const struct pair pair = pair_unpack(&c->pieces[k].pair);
            if (writes_file(x, held, s->file))
                bytes += dtype_run_bytes(s->dtype, pair_count(&pair));
        }
    }
    return bytes;
}

static enum status run_all(struct executor *x, struct scan_result *read, struct error *err)
{
    const struct executor_options *o = x->options;
    struct scan s = scan_of(x->plan, o, &x->arena);
    s.context = x;
    TRY(share_files(x->plan, o, &s, err));
    if (x->sink == &x->files.sink) sink_file_keep_open(&x->files, s.kept_files);
    x->items = s.items;
    x->num_workers = scan_threads(&s);
    x->workers = arena_array(&x->arena, x->num_workers, sizeof *x->workers);
    TRY(prepare_folder(x, &s, err));
    x->progress = o->shown
                      ? o->shown
                      : progress_start(o->progress, o->what ? o->what : "converting", our_bytes(x));
    enum status st = scan_run(&s, read, err);
    if (!st && x->sink->finish) st = x->sink->finish(x->sink, err);
    if (!o->shown) progress_finish(x->progress, st == OK);
    if (st) return st;
    /* Other ranks read the journal. Without them an unwritten journal only
     * costs a later run time. */
    st = ledger_flush(&x->ledger, err);
    return o->num_ranks > 1 ? st : OK;
}

/* After a failure: records the finished tasks if the journal has some, if other
 * ranks may continue, or if the run was interrupted. */
static void flush_after_failure(struct executor *x, enum status st)
{
    if (x->ledger.in_journal || x->options->num_ranks > 1 || st == ERR_INTERRUPTED)
        (void)ledger_flush(&x->ledger, NULL);
}

enum status executor_run(const struct plan *p, const char *folder, const struct executor_options *o,
                         struct executor_result *result, struct error *err)
{
    struct executor x;
    struct scan_result read = {0};
    set_up_executor(&x, p, folder, o);
    enum status st = run_all(&x, &read, err);
    if (st) flush_after_failure(&x, st);
    *result = (struct executor_result){.read_bytes = read.read_bytes,
                                       .written_bytes = x.sink->written_bytes,
                                       .cast_elements = x.tally.casts.elements,
                                       .changed_elements = x.tally.casts.changed,
                                       .overflowed = x.tally.casts.overflowed,
                                       .resumed_bytes = x.resumed_bytes,
                                       .in_journal = x.ledger.in_journal};
    tear_down(&x);
    return st;
}

/* ---- the results of all ranks ---- */

struct joining {
    struct tally tally;
    struct sink_file files;
};

static enum status join_run(struct joining *j, const struct journal_run *run, struct error *err)
{
    const struct segment *s = &j->tally.plan->segments[run->segment];
    struct sink *sink = &j->files.sink;
    if (!j->tally.plan->files[s->file].shared) return OK;
    if (s->wants_crc) sink->add_run(sink, run);
    return sink->count(sink, (uint32_t)run->segment, run->bytes, err);
}

static enum status join_task(void *context, const struct journal_task *t,
                             const struct journal_run *runs, struct error *err)
{
    struct joining *j = context;
    const struct plan *p = j->tally.plan;
    TRY(check_task(p, t, runs, err));
    count_task(&j->tally, t);
    for (uint64_t i = 0; i < t->num_runs; i++)
        TRY(join_run(j, &runs[i], err));
    return OK;
}

static enum status join_all(struct joining *j, const struct executor_options *o,
                            const char *const *journals, struct error *err)
{
    struct arena a;
    arena_init(&a);
    struct scan s = scan_of(j->tally.plan, o, &a);
    enum status st =
        ledger_join(journals, o->num_ranks, o->work, scan_count_tasks(&s), join_task, j, err);
    arena_release(&a);
    return st ? st : sink_file_complete_shared(&j->files, err);
}

enum status executor_join(const struct plan *p, const char *folder,
                          const struct executor_options *o, const char *const *journals,
                          struct executor_result *result, struct error *err)
{
    const struct sink_file_options files = {
        .rank = o->rank, .may_exist = true, .fsync = o->fsync, .drops_pages = o->direct_io};
    struct joining j = {.tally = start_tally(p, o)};
    sink_file_init(&j.files, p, folder, &files);
    enum status st = join_all(&j, o, journals, err);
    result->written_bytes += j.files.sink.written_bytes;
    result->cast_elements = j.tally.casts.elements;
    result->changed_elements = j.tally.casts.changed;
    result->overflowed = j.tally.casts.overflowed;
    sink_file_release(&j.files);
    return st;
}
