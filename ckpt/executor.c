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
#include <sys/resource.h>
#include <unistd.h>
#include <zlib.h>

#include "ckpt/block.h"
#include "ckpt/panel.h"
#include "common/checked.h"
#include "common/file.h"
#include "common/threads.h"
#include "kernels/cpu/cast.h"

enum {
    PANEL_BYTES = 1 << 20,       /* what stays in a second-level cache, for runs and slices */
    WIDE_PANEL_BYTES = 32 << 20, /* at most, for transposes: their runs are a panel's rows long */
    LEAST_BUFFER = 64 << 10,
    TASK_BYTES = 64 << 20,
    WRITEBACK_BYTES = 8 << 20, /* dirty bytes of a file that are worth starting to write back */
    STACK_BYTES = 1 << 20,     /* of a thread, and what its first calls allocate */
    SPARE_BYTES = 1 << 20,     /* what may become resident between executor_memory and the run */
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

struct task {
    uint32_t carry;
    uint64_t low, high; /* elements */
};

struct worker {
    struct executor *x;
    char *panel, *cast, *temp;  /* buffer_bytes each; cast only where needed */
    struct panel_reader reader; /* over temp and cast */
};

struct executor {
    struct plan *plan;
    const struct executor_options *options;
    const char *folder;
    struct stored_reader *reader;
    struct segment_state *segments;
    struct file_state *files;
    struct task *tasks;
    size_t num_tasks, tasks_capacity;
    struct worker *workers;
    unsigned num_workers;
    uint64_t buffer_bytes;
    struct arena arena; /* runs, tasks */
    pthread_mutex_t lock;
    struct progress *progress;
    _Atomic uint64_t written_bytes;
};

/* ---- memory ---- */

static uint64_t resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%*u %llu", &pages) != 1) pages = 0;
    if (f) fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Whether the panel's elements are cast before they are written. */
static bool is_cast(const struct plan *p, const struct carry *c)
{
    return c->num_pieces && p->segments[c->pieces[0].segment].dtype != c->source->dtype;
}

/* The largest element that a carry has on its way. */
static size_t widest_element(const struct plan *p, const struct carry *c)
{
    size_t bytes = dtype_bytes(c->source->dtype);
    for (size_t i = 0; i < c->source->num_pieces; i++)
        if (c->source->pieces[i].source == PIECE_STORED)
            bytes = max_u64(bytes, dtype_bytes(c->source->pieces[i].dtype));
    if (c->num_pieces) bytes = max_u64(bytes, dtype_bytes(p->segments[c->pieces[0].segment].dtype));
    return bytes;
}

/* Whether the fast axis of the logical tensor is a slow one of the pair's other side. */
static bool is_transposed(const struct pair *p)
{
    return p->num_axes > 1 && p->axes[p->num_axes - 1].b_stride != 1;
}

static bool is_wide(const struct carry *c)
{
    for (size_t i = 0; i < c->source->num_pieces; i++)
        if (is_transposed(&c->source->pieces[i].pair)) return true;
    for (size_t i = 0; i < c->num_pieces; i++)
        if (is_transposed(&c->pieces[i].pair)) return true;
    return false;
}

/* What buffers of a size would cost: how many a worker has, and the largest that is of use. */
struct need {
    unsigned buffers;
    uint64_t wanted_bytes;
};

static struct need buffers_needed(const struct plan *p)
{
    struct need need = {2, PANEL_BYTES};
    for (size_t i = 0; i < p->num_carries; i++) {
        const struct carry *c = &p->carries[i];
        if (is_cast(p, c) || tensor_is_mixed(c->source)) need.buffers = 3;
        uint64_t bytes = c->source->numel * widest_element(p, c);
        if (bytes > need.wanted_bytes && is_wide(c)) need.wanted_bytes = bytes;
    }
    need.wanted_bytes = min_u64(need.wanted_bytes, WIDE_PANEL_BYTES);
    return need;
}

static unsigned worker_count(const struct executor_options *o)
{
    return o->threads ? o->threads : threads_available();
}

/* What is kept of a plan while it runs: an estimate, since runs may be many. */
static uint64_t bookkeeping_bytes(const struct plan *p)
{
    uint64_t tasks = p->num_carries + p->source_bytes / TASK_BYTES;
    return p->num_segments * (sizeof(struct segment_state) + sizeof(struct run)) +
           p->num_files * sizeof(struct file_state) + 2 * tasks * sizeof(struct task);
}

/* The largest buffers that max_memory leaves room for, besides `spare` bytes. */
static enum status choose_buffers(const struct plan *p, const struct executor_options *o,
                                  uint64_t spare, uint64_t *buffer_bytes, uint64_t *peak_bytes,
                                  struct error *err)
{
    struct need need = buffers_needed(p);
    uint64_t workers = worker_count(o);
    uint64_t each = STACK_BYTES + (o->direct_io ? FILE_DIRECT_BYTES : 0);
    uint64_t fixed = resident_bytes() + workers * each + bookkeeping_bytes(p) + spare;
    uint64_t least = fixed + workers * need.buffers * LEAST_BUFFER;
    *buffer_bytes = need.wanted_bytes;
    if (o->max_memory && least > o->max_memory)
        return fail(err, ERR_MEMORY,
                    "--max-memory %" PRIu64
                    " MiB is not enough for this plan: the least that works "
                    "with %" PRIu64 " threads is %" PRIu64 " MiB",
                    o->max_memory >> 20, workers, ((least + SPARE_BYTES) >> 20) + 1);
    if (o->max_memory)
        *buffer_bytes = min_u64(*buffer_bytes, (o->max_memory - fixed) / (workers * need.buffers));
    *peak_bytes = fixed + workers * need.buffers * *buffer_bytes;
    return OK;
}

enum status executor_memory(const struct plan *p, const struct executor_options *o,
                            uint64_t *peak_bytes, struct error *err)
{
    uint64_t buffer_bytes;
    return choose_buffers(p, o, SPARE_BYTES, &buffer_bytes, peak_bytes, err);
}

/* ---- writing ---- */

/* Opens the output file at its first use. Sizes are set at once, so that nobody sees it grow. */
static enum status output_fd(struct executor *x, uint32_t file, int *fd, struct error *err)
{
    struct file_state *f = &x->files[file];
    enum status st = OK;
    pthread_mutex_lock(&f->lock);
    if (f->fd < 0) {
        st = file_create(f->path, &f->fd, err);
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

/* A run that grows while a task lasts and what it writes goes on behind it. */
struct chain {
    uint64_t offset, bytes;
    uint32_t crc;
};

static void end_chain(struct executor *x, uint32_t segment, struct chain *c)
{
    if (!c->bytes) return;
    pthread_mutex_lock(&x->lock);
    struct run *run = arena_alloc(&x->arena, sizeof *run);
    *run = (struct run){x->segments[segment].runs, c->offset, c->bytes, c->crc};
    x->segments[segment].runs = run;
    pthread_mutex_unlock(&x->lock);
    *c = (struct chain){0};
}

static void add_to_chain(struct executor *x, uint32_t segment, struct chain *c, const void *from,
                         uint64_t offset, uint64_t bytes)
{
    if (c->offset + c->bytes != offset) end_chain(x, segment, c);
    if (!c->bytes) c->offset = offset;
    c->crc = libdeflate_crc32(c->crc, from, bytes);
    c->bytes += bytes;
}

struct writing {
    struct worker *w;
    const struct target_piece *piece;
    const char *panel; /* in the target's dtype */
    size_t element_bytes;
    struct chain *chain;
};

static enum status write_run(const struct writing *wr, const void *from, uint64_t at,
                             uint64_t count, struct error *err)
{
    struct executor *x = wr->w->x;
    const struct segment *s = &x->plan->segments[wr->piece->segment];
    uint64_t offset = at * wr->element_bytes, bytes = count * wr->element_bytes;
    int fd;
    if (s->wants_crc) add_to_chain(x, wr->piece->segment, wr->chain, from, offset, bytes);
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
        copy_axes(wr->w->temp, source, wr->element_bytes, out.num_axes, out.axes);
        return write_run(wr, wr->w->temp, to, count, err);
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

/* Elements of a panel: whole rows where they fit. */
static uint64_t panel_elements(const struct executor *x, const struct carry *c)
{
    const struct tensor *t = c->source;
    size_t bytes = widest_element(x->plan, c);
    uint64_t room = x->buffer_bytes / bytes;
    if (!is_wide(c)) room = min_u64(room, PANEL_BYTES / bytes);
    uint64_t row = t->num_dims > 1 && t->shape[0] ? t->numel / t->shape[0] : 1;
    return row && row <= room ? room / row * row : room;
}

static bool is_hole(const struct carry *c)
{
    return c->source->num_pieces && c->source->pieces[0].source == PIECE_HOLE;
}

static void add_tasks(struct executor *x, uint32_t index)
{
    const struct carry *c = &x->plan->carries[index];
    uint64_t panel = panel_elements(x, c);
    uint64_t step = max_u64(1, TASK_BYTES / (panel * dtype_bytes(c->source->dtype))) * panel;
    for (uint64_t low = 0; low < c->source->numel; low += step)
        *ARENA_PUSH(&x->arena, x->tasks, x->num_tasks, x->tasks_capacity) =
            (struct task){index, low, min_u64(low + step, c->source->numel)};
}

static const char *cast_panel(struct worker *w, const struct carry *c, uint64_t count)
{
    struct executor *x = w->x;
    if (!is_cast(x->plan, c)) return w->panel;
    enum dtype to = x->plan->segments[c->pieces[0].segment].dtype;
    w->reader.cast_elements += count;
    w->reader.changed_elements += cast_elements(w->cast, to, w->panel, c->source->dtype, count);
    return w->cast;
}

static enum status run_panel(struct worker *w, const struct carry *c, struct chain *chains,
                             uint64_t low, uint64_t count, struct error *err)
{
    struct pair window = pair_whole(low, 0, count);
    TRY(panel_read(&w->reader, c->source, low, count, w->panel, err));
    const char *panel = cast_panel(w, c, count);
    for (size_t i = 0; i < c->num_pieces; i++) {
        enum dtype dtype = w->x->plan->segments[c->pieces[i].segment].dtype;
        struct writing wr = {w, &c->pieces[i], panel, dtype_bytes(dtype), &chains[i]};
        TRY(pair_join(&window, &c->pieces[i].pair, write_joined, &wr, err));
    }
    return OK;
}

/* Ends the chains of a task and tells the segments what they got: first the runs of all, since the
 * last of them to be told may complete the file. */
static enum status end_task(struct executor *x, const struct carry *c, struct chain *chains,
                            const uint64_t *bytes, struct error *err)
{
    for (size_t i = 0; i < c->num_pieces; i++)
        end_chain(x, c->pieces[i].segment, &chains[i]);
    for (size_t i = 0; i < c->num_pieces; i++)
        if (bytes[i]) TRY(segment_progress(x, c->pieces[i].segment, bytes[i], err));
    return OK;
}

static enum status count_joined(void *context, const struct pair *p, struct error *err)
{
    (void)err;
    *(uint64_t *)context += pair_count(p);
    return OK;
}

/* Bytes that a task writes of each target piece; false where it writes none at all. */
static enum status task_bytes(const struct executor *x, const struct carry *c,
                              const struct task *task, uint64_t *bytes, bool *any,
                              struct error *err)
{
    struct pair window = pair_whole(task->low, 0, task->high - task->low);
    *any = false;
    for (size_t i = 0; i < c->num_pieces; i++) {
        TRY(pair_join(&window, &c->pieces[i].pair, count_joined, &bytes[i], err));
        bytes[i] *= dtype_bytes(x->plan->segments[c->pieces[i].segment].dtype);
        *any |= bytes[i] > 0;
    }
    return OK;
}

static enum status run_panels(struct worker *w, const struct task *task, struct chain *chains,
                              struct error *err)
{
    struct executor *x = w->x;
    const struct carry *c = &x->plan->carries[task->carry];
    uint64_t panel = panel_elements(x, c);
    for (uint64_t low = task->low; low < task->high; low += panel) {
        if (interrupted()) return fail(err, ERR_INTERRUPTED, "interrupted");
        enum status st = run_panel(w, c, chains, low, min_u64(panel, task->high - low), err);
        if (st) return fail_in(err, "%s", c->source->name);
    }
    return OK;
}

static enum status run_task(void *context, size_t index, unsigned worker, struct error *err)
{
    struct executor *x = context;
    const struct task *task = &x->tasks[index];
    const struct carry *c = &x->plan->carries[task->carry];
    struct chain *chains = calloc(c->num_pieces, sizeof *chains);
    uint64_t *bytes = calloc(c->num_pieces, sizeof *bytes);
    enum status st = chains && bytes ? OK : fail(err, ERR_MEMORY, "no memory for a task");
    bool any = false;
    if (!st) st = task_bytes(x, c, task, bytes, &any, err);
    if (!st && any && !is_hole(c)) /* a hole is there once the file has its size */
        st = run_panels(&x->workers[worker], task, chains, err);
    if (!st) st = end_task(x, c, chains, bytes, err);
    free(chains);
    free(bytes);
    return st;
}

/* ---- the whole ---- */

static void raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static void set_up_states(struct executor *x)
{
    struct plan *p = x->plan;
    x->segments = arena_array(&x->arena, p->num_segments, sizeof *x->segments);
    x->files = arena_array(&x->arena, p->num_files, sizeof *x->files);
    for (size_t i = 0; i < p->num_files; i++) {
        x->files[i].fd = -1;
        x->files[i].path = path_join(&x->arena, x->folder, p->files[i].path);
        pthread_mutex_init(&x->files[i].lock, NULL);
    }
    for (size_t i = 0; i < p->num_segments; i++) {
        const struct segment *s = &p->segments[i];
        x->segments[i].bytes_left = s->numel * dtype_bytes(s->dtype);
        if (s->numel) x->files[s->file].segments_left++;
    }
}

static enum status set_up_workers(struct executor *x, struct error *err)
{
    uint64_t peak;
    TRY(choose_buffers(x->plan, x->options, 0, &x->buffer_bytes, &peak, err));
    x->num_workers = worker_count(x->options);
    x->workers = arena_array(&x->arena, x->num_workers, sizeof *x->workers);
    bool casts = buffers_needed(x->plan).buffers > 2;
    for (unsigned i = 0; i < x->num_workers; i++) {
        struct worker *w = &x->workers[i];
        w->x = x;
        w->panel = malloc(x->buffer_bytes);
        w->temp = malloc(x->buffer_bytes);
        w->cast = casts ? malloc(x->buffer_bytes) : NULL;
        w->reader = (struct panel_reader){
            .reader = x->reader, .buffer_bytes = x->buffer_bytes, .temp = w->temp, .cast = w->cast};
        if (!w->panel || !w->temp || (casts && !w->cast))
            return fail(err, ERR_MEMORY, "no memory for buffers of %" PRIu64 " bytes",
                        x->buffer_bytes);
    }
    return OK;
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
    for (size_t i = 0; i < x->plan->num_files; i++)
        if (x->files[i].segments_left == 0) TRY(complete_file(x, (uint32_t)i, err));
    return OK;
}

static enum status sync_file(void *context, size_t index, unsigned worker, struct error *err)
{
    struct executor *x = context;
    struct file_state *f = &x->files[index];
    (void)worker;
    if (f->fd < 0 || f->segments_left) return fail(err, ERR_OURS, "%s: not complete", f->path);
    if (x->options->fsync) TRY(file_sync(f->fd, f->path, err));
    if (x->options->direct_io) (void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
    int fd = f->fd;
    f->fd = -1;
    return close(fd) ? fail_errno(err, ERR_IO, "%s: close", f->path) : OK;
}

static enum status run_all(struct executor *x, struct error *err)
{
    struct plan *p = x->plan;
    TRY(set_up_workers(x, err)); /* before the states: their memory is estimated */
    set_up_states(x);
    TRY(create_folders(x, err));
    for (size_t i = 0; i < p->num_carries; i++)
        add_tasks(x, (uint32_t)i);
    TRY(complete_empty_files(x, err));
    x->progress = progress_start(x->options->progress, "converting", p->target_bytes);
    enum status st = threads_run(x->num_workers, x->num_tasks, run_task, x, err);
    if (!st) st = threads_run(FSYNC_THREADS, p->num_files, sync_file, x, err);
    if (!st) st = stored_unchanged(&p->source->stored, err);
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
        free(x->workers[i].panel);
        free(x->workers[i].temp);
        free(x->workers[i].cast);
    }
    stored_reader_free(x->reader);
    pthread_mutex_destroy(&x->lock);
    arena_release(&x->arena);
}

enum status executor_run(struct plan *p, const char *folder, const struct executor_options *o,
                         struct executor_result *result, struct error *err)
{
    struct executor x = {.plan = p, .options = o, .folder = folder};
    raise_file_limit();
    arena_init(&x.arena);
    pthread_mutex_init(&x.lock, NULL);
    x.reader = stored_reader_create(&p->source->stored, 512);
    if (o->direct_io) stored_reader_set_direct(x.reader);
    enum status st = run_all(&x, err);
    *result = (struct executor_result){.written_bytes = x.written_bytes};
    for (unsigned i = 0; x.workers && i < x.num_workers; i++) {
        result->read_bytes += x.workers[i].reader.read_bytes;
        result->cast_elements += x.workers[i].reader.cast_elements;
        result->changed_elements += x.workers[i].reader.changed_elements;
    }
    tear_down(&x);
    return st;
}
