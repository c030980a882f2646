#include "ckpt/sink_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "ckpt/publish.h"
#include "common/file.h"
#include "common/threads.h"

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

struct filled_segment {
    _Atomic uint64_t bytes_left;
    struct run *runs; /* behind the sink's lock */
    uint32_t crc;     /* of a complete segment that wants a CRC */
};

struct filled_file {
    int fd; /* -1 until the first write */
    char *path;
    pthread_mutex_t lock; /* of opening */
    _Atomic uint32_t segments_left;
    _Atomic uint64_t dirty_bytes;
};

uint64_t sink_file_state_bytes(const struct plan *p)
{
    return p->num_segments * sizeof(struct filled_segment) +
           p->num_files * sizeof(struct filled_file);
}

uint64_t sink_file_run_bytes(const struct plan *p)
{
    return p->num_segments * sizeof(struct run);
}

void sink_file_release(struct sink_file *s)
{
    for (size_t i = 0; i < s->sink.plan->num_files; i++) {
        if (s->files[i].fd >= 0) close(s->files[i].fd);
        pthread_mutex_destroy(&s->files[i].lock);
    }
    if (s->folder_fd >= 0) close(s->folder_fd);
    pthread_mutex_destroy(&s->lock);
    arena_release(&s->arena);
}

/* Whether only this rank writes the file. */
static bool is_ours(const struct sink_file *s, uint32_t file)
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

/* Opens the file at its first use. Its size is set at once, so that no other process sees it
 * grow. */
static enum status file_fd(struct sink_file *s, uint32_t file, int *fd, struct error *err)
{
    struct filled_file *f = &s->files[file];
    enum status st = OK;
    pthread_mutex_lock(&f->lock);
    if (f->fd < 0) {
        const struct output_file *is = &s->sink.plan->files[file];
        st = file_create_at(s->folder_fd, is->path, f->path, s->options.may_exist || is->shared,
                            &f->fd, err);
        if (!st && ftruncate(f->fd, (off_t)s->sink.plan->files[file].size_bytes))
            st = fail_errno(err, ERR_IO, "%s: setting its size", f->path);
    }
    *fd = f->fd;
    pthread_mutex_unlock(&f->lock);
    return st;
}

/* Starts the writeback of dirty bytes of a file, so that fsync at the end finds little to do. */
static void start_writeback(struct sink_file *s, uint32_t file, uint64_t bytes)
{
    struct filled_file *f = &s->files[file];
    if (!s->options.fsync) return;
    uint64_t dirty = atomic_fetch_add(&f->dirty_bytes, bytes) + bytes;
    if (dirty < WRITEBACK_BYTES) return;
    atomic_fetch_sub(&f->dirty_bytes, dirty);
    (void)sync_file_range(f->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
}

static enum status write_bytes(struct sink *sink, uint32_t segment, uint64_t offset,
                               const void *from, uint64_t bytes, struct error *err)
{
    struct sink_file *s = (struct sink_file *)sink;
    const struct segment *to = &s->sink.plan->segments[segment];
    int fd;
    TRY(file_fd(s, to->file, &fd, err));
    TRY(file_write(fd, s->files[to->file].path, from, bytes, to->offset_bytes + offset, err));
    atomic_fetch_add_explicit(&s->sink.written_bytes, bytes, memory_order_relaxed);
    start_writeback(s, to->file, bytes);
    return OK;
}

static void add_run(struct sink *sink, const struct journal_run *run)
{
    struct sink_file *s = (struct sink_file *)sink;
    pthread_mutex_lock(&s->lock);
    struct run *r = arena_alloc(&s->arena, sizeof *r);
    *r = (struct run){s->segments[run->segment].runs, run->offset, run->bytes, (uint32_t)run->crc};
    s->segments[run->segment].runs = r;
    pthread_mutex_unlock(&s->lock);
}

/* ---- files that are complete ---- */

static int by_offset(const void *a, const void *b)
{
    const struct run *x = *(struct run *const *)a, *y = *(struct run *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The CRC-32 of count zero bytes, from those of 1, 2, 4, ... */
static uint32_t crc_of_zeros(uint64_t count)
{
    uint32_t crc = 0, part = (uint32_t)crc32(0, (const unsigned char[]){0}, 1);
    for (uint64_t bytes = 1; count; bytes *= 2, count /= 2) {
        if (count & 1) crc = (uint32_t)crc32_combine(crc, part, (off_t)bytes);
        part = (uint32_t)crc32_combine(part, part, (off_t)bytes);
    }
    return crc;
}

/* Adds zeros to what reaches to *end, up to `to`, if the segment has holes: plan_finish has checked
 * that something fills each element. */
static void add_hole(const struct segment *s, uint64_t to, uint32_t *crc, uint64_t *end)
{
    if (!s->has_holes || to <= *end) return;
    *crc = (uint32_t)crc32_combine(*crc, crc_of_zeros(to - *end), (off_t)(to - *end));
    *end = to;
}

/* The CRC-32 of a complete segment from those of its runs, which must tile it but for holes. */
static enum status combine_runs(struct sink_file *x, uint32_t segment, struct error *err)
{
    const struct segment *s = &x->sink.plan->segments[segment];
    const uint64_t bytes = s->numel * dtype_bytes(s->dtype);
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
    uint32_t crc = 0;
    for (size_t i = 0; i < n; i++) {
        add_hole(s, runs[i]->offset, &crc, &end);
        if (runs[i]->offset != end) break;
        crc = (uint32_t)crc32_combine(crc, runs[i]->crc, (off_t)runs[i]->bytes);
        end += runs[i]->bytes;
    }
    add_hole(s, bytes, &crc, &end);
    free(runs);
    x->segments[segment].crc = crc;
    if (end == bytes) return OK;
    return fail(err, ERR_OURS, "%s: a segment was written to byte %" PRIu64 " of %" PRIu64,
                x->files[s->file].path, end, bytes);
}

struct finishing {
    struct sink_file *sink;
    uint32_t file;
    int fd;
};

static enum status put_bytes(void *context, uint64_t offset, const void *bytes, size_t count,
                             struct error *err)
{
    struct finishing *f = context;
    TRY(file_write(f->fd, f->sink->files[f->file].path, bytes, count, offset, err));
    atomic_fetch_add_explicit(&f->sink->sink.written_bytes, count, memory_order_relaxed);
    return OK;
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
    for (uint32_t i = 0; i < f->num_segments; i++)
        TRY(combine_runs(s, s->sink.plan->by_file[f->first_segment + i], err));
    TRY(file_fd(s, file, &finishing.fd, err));
    struct file_writer writer = {put_bytes, crc_of, &finishing};
    if (f->finish) TRY(f->finish(s->sink.plan, file, f->finish_context, &writer, err));
    if (s->options.fsync) (void)sync_file_range(finishing.fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    return OK;
}

static enum status count_bytes(struct sink *sink, uint32_t segment, uint64_t bytes,
                               struct error *err)
{
    struct sink_file *s = (struct sink_file *)sink;
    if (atomic_fetch_sub(&s->segments[segment].bytes_left, bytes) != bytes) return OK;
    uint32_t file = s->sink.plan->segments[segment].file;
    if (s->sink.plan->files[file].shared) return OK;
    if (atomic_fetch_sub(&s->files[file].segments_left, 1) != 1) return OK;
    return complete_file(s, file, err);
}

enum status sink_file_complete_empty(struct sink_file *s, struct error *err)
{
    for (uint32_t i = 0; i < s->sink.plan->num_files; i++)
        if (is_ours(s, i) && s->files[i].segments_left == 0) TRY(complete_file(s, i, err));
    return OK;
}

/* ---- the disk ---- */

enum status sink_file_sync(struct sink_file *s, struct error *err)
{
    for (size_t i = 0; i < s->sink.plan->num_files && s->options.fsync; i++) {
        struct filled_file *f = &s->files[i];
        pthread_mutex_lock(&f->lock);
        int fd = f->fd;
        pthread_mutex_unlock(&f->lock);
        if (fd >= 0 && fdatasync(fd)) return fail_errno(err, ERR_IO, "%s: fdatasync", f->path);
    }
    return OK;
}

static enum status finish_file(void *context, size_t index, unsigned worker, struct error *err)
{
    struct sink_file *s = context;
    struct filled_file *f = &s->files[index];
    const bool shared = s->sink.plan->files[index].shared;
    (void)worker;
    if (shared ? f->fd < 0 : !is_ours(s, (uint32_t)index)) return OK;
    if (f->fd < 0 || (f->segments_left && !shared))
        return fail(err, ERR_OURS, "%s: not complete", f->path);
    if (s->options.fsync) TRY(file_sync(f->fd, f->path, err));
    if (s->options.direct_io) (void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
    int fd = f->fd;
    f->fd = -1;
    return close(fd) ? fail_errno(err, ERR_IO, "%s: close", f->path) : OK;
}

/* Checks that the bytes of all its segments are counted. */
static enum status check_counts(const struct sink_file *s, uint32_t file, struct error *err)
{
    const struct output_file *f = &s->sink.plan->files[file];
    for (uint32_t i = 0; i < f->num_segments; i++) {
        uint32_t segment = s->sink.plan->by_file[f->first_segment + i];
        uint64_t left = s->segments[segment].bytes_left;
        if (left)
            return fail(err, ERR_RANK,
                        "%s: %" PRIu64 " bytes of a segment were written by no rank; --restart "
                        "begins anew",
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
                        "%s: is gone, which ranks have written; --restart begins anew",
                        s->files[i].path);
        TRY(complete_file(s, i, err));
        TRY(finish_file(s, i, 0, err));
    }
    return OK;
}

static enum status finish(struct sink *sink, struct error *err)
{
    struct sink_file *s = (struct sink_file *)sink;
    return threads_run(FSYNC_THREADS, s->sink.plan->num_files, finish_file, s, err);
}

void sink_file_init(struct sink_file *s, const struct plan *p, const char *folder,
                    const struct sink_file_options *o)
{
    *s = (struct sink_file){.sink = {.plan = p,
                                     .write = write_bytes,
                                     .add_run = add_run,
                                     .count = count_bytes,
                                     .finish = finish},
                            .options = *o,
                            .folder = folder,
                            .folder_fd = -1};
    arena_init(&s->arena);
    pthread_mutex_init(&s->lock, NULL);
    s->segments = arena_array(&s->arena, p->num_segments, sizeof *s->segments);
    s->files = arena_array(&s->arena, p->num_files, sizeof *s->files);
    for (uint32_t i = 0; i < p->num_files; i++) {
        s->files[i].fd = -1;
        s->files[i].path = path_join(&s->arena, folder, p->files[i].path);
        pthread_mutex_init(&s->files[i].lock, NULL);
    }
    for (size_t i = 0; i < p->num_segments; i++) {
        const struct segment *segment = &p->segments[i];
        s->segments[i].bytes_left = segment->numel * dtype_bytes(segment->dtype);
        if (segment->numel) s->files[segment->file].segments_left++;
    }
}
