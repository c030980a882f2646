/* executor.c - see executor.h. Invariants:
 *
 * 1. A panel is a run [low, low + count) of one logical tensor's elements, in their order.
 * 2. A worker has its own buffers; what workers share is behind `lock` or atomic.
 * 3. Every byte of a segment is written once: plan_finish() has seen to it, and bytes_left counts
 * them down. Where its CRC-32 is wanted, the runs that were written are kept with theirs; when the
 * segment is complete they must tile it, and their CRCs combine to the segment's.
 * 4. The worker that completes the last segment of a file writes the rest of the file. */
#include "ckpt/executor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libdeflate.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "ckpt/block.h"
#include "ckpt/digest.h"
#include "ckpt/journal.h"
#include "ckpt/publish.h"
#include "ckpt/scan.h"
#include "common/checked.h"
#include "common/file.h"
#include "common/memory.h"
#include "common/threads.h"
#include "kernels/cpu/cast.h"

enum {
    WRITEBACK_BYTES = 8 << 20, /* dirty bytes of a file that are worth starting to write back */
    FSYNC_THREADS = 8,
};

/* One written run of a segment that wants a CRC. */
struct run {
    struct run *next;
    uint64_t offset, bytes; /* within the segment */
    uint32_t crc;
};

struct segment_state {
    _Atomic uint64_t bytes_left;
    struct run *runs; /* behind lock */
};

struct file_state {
    int fd; /* -1 until the first write */
    char *path;
    pthread_mutex_t lock; /* of opening */
    _Atomic uint32_t segments_left;
    _Atomic uint64_t dirty_bytes;
};

/* A run that grows while a task lasts and what it writes goes on behind it. */
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
    uint64_t cast_elements, changed_elements;
};

/* What is done, and not in the journal yet; all but `done` behind the executor's lock. */
struct noting {
    struct strbuf records;
    uint64_t bytes; /* that the tasks of `records` wrote */
    bool busy, in_journal;
    bool *done; /* [num_tasks] by an earlier run; NULL: none */
    size_t num_tasks;
    struct strbuf kept; /* records of an earlier run that still hold */
    bool dropped;       /* there are others */
};

struct executor {
    struct plan *plan;
    const struct executor_options *options;
    const char *folder, *work; /* what the journal is of */
    int folder_fd;             /* so that all goes there, whatever its name is by now */
    uint64_t bytes;            /* of our files */
    struct segment_state *segments;
    struct file_state *files;
    struct worker *workers;
    unsigned num_workers;
    struct arena arena; /* states, runs */
    pthread_mutex_t lock;
    struct progress *progress;
    _Atomic uint64_t written_bytes, resumed_bytes;
    struct noting noting;
    uint64_t cast_elements, changed_elements; /* of all tasks that ended, behind lock */
    bool *counted;                            /* [num_tasks], of executor_join */
    uint64_t num_counted;
    pthread_mutex_t asking; /* of keep_going */
    _Atomic int64_t next_asking;
};

/* ---- the plan as a scan ---- */

/* Whether the panel's elements are cast before they are written. */
static bool is_cast(const struct plan *p, const struct carry *c)
{
    return c->num_pieces && p->segments[c->pieces[0].segment].dtype != c->source->dtype;
}

static enum status begin_task(void *context, const struct scan_task *t, bool *skip,
                              struct error *err);
static bool wants_panel(void *context, const struct scan_task *t, uint64_t low, uint64_t count);
static enum status write_panel(void *context, const struct scan_panel *p, struct error *err);
static enum status end_task(void *context, const struct scan_task *t, struct error *err);

/* What is kept of a plan while it runs: an estimate, since runs may be many. */
static uint64_t kept_bytes(const struct plan *p)
{
    return p->num_segments * (sizeof(struct segment_state) + sizeof(struct run)) +
           p->num_files * sizeof(struct file_state) + p->num_carries * sizeof(struct scan_item);
}

/* The carries as items, in an array of the caller's. */
static struct scan scan_of(const struct plan *p, const struct executor_options *o,
                           struct scan_item *items)
{
    struct scan s = {.catalogs = {p->source, NULL},
                     .items = items,
                     .num_items = p->num_carries,
                     .threads = o->threads,
                     .max_memory = o->max_memory,
                     .direct_io = o->direct_io,
                     .kept_bytes = kept_bytes(p),
                     .begin = begin_task,
                     .wants = o->num_ranks > 1 ? wants_panel : NULL,
                     .visit = write_panel,
                     .end = end_task};
    for (size_t i = 0; i < p->num_carries; i++) {
        const struct carry *c = &p->carries[i];
        items[i] = (struct scan_item){.tensors = {c->source, NULL}};
        s.casts |= is_cast(p, c);
        if (c->num_pieces)
            items[i].element_bytes = dtype_bytes(p->segments[c->pieces[0].segment].dtype);
        for (size_t k = 0; k < c->num_pieces; k++)
            items[i].wide |= pair_is_transposed(&c->pieces[k].pair);
    }
    return s;
}

enum status executor_memory(const struct plan *p, const struct executor_options *o,
                            uint64_t *peak_bytes, struct error *err)
{
    struct scan_item *items = must_calloc(p->num_carries + 1, sizeof *items);
    struct scan s = scan_of(p, o, items);
    enum status st = scan_memory(&s, peak_bytes, err);
    free(items);
    return st;
}

/* ---- writing ---- */

/* Opens the output file at its first use. Sizes are set at once, so that nobody sees it grow. */
static enum status output_fd(struct executor *x, uint32_t file, int *fd, struct error *err)
{
    struct file_state *f = &x->files[file];
    enum status st = OK;
    pthread_mutex_lock(&f->lock);
    if (f->fd < 0) {
        st = file_create_at(x->folder_fd, x->plan->files[file].path, f->path, x->options->resume,
                            &f->fd, err);
        if (!st && ftruncate(f->fd, (off_t)x->plan->files[file].size_bytes))
            st = fail_errno(err, ERR_IO, "%s: setting its size", f->path);
    }
    *fd = f->fd;
    pthread_mutex_unlock(&f->lock);
    return st;
}

/* Starts the writeback of what gathered in a file, so that fsync at the end finds little to do. */
static void start_writeback(struct executor *x, uint32_t file, uint64_t bytes)
{
    struct file_state *f = &x->files[file];
    if (!x->options->fsync) return;
    uint64_t dirty = atomic_fetch_add(&f->dirty_bytes, bytes) + bytes;
    if (dirty < WRITEBACK_BYTES) return;
    atomic_fetch_sub(&f->dirty_bytes, dirty);
    (void)sync_file_range(f->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
}

static void add_run(struct executor *x, const struct journal_run *r)
{
    struct run *run = arena_alloc(&x->arena, sizeof *run);
    *run = (struct run){x->segments[r->segment].runs, r->offset, r->bytes, (uint32_t)r->crc};
    x->segments[r->segment].runs = run;
}

static void end_chain(struct executor *x, struct worker *w, uint32_t segment, struct chain *c)
{
    struct journal_run run = {segment, c->offset, c->bytes, c->crc};
    if (!c->bytes) return;
    pthread_mutex_lock(&x->lock);
    add_run(x, &run);
    pthread_mutex_unlock(&x->lock);
    *c = (struct chain){0};
    if (!x->options->journal_path) return;
    if (w->num_runs == w->runs_capacity) {
        w->runs_capacity = 2 * w->runs_capacity + 16;
        w->runs = must_realloc(w->runs, w->runs_capacity * sizeof *w->runs);
    }
    w->runs[w->num_runs++] = run;
}

static void add_to_chain(struct executor *x, struct worker *w, uint32_t segment, struct chain *c,
                         const void *from, uint64_t offset, uint64_t bytes)
{
    if (c->offset + c->bytes != offset) end_chain(x, w, segment, c);
    if (!c->bytes) c->offset = offset;
    c->crc = libdeflate_crc32(c->crc, from, bytes);
    c->bytes += bytes;
}

struct writing {
    struct executor *x;
    struct worker *w;
    const struct target_piece *piece;
    const char *panel; /* in the target's dtype */
    char *temp;        /* as large */
    size_t element_bytes;
    struct chain *chain;
};

static enum status write_run(const struct writing *wr, const void *from, uint64_t at,
                             uint64_t count, struct error *err)
{
    struct executor *x = wr->x;
    const struct segment *s = &x->plan->segments[wr->piece->segment];
    uint64_t offset = at * wr->element_bytes, bytes = count * wr->element_bytes;
    int fd;
    if (s->wants_crc) add_to_chain(x, wr->w, wr->piece->segment, wr->chain, from, offset, bytes);
    TRY(output_fd(x, s->file, &fd, err));
    TRY(file_write(fd, x->files[s->file].path, from, bytes, s->offset_bytes + offset, err));
    atomic_fetch_add_explicit(&x->written_bytes, bytes, memory_order_relaxed);
    progress_add(x->progress, bytes);
    start_writeback(x, s->file, bytes);
    return OK;
}

/* Writes the block (a: the segment, from element `to`; b: the panel, from `from`), run by run of
 * the segment. */
static enum status write_block(const struct writing *wr, const struct block *b, uint64_t from,
                               uint64_t to, struct error *err)
{
    const char *source = wr->panel + from * wr->element_bytes;
    uint64_t count = block_count(b);
    if (block_is_run(b)) return write_run(wr, source, to, count, err);
    if (block_file_run(b) == count) { /* which fit temp as they fit the panel */
        struct block out = *b;        /* copy_axes goes from a to b */
        for (unsigned k = 0; k < out.num_axes; k++) {
            out.axes[k].a_stride = b->axes[k].b_stride;
            out.axes[k].b_stride = b->axes[k].a_stride;
        }
        copy_axes(wr->temp, source, wr->element_bytes, out.num_axes, out.axes);
        return write_run(wr, wr->temp, to, count, err);
    }
    uint64_t extent = b->axes[0].extent, half = (extent + 1) / 2;
    for (uint64_t i = 0; i < extent; i += half) {
        struct block part = block_part(b, min_u64(half, extent - i));
        TRY(write_block(wr, &part, from + i * b->axes[0].b_stride, to + i * b->axes[0].a_stride,
                        err));
    }
    return OK;
}

static enum status write_joined(void *context, const struct pair *p, struct error *err)
{
    const struct writing *wr = context; /* p.a: the panel, p.b: the segment */
    struct block b = block_of(p, false);
    return write_block(wr, &b, p->a_offset, p->b_offset, err);
}

/* ---- files that are complete ---- */

static int by_offset(const void *a, const void *b)
{
    const struct run *x = *(struct run *const *)a, *y = *(struct run *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The CRC-32 of a complete segment from those of its runs, which must tile it. */
static enum status combine_runs(struct executor *x, uint32_t segment, struct error *err)
{
    struct segment *s = &x->plan->segments[segment];
    uint64_t end = 0;
    size_t n = 0;
    if (!s->wants_crc) return OK;
    for (struct run *r = x->segments[segment].runs; r; r = r->next)
        n++;
    struct run **runs = malloc(n * sizeof *runs + 1);
    if (!runs) return fail(err, ERR_MEMORY, "no memory for %zu runs", n);
    n = 0;
    for (struct run *r = x->segments[segment].runs; r; r = r->next)
        runs[n++] = r;
    if (n) qsort(runs, n, sizeof *runs, by_offset);
    s->crc = 0;
    for (size_t i = 0; i < n && runs[i]->offset == end; i++) {
        s->crc = (uint32_t)crc32_combine(s->crc, runs[i]->crc, (off_t)runs[i]->bytes);
        end += runs[i]->bytes;
    }
    free(runs);
    if (end == s->numel * dtype_bytes(s->dtype)) return OK;
    return fail(err, ERR_OURS, "%s: a segment was written to byte %" PRIu64 " of %" PRIu64,
                x->files[s->file].path, end, s->numel * dtype_bytes(s->dtype));
}

struct file_output {
    struct executor *x;
    uint32_t file;
    int fd;
};

static enum status put_bytes(void *context, uint64_t offset, const void *bytes, size_t count,
                             struct error *err)
{
    struct file_output *o = context;
    TRY(file_write(o->fd, o->x->files[o->file].path, bytes, count, offset, err));
    atomic_fetch_add_explicit(&o->x->written_bytes, count, memory_order_relaxed);
    return OK;
}

static enum status complete_file(struct executor *x, uint32_t file, struct error *err)
{
    const struct output_file *f = &x->plan->files[file];
    struct file_output o = {.x = x, .file = file};
    for (uint32_t i = 0; i < f->num_segments; i++)
        TRY(combine_runs(x, x->plan->by_file[f->first_segment + i], err));
    TRY(output_fd(x, file, &o.fd, err));
    struct file_writer writer = {put_bytes, &o};
    if (f->finish) TRY(f->finish(x->plan, file, f->finish_context, &writer, err));
    if (x->options->fsync) (void)sync_file_range(o.fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    return OK;
}

/* Takes bytes off what is left of a segment; the last ones complete it, and perhaps its file. */
static enum status segment_progress(struct executor *x, uint32_t segment, uint64_t bytes,
                                    struct error *err)
{
    if (atomic_fetch_sub(&x->segments[segment].bytes_left, bytes) != bytes) return OK;
    uint32_t file = x->plan->segments[segment].file;
    if (atomic_fetch_sub(&x->files[file].segments_left, 1) != 1) return OK;
    return complete_file(x, file, err);
}

/* ---- tasks ---- */

static bool is_hole(const struct carry *c)
{
    return c->source->num_pieces && c->source->pieces[0].source == PIECE_HOLE;
}

static enum status count_joined(void *context, const struct pair *p, struct error *err)
{
    (void)err;
    *(uint64_t *)context += pair_count(p);
    return OK;
}

static bool is_done(const struct executor *x, const struct scan_task *t)
{
    return x->noting.done && x->noting.done[t->number];
}

static bool is_ours(const struct executor *x, uint32_t file)
{
    return x->plan->files[file].rank == x->options->rank;
}

/* How many elements of [low, low + count) of the tensor go to a piece. */
static uint64_t elements_of(const struct target_piece *piece, uint64_t low, uint64_t count)
{
    struct pair window = pair_whole(low, 0, count);
    uint64_t n = 0;
    return pair_join(&window, &piece->pair, count_joined, &n, NULL) ? 0 : n;
}

/* Whether a task is ours to count: it is who writes the first of its elements; where nobody writes
 * any, rank 0. Sets w->bytes to what we write. */
static bool find_share(const struct executor *x, struct worker *w, const struct scan_task *t)
{
    const struct carry *c = &x->plan->carries[t->item];
    bool counts = x->options->rank == 0, found = false;
    for (size_t i = 0; i < c->num_pieces; i++) {
        const struct segment *s = &x->plan->segments[c->pieces[i].segment];
        bool ours = is_ours(x, s->file);
        w->bytes[i] = 0;
        if (!ours && found) continue;
        uint64_t n = elements_of(&c->pieces[i], t->low, t->high - t->low);
        if (ours) w->bytes[i] = n * dtype_bytes(s->dtype);
        if (n && !found) counts = ours;
        found |= n > 0;
    }
    return counts;
}

static enum status ask(struct executor *x, struct error *err)
{
    if (!x->options->keep_going) return OK;
    pthread_mutex_lock(&x->asking);
    enum status st = x->options->keep_going(x->options->keep_going_context, err);
    pthread_mutex_unlock(&x->asking);
    return st;
}

/* Asks at most once a second. */
static enum status ask_now_and_then(struct executor *x, struct error *err)
{
    int64_t now = (int64_t)(1000 * seconds_now()), next = atomic_load(&x->next_asking);
    if (now < next || !atomic_compare_exchange_strong(&x->next_asking, &next, now + 1000))
        return OK;
    return ask(x, err);
}

/* Skips what no segment takes, holes (they are there once the file has its size), and what an
 * earlier run has done. */
static enum status begin_task(void *context, const struct scan_task *t, bool *skip,
                              struct error *err)
{
    struct executor *x = context;
    struct worker *w = &x->workers[t->worker];
    const struct carry *c = &x->plan->carries[t->item];
    uint64_t bytes = 0;
    TRY(ask_now_and_then(x, err));
    w->read = w->written = (struct digest){{0}};
    w->cast_elements = w->changed_elements = w->num_runs = 0;
    w->chains = must_calloc(c->num_pieces + 1, sizeof *w->chains);
    w->bytes = must_calloc(c->num_pieces + 1, sizeof *w->bytes);
    w->counts = find_share(x, w, t);
    for (size_t i = 0; i < c->num_pieces; i++)
        bytes += w->bytes[i];
    *skip = bytes == 0 || is_hole(c) || is_done(x, t);
    if (!is_done(x, t)) return OK;
    progress_add(x->progress, bytes);
    atomic_fetch_add_explicit(&x->resumed_bytes, bytes, memory_order_relaxed);
    return OK;
}

/* Of several ranks: not a panel of which we neither write nor count anything. */
static bool wants_panel(void *context, const struct scan_task *t, uint64_t low, uint64_t count)
{
    const struct executor *x = context;
    const struct worker *w = &x->workers[t->worker];
    const struct carry *c = &x->plan->carries[t->item];
    struct pair window = pair_whole(low, 0, count);
    bool wanted = w->counts;
    for (size_t i = 0; i < c->num_pieces && !wanted; i++)
        wanted = w->bytes[i] && pair_overlap(&window, &c->pieces[i].pair);
    return wanted;
}

static const char *cast_panel(struct executor *x, const struct scan_panel *p, const struct carry *c)
{
    struct worker *w = &x->workers[p->task->worker];
    w->cast_elements += p->cast_elements;
    w->changed_elements += p->changed_elements;
    if (!is_cast(x->plan, c)) return p->elements[0];
    enum dtype to = x->plan->segments[c->pieces[0].segment].dtype;
    w->cast_elements += p->count;
    w->changed_elements += cast_elements(p->cast, to, p->elements[0], c->source->dtype, p->count);
    return p->cast;
}

static void add_digests(struct executor *x, const struct scan_panel *p, const struct carry *c,
                        const char *panel)
{
    struct worker *w = &x->workers[p->task->worker];
    if (!x->options->digests || !w->counts) return;
    digest_add_elements(&w->read, c->source->dtype, p->elements[0], p->count, p->low);
    if (is_cast(x->plan, c))
        digest_add_elements(&w->written, x->plan->segments[c->pieces[0].segment].dtype, panel,
                            p->count, p->low);
}

static enum status write_panel(void *context, const struct scan_panel *p, struct error *err)
{
    struct executor *x = context;
    const struct carry *c = &x->plan->carries[p->task->item];
    struct pair window = pair_whole(p->low, 0, p->count);
    const char *panel = cast_panel(x, p, c);
    add_digests(x, p, c, panel);
    for (size_t i = 0; i < c->num_pieces; i++) {
        enum dtype dtype = x->plan->segments[c->pieces[i].segment].dtype;
        struct worker *w = &x->workers[p->task->worker];
        struct writing wr = {
            x, w, &c->pieces[i], panel, p->temp, dtype_bytes(dtype), &w->chains[i]};
        if (!w->bytes[i]) continue;
        TRY(pair_join(&window, &c->pieces[i].pair, write_joined, &wr, err));
    }
    return OK;
}

/* ---- the journal ---- */

static enum status sync_written(struct executor *x, struct error *err)
{
    for (size_t i = 0; i < x->plan->num_files && x->options->fsync; i++) {
        struct file_state *f = &x->files[i];
        pthread_mutex_lock(&f->lock);
        int fd = f->fd;
        pthread_mutex_unlock(&f->lock);
        if (fd >= 0 && fdatasync(fd)) return fail_errno(err, ERR_IO, "%s: fdatasync", f->path);
    }
    return OK;
}

/* Notes what is done so far, by one worker while the others go on. */
static enum status flush_journal(struct executor *x, struct error *err)
{
    struct noting *n = &x->noting;
    struct strbuf records = {0};
    pthread_mutex_lock(&x->lock);
    bool mine = !n->busy && n->records.length;
    if (mine) {
        n->busy = true;
        n->bytes = 0;
        records = n->records;
        n->records = (struct strbuf){0};
    }
    pthread_mutex_unlock(&x->lock);
    if (!mine) return OK;
    enum status st = sync_written(x, err);
    if (!st) st = ask(x, err);
    if (!st)
        st = journal_append(x->options->journal_path, x->work, &records, x->options->fsync, err);
    strbuf_release(&records);
    pthread_mutex_lock(&x->lock);
    n->in_journal |= !st;
    n->busy = false;
    pthread_mutex_unlock(&x->lock);
    return st;
}

/* Adds a task to what is to be noted; whether it is time to do that. Behind lock. */
static bool note_task(struct executor *x, const struct worker *w, const struct journal_task *t,
                      uint64_t bytes)
{
    struct noting *n = &x->noting;
    if (!x->options->journal_path || (n->done && n->done[t->task])) return false;
    journal_add(&n->records, t, w->runs);
    n->bytes += bytes;
    return n->bytes >= x->options->journal_bytes;
}

/* Whether the files that a carry goes to are still what an earlier run has made of them. */
static bool is_intact(const struct executor *x, const struct carry *c)
{
    for (size_t i = 0; i < c->num_pieces; i++) {
        uint32_t file = x->plan->segments[c->pieces[i].segment].file;
        struct file_stamp stamp;
        if (is_ours(x, file) && (file_stamp(x->files[file].path, &stamp, NULL) ||
                                 stamp.size_bytes != x->plan->files[file].size_bytes))
            return false;
    }
    return true;
}

/* Adds to the whole what was counted of a task. */
static void count_task(struct executor *x, const struct journal_task *t)
{
    struct carry *c = &x->plan->carries[t->item];
    if (!t->counts) return;
    digest_join(&c->read, &t->read);
    digest_join(&c->written, &t->written);
    x->cast_elements += t->cast_elements;
    x->changed_elements += t->changed_elements;
}

static enum status check_task(const struct executor *x, const struct journal_task *t,
                              struct error *err)
{
    if (t->task < x->noting.num_tasks && t->item < x->plan->num_carries) return OK;
    return fail(err, ERR_OURS, "%s: no such task", x->options->journal_path);
}

/* A task of an earlier run. */
static enum status take_task(void *context, const struct journal_task *t,
                             const struct journal_run *runs, struct error *err)
{
    struct executor *x = context;
    struct noting *n = &x->noting;
    TRY(check_task(x, t, err));
    if (n->done[t->task] || !is_intact(x, &x->plan->carries[t->item])) {
        n->dropped = true;
        return OK;
    }
    n->done[t->task] = n->in_journal = true;
    journal_add(&n->kept, t, runs);
    count_task(x, t);
    for (uint64_t i = 0; i < t->num_runs; i++) {
        if (runs[i].segment >= x->plan->num_segments)
            return fail(err, ERR_OURS, "%s: no such segment", x->options->journal_path);
        add_run(x, &runs[i]);
    }
    return OK;
}

/* What lies in the folder and is no output file: small files, which are written anew. */
static enum status remove_others(struct executor *x, struct error *err)
{
    struct map ours = {0};
    struct name_list list;
    enum status st = folder_list(x->folder, &x->arena, &list, err);
    for (size_t i = 0; i < x->plan->num_files; i++) {
        char *name = arena_text(&x->arena, x->plan->files[i].path, strlen(x->plan->files[i].path));
        if (strchr(name, '/')) *strchr(name, '/') = '\0';
        (void)map_add(&ours, name, i, NULL);
    }
    for (size_t i = 0; i < list.count && !st; i++) {
        size_t file;
        if (map_get(&ours, list.names[i], &file) || publish_is_private(list.names[i])) continue;
        st = path_remove(path_join(&x->arena, x->folder, list.names[i]), err);
    }
    map_release(&ours);
    return st;
}

static enum status resume(struct executor *x, const struct scan *s, struct error *err)
{
    struct noting *n = &x->noting;
    if (!x->options->resume) return OK;
    n->num_tasks = scan_count_tasks(s);
    n->done = must_calloc(n->num_tasks + 1, sizeof *n->done);
    TRY(journal_read(x->options->journal_path, x->work, true, take_task, x, err));
    if (n->dropped) { /* before the files that they tell of are made again */
        TRY(path_remove(x->options->journal_path, err));
        TRY(journal_append(x->options->journal_path, x->work, &n->kept, x->options->fsync, err));
    }
    strbuf_release(&n->kept);
    return x->options->rank ? OK : remove_others(x, err);
}

/* Ends the chains of a task and tells the segments what they got: first the runs of all, since the
 * last of them to be told may complete the file. */
static enum status end_task(void *context, const struct scan_task *t, struct error *err)
{
    struct executor *x = context;
    struct worker *w = &x->workers[t->worker];
    struct carry *c = &x->plan->carries[t->item];
    uint64_t bytes = 0;
    enum status st = OK;
    if (!is_cast(x->plan, c)) w->written = w->read;
    for (size_t i = 0; i < c->num_pieces; i++) {
        end_chain(x, w, c->pieces[i].segment, &w->chains[i]);
        bytes += w->bytes[i];
    }
    struct journal_task done = {.task = t->number,
                                .item = t->item,
                                .counts = w->counts && !is_done(x, t),
                                .read = w->read,
                                .written = w->written,
                                .cast_elements = w->cast_elements,
                                .changed_elements = w->changed_elements,
                                .num_runs = w->num_runs};
    pthread_mutex_lock(&x->lock);
    count_task(x, &done);
    bool flush = note_task(x, w, &done, bytes);
    pthread_mutex_unlock(&x->lock);
    for (size_t i = 0; i < c->num_pieces && !st; i++)
        if (w->bytes[i]) st = segment_progress(x, c->pieces[i].segment, w->bytes[i], err);
    if (!st && flush) st = flush_journal(x, err);
    free(w->chains);
    free(w->bytes);
    w->chains = NULL;
    w->bytes = NULL;
    return st;
}

/* ---- the whole ---- */

/* What a rank's journal is of. */
static const char *work_of(struct arena *a, const struct executor_options *o, unsigned rank)
{
    return arena_printf(a, "%s, rank %u", o->work ? o->work : "", rank);
}

static enum status open_folder(struct executor *x, struct error *err)
{
    x->folder_fd = open(x->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (x->folder_fd < 0) return fail_errno(err, ERR_IO, "%s", x->folder);
    return ask(x, err); /* now that we hold it */
}

static void set_up_states(struct executor *x)
{
    struct plan *p = x->plan;
    x->work = work_of(&x->arena, x->options, x->options->rank);
    x->segments = arena_array(&x->arena, p->num_segments, sizeof *x->segments);
    x->files = arena_array(&x->arena, p->num_files, sizeof *x->files);
    for (size_t i = 0; i < p->num_files; i++) {
        x->files[i].fd = -1;
        x->files[i].path = path_join(&x->arena, x->folder, p->files[i].path);
        pthread_mutex_init(&x->files[i].lock, NULL);
        if (is_ours(x, (uint32_t)i)) x->bytes += p->files[i].size_bytes;
    }
    for (size_t i = 0; i < p->num_segments; i++) {
        const struct segment *s = &p->segments[i];
        x->segments[i].bytes_left = s->numel * dtype_bytes(s->dtype);
        if (s->numel) x->files[s->file].segments_left++;
    }
}

static enum status create_folders(struct executor *x, struct error *err)
{
    const char *last = "";
    for (size_t i = 0; i < x->plan->num_files; i++) {
        const char *folder = path_parent(&x->arena, x->files[i].path);
        if (strcmp(folder, last)) TRY(folder_create(folder, err));
        last = folder;
    }
    return OK;
}

/* Files without a segment that has bytes are complete at once. */
static enum status complete_empty_files(struct executor *x, struct error *err)
{
    for (uint32_t i = 0; i < x->plan->num_files; i++)
        if (is_ours(x, i) && x->files[i].segments_left == 0) TRY(complete_file(x, i, err));
    return OK;
}

static enum status sync_file(void *context, size_t index, unsigned worker, struct error *err)
{
    struct executor *x = context;
    struct file_state *f = &x->files[index];
    (void)worker;
    if (!is_ours(x, (uint32_t)index)) return OK;
    if (f->fd < 0 || f->segments_left) return fail(err, ERR_OURS, "%s: not complete", f->path);
    if (x->options->fsync) TRY(file_sync(f->fd, f->path, err));
    if (x->options->direct_io) (void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
    int fd = f->fd;
    f->fd = -1;
    return close(fd) ? fail_errno(err, ERR_IO, "%s: close", f->path) : OK;
}

static enum status run_all(struct executor *x, struct scan_result *read, struct error *err)
{
    struct plan *p = x->plan;
    struct scan s = scan_of(p, x->options,
                            arena_array(&x->arena, p->num_carries + 1, sizeof(struct scan_item)));
    s.context = x;
    s.kept_bytes = p->num_segments * sizeof(struct run); /* all else is there when it begins */
    x->num_workers = scan_threads(&s);
    x->workers = arena_array(&x->arena, x->num_workers, sizeof *x->workers);
    set_up_states(x);
    TRY(folder_create(x->folder, err));
    TRY(open_folder(x, err));
    TRY(create_folders(x, err));
    TRY(resume(x, &s, err));
    TRY(complete_empty_files(x, err));
    x->progress = progress_start(x->options->progress, "converting", x->bytes);
    enum status st = scan_run(&s, read, err);
    if (!st) st = threads_run(FSYNC_THREADS, p->num_files, sync_file, x, err);
    if (!st && x->options->num_ranks > 1) st = flush_journal(x, err);
    progress_finish(x->progress, st == OK);
    return st;
}

static void tear_down(struct executor *x)
{
    for (size_t i = 0; x->files && i < x->plan->num_files; i++) {
        if (x->files[i].fd >= 0) close(x->files[i].fd);
        pthread_mutex_destroy(&x->files[i].lock);
    }
    for (unsigned i = 0; x->workers && i < x->num_workers; i++) {
        free(x->workers[i].chains);
        free(x->workers[i].bytes);
        free(x->workers[i].runs);
    }
    strbuf_release(&x->noting.records);
    strbuf_release(&x->noting.kept);
    free(x->noting.done);
    free(x->counted);
    if (x->folder_fd >= 0) close(x->folder_fd);
    pthread_mutex_destroy(&x->asking);
    pthread_mutex_destroy(&x->lock);
    arena_release(&x->arena);
}

static void set_up(struct executor *x, struct plan *p, const struct executor_options *o)
{
    *x = (struct executor){.plan = p, .options = o, .folder_fd = -1};
    arena_init(&x->arena);
    pthread_mutex_init(&x->lock, NULL);
    pthread_mutex_init(&x->asking, NULL);
}

enum status executor_run(struct plan *p, const char *folder, const struct executor_options *o,
                         struct executor_result *result, struct error *err)
{
    struct executor x;
    struct scan_result read = {0};
    set_up(&x, p, o);
    x.folder = folder;
    file_raise_limit();
    enum status st = run_all(&x, &read, err);
    if (st && x.noting.in_journal) (void)flush_journal(&x, NULL); /* what is there already counts */
    *result = (struct executor_result){.read_bytes = read.read_bytes,
                                       .written_bytes = x.written_bytes,
                                       .cast_elements = x.cast_elements,
                                       .changed_elements = x.changed_elements,
                                       .resumed_bytes = x.resumed_bytes,
                                       .in_journal = x.noting.in_journal};
    tear_down(&x);
    return st;
}

/* A task that was noted twice, by two processes that both were this rank, counts once. */
static enum status join_task(void *context, const struct journal_task *t,
                             const struct journal_run *runs, struct error *err)
{
    struct executor *x = context;
    (void)runs;
    TRY(check_task(x, t, err));
    if (!t->counts || x->counted[t->task]) return OK;
    x->counted[t->task] = true;
    x->num_counted++;
    count_task(x, t);
    return OK;
}

enum status executor_join(struct plan *p, const struct executor_options *o,
                          const char *const *journals, struct executor_result *result,
                          struct error *err)
{
    struct executor x;
    set_up(&x, p, o);
    struct scan s =
        scan_of(p, o, arena_array(&x.arena, p->num_carries + 1, sizeof(struct scan_item)));
    enum status st = OK;
    x.noting.num_tasks = scan_count_tasks(&s);
    x.counted = must_calloc(x.noting.num_tasks + 1, sizeof *x.counted);
    for (size_t i = 0; i < p->num_carries; i++)
        p->carries[i].read = p->carries[i].written = (struct digest){{0}};
    for (unsigned r = 0; r < o->num_ranks && !st; r++)
        st = journal_read(journals[r], work_of(&x.arena, o, r), false, join_task, &x, err);
    result->cast_elements = x.cast_elements;
    result->changed_elements = x.changed_elements;
    if (!st && x.num_counted != x.noting.num_tasks)
        st = fail(err, ERR_RANK,
                  "the ranks' journals tell of %" PRIu64 " tasks, the plan has %zu; without "
                  "--resume it is begun anew",
                  x.num_counted, x.noting.num_tasks);
    tear_down(&x);
    return st;
}
