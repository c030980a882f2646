#include "ckpt/sink_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "ckpt/panel.h"
#include "ckpt/publish.h"
#include "common/checked.h"
#include "common/file.h"
#include "common/memory.h"
#include "common/threads.h"

enum {
    WRITEBACK_BYTES = 8 << 20, /* dirty bytes of a file that start a writeback */
    FSYNC_THREADS = 8,
};

/* A written run of a segment that wants a CRC: bytes consecutive so far. */
struct run {
    uint64_t offset, bytes; /* within the segment */
    uint32_t crc;
};

/* The sink's lock protects runs and crc. */
struct filled_segment {
    _Atomic uint64_t bytes_left;
    struct run *runs; /* in any order; on the heap until the segment is complete */
    size_t num_runs, runs_capacity;
    uint32_t crc; /* of a complete segment that wants a CRC */
};

/* The lock of the open files protects fd, created and sized. */
struct filled_file {
    char *path;
    int fd;
    bool created, sized;    /* by this sink */
    uint64_t device, inode; /* of the created file */
    _Atomic bool unsynced;  /* some bytes may not be on disk */
    _Atomic uint32_t segments_left;
    _Atomic uint64_t dirty_bytes;
};

uint64_t sink_file_state_bytes(const struct plan *p)
{
    return p->num_segments * sizeof(struct filled_segment) +
           p->num_files * sizeof(struct filled_file) + open_files_bytes(p->num_files);
}

/* Runs of the segment that grow at once while a piece's elements come in order:
 * bytes of a transpose go to a run in each row. */
static uint64_t growing_runs(const struct packed_pair *packed)
{
    struct pair p = pair_unpack(packed);
    uint64_t run = 1, a_stride = 0;
    pair_swap(&p);
    (void)pair_nest(&p); /* plan_finish() has nested it; a: the segment */
    for (unsigned k = p.num_axes; k-- > 0;) {
        if (p.axes[k].a_stride != run || p.axes[k].b_stride < a_stride) break;
        run *= p.axes[k].extent;
        a_stride = p.axes[k].b_stride;
    }
    return run ? pair_count(&p) / run : 0;
}

enum { NO_COPY, SEVERAL_COPIES, FIRST_COPY };

/* FIRST_COPY + i for segments that copy i alone fills. */
static size_t *find_fillers(const struct plan *p)
{
    size_t *fillers = must_calloc(p->num_segments + 1, sizeof *fillers);
    for (size_t i = 0; i < p->num_copies; i++)
        for (size_t k = 0; k < p->copies[i].num_pieces; k++) {
            size_t *f = &fillers[p->copies[i].pieces[k].segment];
            *f = *f == NO_COPY || *f == FIRST_COPY + i ? FIRST_COPY + i : SEVERAL_COPIES;
        }
    return fillers;
}

/* The runs of a piece, at most: those that grow, once for each unfinished task
 * and once for all tasks between two of these. At most as many copies as
 * threads are written at once; only segments of several copies keep runs
 * longer. */
uint64_t sink_file_run_bytes(const struct plan *p, unsigned threads)
{
    enum { TASK_ELEMENTS = 2 << 20, SPARE = 4 }; /* of a task, at least; see make_run_room() */
    size_t *fillers = find_fillers(p);
    uint64_t kept = 0, most = 0;
    for (size_t i = 0; i < p->num_copies; i++) {
        const struct plan_copy *c = &p->copies[i];
        const uint64_t windows = min_u64(c->source->numel / TASK_ELEMENTS + 1, threads + 1);
        uint64_t alone = 0;
        for (size_t k = 0; k < c->num_pieces && !tensor_is_hole(c->source); k++) {
            const uint32_t segment = c->pieces[k].segment;
            if (!p->segments[segment].wants_crc) continue;
            const uint64_t runs = growing_runs(&c->pieces[k].pair) * windows;
            *(fillers[segment] == SEVERAL_COPIES ? &kept : &alone) += runs;
        }
        most = max_u64(most, alone);
    }
    free(fillers);
    return SPARE * (kept + threads * most) * sizeof(struct run);
}

void sink_file_release(struct sink_file *s)
{
    open_files_end(&s->open);
    for (size_t i = 0; i < s->sink.plan->num_segments; i++)
        free(s->segments[i].runs);
    if (s->folder_fd >= 0) close(s->folder_fd);
    pthread_mutex_destroy(&s->lock);
    arena_release(&s->arena);
}

/* Whether this rank alone writes the file. */
static bool writes_alone(const struct sink_file *s, uint32_t file)
{
    const struct output_file *f = &s->sink.plan->files[file];
    return f->rank == s->options.rank && !f->shared;
}

bool sink_file_is_intact(const struct sink_file *s, uint32_t file)
{
    struct file_stamp stamp;
    return !file_stamp(s->files[file].path, &stamp, NULL) &&
           stamp.size_bytes == s->sink.plan->files[file].size_bytes;
}

/* ---- the folder ---- */

enum status sink_file_open(struct sink_file *s, struct error *err)
{
    TRY(folder_create(s->folder, err));
    s->folder_fd = open(s->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return s->folder_fd < 0 ? fail_errno(err, ERR_IO, "%s", s->folder) : OK;
}

enum status sink_file_create_folders(struct sink_file *s, struct error *err)
{
    const char *last = "";
    for (size_t i = 0; i < s->sink.plan->num_files; i++) {
        const char *folder = path_parent(&s->arena, s->files[i].path);
        if (strcmp(folder, last)) TRY(folder_create(folder, err));
        last = folder;
    }
    return OK;
}

enum status sink_file_remove_others(struct sink_file *s, struct error *err)
{
    struct map ours = {0};
    struct name_list list;
    enum status st = folder_list(s->folder, &s->arena, &list, err);
    for (size_t i = 0; i < s->sink.plan->num_files; i++) {
        char *name = arena_copy_text(&s->arena, s->sink.plan->files[i].path);
        if (strchr(name, '/')) *strchr(name, '/') = '\0';
        (void)map_add(&ours, name, i, NULL);
    }
    for (size_t i = 0; i < list.count && !st; i++) {
        size_t file;
        if (map_get(&ours, list.names[i], &file) || publish_is_private(list.names[i])) continue;
        st = path_remove(path_join(&s->arena, s->folder, list.names[i]), err);
    }
    map_release(&ours);
    return st;
}

/* ---- writing ---- */

/* Sets the size at the first use, so that no process sees the file grow. */
static enum status set_up_file(struct filled_file *f, uint64_t size_bytes, struct error *err)
{
    struct stat is;
    if (fstat(f->fd, &is)) return fail_errno(err, ERR_IO, "%s", f->path);
    if (f->created && (is.st_dev != f->device || is.st_ino != f->inode))
        return fail(err, ERR_IO, "%s: was replaced while it was written", f->path);
    f->device = is.st_dev;
    f->inode = is.st_ino;
    f->created = true;
    if (!f->sized && ftruncate(f->fd, (off_t)size_bytes))
        return fail_errno(err, ERR_IO, "%s: cannot set its size", f->path);
    f->sized = true;
    return OK;
}

static enum status open_output_file(void *sink, size_t file, struct error *err)
{
    const struct sink_file *s = sink;
    struct filled_file *f = &s->files[file];
    const struct output_file *is = &s->sink.plan->files[file];
    const bool may_exist = s->options.may_exist || is->shared || f->created;
    TRY(file_create_at(s->folder_fd, is->path, f->path, may_exist, &f->fd, err));
    enum status st = set_up_file(f, is->size_bytes, err);
    if (st) close(f->fd);
    return st;
}

static enum status close_file(void *sink, size_t file, struct error *err)
{
    const struct sink_file *s = sink;
    struct filled_file *f = &s->files[file];
    if (f->unsynced && s->options.fsync) (void)sync_file_range(f->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    return close(f->fd) ? fail_errno(err, ERR_IO, "%s: close", f->path) : OK;
}

/* Starts the writeback of a file's dirty bytes, to leave little for the final
 * fsync. Earlier pages are clean by now. */
static void start_writeback(struct sink_file *s, uint32_t file, uint64_t bytes)
{
    struct filled_file *f = &s->files[file];
    if (!s->options.fsync) return;
    uint64_t dirty = atomic_fetch_add(&f->dirty_bytes, bytes) + bytes;
    if (dirty < WRITEBACK_BYTES) return;
    atomic_fetch_sub(&f->dirty_bytes, dirty);
    (void)sync_file_range(f->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    if (s->options.drops_pages) (void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
}

/* Writes to an acquired file. */
static enum status put_bytes(struct sink_file *s, uint32_t file, uint64_t offset, const void *bytes,
                             size_t count, struct error *err)
{
    struct filled_file *f = &s->files[file];
    TRY(file_write(f->fd, f->path, bytes, count, offset, err));
    f->unsynced = true;
    atomic_fetch_add_explicit(&s->sink.written_bytes, count, memory_order_relaxed);
    return OK;
}

static enum status write_bytes(struct sink *sink, uint32_t segment, uint64_t offset,
                               const void *from, uint64_t bytes, struct error *err)
{
    struct sink_file *s = (struct sink_file *)sink;
    const struct segment *to = &s->sink.plan->segments[segment];
    TRY(open_files_acquire(&s->open, to->file, err));
    enum status st = put_bytes(s, to->file, to->offset_bytes + offset, from, bytes, err);
    if (!st) start_writeback(s, to->file, bytes);
    open_files_release(&s->open, to->file);
    return st;
}

/* ---- runs ---- */

static uint64_t end_of(const struct run *r)
{
    return r->offset + r->bytes;
}

static void append_run(struct run *r, const struct run *next)
{
    r->crc = (uint32_t)crc32_combine(r->crc, next->crc, (off_t)next->bytes);
    r->bytes += next->bytes;
}

static int by_offset(const void *a, const void *b)
{
    const struct run *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Sorts the runs and joins consecutive ones. */
static void join_runs(struct filled_segment *f)
{
    size_t n = 0;
    if (f->num_runs > 1) qsort(f->runs, f->num_runs, sizeof *f->runs, by_offset);
    for (size_t i = 0; i < f->num_runs; i++)
        if (n > 0 && end_of(&f->runs[n - 1]) == f->runs[i].offset)
            append_run(&f->runs[n - 1], &f->runs[i]);
        else
            f->runs[n++] = f->runs[i];
    f->num_runs = n;
}

/* Makes room for a run by joining runs, or, if few can be joined, by more
 * memory: sorting stays rare. */
static void make_run_room(struct filled_segment *f)
{
    join_runs(f);
    if (f->num_runs < f->runs_capacity - f->runs_capacity / 4) return;
    f->runs_capacity = f->runs_capacity ? 2 * f->runs_capacity : 1;
    f->runs = must_realloc(f->runs, f->runs_capacity * sizeof *f->runs);
}

static void add_written_run(struct sink *sink, const struct journal_run *added)
{
    struct sink_file *s = (struct sink_file *)sink;
    struct filled_segment *f = &s->segments[added->segment];
    const struct run run = {added->offset, added->bytes, (uint32_t)added->crc};
    pthread_mutex_lock(&s->lock);
    if (f->num_runs && end_of(&f->runs[f->num_runs - 1]) == run.offset) {
        append_run(&f->runs[f->num_runs - 1], &run);
    } else {
        if (f->num_runs == f->runs_capacity) make_run_room(f);
        f->runs[f->num_runs++] = run;
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- files that are complete ---- */

/* The CRC-32 of count zero bytes, from those of 1, 2, 4, ... bytes. */
static uint32_t crc_of_zeros(uint64_t count)
{
    uint32_t crc = 0, part = (uint32_t)crc32(0, (const unsigned char[]){0}, 1);
    for (uint64_t bytes = 1; count; bytes *= 2, count /= 2) {
        if (count & 1) crc = (uint32_t)crc32_combine(crc, part, (off_t)bytes);
        part = (uint32_t)crc32_combine(part, part, (off_t)bytes);
    }
    return crc;
}

/* Adds the CRC of zeros from *end up to `to`, if the segment has holes:
 * plan_finish has checked that every element is filled. */
static void add_hole(const struct segment *s, uint64_t to, uint32_t *crc, uint64_t *end)
{
    if (!s->has_holes || to <= *end) return;
    *crc = (uint32_t)crc32_combine(*crc, crc_of_zeros(to - *end), (off_t)(to - *end));
    *end = to;
}

/* Computes the CRC-32 of a complete segment from its runs, which must tile it
 * but for holes. */
static enum status combine_runs(struct sink_file *x, uint32_t segment, struct error *err)
{
    const struct segment *s = &x->sink.plan->segments[segment];
    struct filled_segment *f = &x->segments[segment];
    const uint64_t bytes = dtype_run_bytes(s->dtype, s->numel);
    uint64_t end = 0;
    if (!s->wants_crc) return OK;
    join_runs(f);
    for (size_t i = 0; i < f->num_runs; i++) {
        const struct run *r = &f->runs[i];
        add_hole(s, r->offset, &f->crc, &end);
        if (r->offset != end) break;
        f->crc = (uint32_t)crc32_combine(f->crc, r->crc, (off_t)r->bytes);
        end += r->bytes;
    }
    add_hole(s, bytes, &f->crc, &end);
    free(f->runs);
    f->runs = NULL;
    f->num_runs = f->runs_capacity = 0;
    if (end == bytes) return OK;
    return fail(err, ERR_OURS, "%s: a segment was written to byte %" PRIu64 " of %" PRIu64,
                x->files[s->file].path, end, bytes);
}

struct finishing {
    struct sink_file *sink;
    uint32_t file;
};

static enum status put_finish_bytes(void *context, uint64_t offset, const void *bytes, size_t count,
                                    struct error *err)
{
    const struct finishing *f = context;
    return put_bytes(f->sink, f->file, offset, bytes, count, err);
}

static uint32_t crc_of(void *context, uint32_t segment)
{
    const struct finishing *f = context;
    return f->sink->segments[segment].crc;
}

static enum status complete_file(struct sink_file *s, uint32_t file, struct error *err)
{
    const struct output_file *f = &s->sink.plan->files[file];
    struct finishing finishing = {.sink = s, .file = file};
    const struct file_writer writer = {put_finish_bytes, crc_of, &finishing};
    enum status st = OK;
    for (uint32_t i = 0; i < f->num_segments && f->shared; i++)
        TRY(combine_runs(s, s->sink.plan->by_file[f->first_segment + i], err));
    TRY(open_files_acquire(&s->open, file, err));
    if (f->finish) st = f->finish(s->sink.plan, file, f->finish_context, &writer, err);
    if (s->options.fsync) (void)sync_file_range(s->files[file].fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    open_files_release(&s->open, file);
    if (st || s->open.max_open >= s->open.num_files) return st; /* open until finish_sink() */
    return open_files_close(&s->open, file, err);
}

static enum status count_bytes(struct sink *sink, uint32_t segment, uint64_t bytes,
                               struct error *err)
{
    struct sink_file *s = (struct sink_file *)sink;
    if (atomic_fetch_sub(&s->segments[segment].bytes_left, bytes) != bytes) return OK;
    uint32_t file = s->sink.plan->segments[segment].file;
    if (s->sink.plan->files[file].shared) return OK;
    TRY(combine_runs(s, segment, err));
    if (atomic_fetch_sub(&s->files[file].segments_left, 1) != 1) return OK;
    return complete_file(s, file, err);
}

enum status sink_file_complete_empty(struct sink_file *s, struct error *err)
{
    for (uint32_t i = 0; i < s->sink.plan->num_files; i++)
        if (writes_alone(s, i) && s->files[i].segments_left == 0) TRY(complete_file(s, i, err));
    return OK;
}

/* ---- the disk ---- */

enum status sink_file_sync(struct sink_file *s, struct error *err)
{
    for (size_t i = 0; i < s->sink.plan->num_files && s->options.fsync; i++) {
        struct filled_file *f = &s->files[i];
        if (!atomic_exchange(&f->unsynced, false)) continue;
        TRY(open_files_acquire(&s->open, i, err));
        enum status st = OK;
        if (fdatasync(f->fd)) st = fail_errno(err, ERR_IO, "%s: fdatasync", f->path);
        open_files_release(&s->open, i);
        if (st) return st;
    }
    return OK;
}

/* Makes the file durable, with its metadata. */
static enum status settle_file(struct sink_file *s, size_t file, struct error *err)
{
    struct filled_file *f = &s->files[file];
    enum status st = OK;
    if (!s->options.fsync && !s->options.drops_pages) return OK;
    TRY(open_files_acquire(&s->open, file, err));
    if (s->options.fsync) st = file_sync(f->fd, f->path, err);
    if (s->options.drops_pages) (void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
    open_files_release(&s->open, file);
    return st;
}

static enum status finish_file(void *context, size_t index, unsigned worker, struct error *err)
{
    struct sink_file *s = context;
    struct filled_file *f = &s->files[index];
    const bool shared = s->sink.plan->files[index].shared;
    (void)worker;
    if (shared ? !f->created : !writes_alone(s, (uint32_t)index)) return OK;
    if (!f->created || (f->segments_left && !shared))
        return fail(err, ERR_OURS, "%s: not complete", f->path);
    TRY(settle_file(s, index, err));
    return open_files_close(&s->open, index, err);
}

/* Checks that all bytes of the file's segments are counted. */
static enum status check_counts(const struct sink_file *s, uint32_t file, struct error *err)
{
    const struct output_file *f = &s->sink.plan->files[file];
    for (uint32_t i = 0; i < f->num_segments; i++) {
        uint32_t segment = s->sink.plan->by_file[f->first_segment + i];
        uint64_t left = s->segments[segment].bytes_left;
        if (left)
            return fail(err, ERR_RANK,
                        "%s: no rank wrote %" PRIu64 " bytes of a segment; --restart starts over",
                        s->files[file].path, left);
    }
    return OK;
}

enum status sink_file_complete_shared(struct sink_file *s, struct error *err)
{
    for (uint32_t i = 0; i < s->sink.plan->num_files; i++) {
        if (!s->sink.plan->files[i].shared) continue;
        if (s->folder_fd < 0) TRY(sink_file_open(s, err));
        TRY(check_counts(s, i, err));
        if (!sink_file_is_intact(s, i))
            return fail(err, ERR_RANK,
                        "%s: the ranks wrote this file, but it is gone; --restart starts over",
                        s->files[i].path);
        TRY(complete_file(s, i, err));
        TRY(finish_file(s, i, 0, err));
    }
    return OK;
}

static enum status finish_sink(struct sink *sink, struct error *err)
{
    struct sink_file *s = (struct sink_file *)sink;
    return threads_run(FSYNC_THREADS, s->sink.plan->num_files, finish_file, s, err);
}

void sink_file_keep_open(struct sink_file *s, size_t max_open)
{
    if (max_open < s->open.max_open) s->open.max_open = max_open ? max_open : 1;
}

void sink_file_init(struct sink_file *s, const struct plan *p, const char *folder,
                    const struct sink_file_options *o)
{
    *s = (struct sink_file){.sink = {.plan = p,
                                     .write = write_bytes,
                                     .add_run = add_written_run,
                                     .count = count_bytes,
                                     .finish = finish_sink},
                            .options = *o,
                            .folder = folder,
                            .folder_fd = -1};
    arena_init(&s->arena);
    pthread_mutex_init(&s->lock, NULL);
    s->segments = arena_array(&s->arena, p->num_segments, sizeof *s->segments);
    s->files = arena_array(&s->arena, p->num_files, sizeof *s->files);
    open_files_init(&s->open, p->num_files, p->num_files, s, open_output_file, close_file);
    for (uint32_t i = 0; i < p->num_files; i++)
        s->files[i].path = path_join(&s->arena, folder, p->files[i].path);
    for (size_t i = 0; i < p->num_segments; i++) {
        const struct segment *segment = &p->segments[i];
        s->segments[i].bytes_left = dtype_run_bytes(segment->dtype, segment->numel);
        if (segment->numel) s->files[segment->file].segments_left++;
    }
}
