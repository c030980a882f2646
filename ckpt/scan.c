#include "ckpt/scan.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/file.h"
#include "common/host_memory.h"
#include "common/open_files.h"
#include "common/threads.h"

enum {
    PANEL_BYTES = 1 << 20, /* for runs and slices: fits the second-level cache */
    WIDE_PANEL_BYTES =
        32 << 20, /* at most, for transposes: a run is as long as the panel has rows */
    LEAST_BUFFER = 64 << 10,
    TASK_BYTES = 64 << 20,
    STACK_BYTES = 1 << 20, /* of a thread, and allocated by its first calls */
    SPARE_BYTES = 1 << 20, /* may become resident between scan_memory() and the run */
    SPARE_FILES = 16,      /* opened by other code during the run: journals, folders, locks */
};

struct worker {
    char *panels[SCAN_TENSORS], *temp,
        *cast; /* of buffer_bytes each; but for the first panel where needed */
    struct panel_reader readers[SCAN_TENSORS];
};

struct running {
    const struct scan *s;
    struct stored_reader *files[SCAN_TENSORS];
    struct scan_task *tasks;
    size_t num_tasks, tasks_capacity;
    struct worker *workers;
    unsigned num_workers;
    uint64_t buffer_bytes;
    struct arena arena;
};

/* ---- sizes of items ---- */

/* Bytes of an item's widest element: stored, read or cast. */
static size_t widest_element(const struct scan_item *item)
{
    size_t bytes = item->element_bytes;
    for (unsigned side = 0; side < SCAN_TENSORS; side++) {
        const struct tensor *t = item->tensors[side];
        if (!t) continue;
        bytes = max_u64(bytes, dtype_bytes(t->dtype));
        for (size_t i = 0; i < t->num_pieces; i++)
            bytes = max_u64(bytes, dtype_bytes(piece_dtype(&t->pieces[i], t->dtype)));
    }
    return max_u64(bytes, 1);
}

static bool is_wide(const struct scan_item *item)
{
    if (item->wide) return true;
    for (unsigned side = 0; side < SCAN_TENSORS; side++)
        for (size_t i = 0; item->tensors[side] && i < item->tensors[side]->num_pieces; i++) {
            const struct pair pair = pair_unpack(&item->tensors[side]->pieces[i].pair);
            if (pair_is_transposed(&pair)) return true;
        }
    return false;
}

static uint64_t elements_per_row(const struct tensor *t)
{
    return t->num_dims > 1 && t->shape[0] ? t->numel / t->shape[0] : 1;
}

/* Elements that fit `room`: whole blocks, and whole rows if one fits. */
static uint64_t whole_rows(const struct scan_item *item, uint64_t room)
{
    const uint64_t row = elements_per_row(item->tensors[0]);
    const uint64_t count = row && row <= room ? room / row * row : room;
    unsigned block = 1;
    for (unsigned side = 0; side < SCAN_TENSORS; side++)
        if (item->tensors[side])
            block = (unsigned)max_u64(block, dtype_block(item->tensors[side]->dtype));
    return count > block ? count / block * block : block;
}

static uint64_t panel_elements(const struct running *x, const struct scan_item *item)
{
    size_t bytes = widest_element(item);
    uint64_t room = x->buffer_bytes / bytes;
    if (!is_wide(item)) room = min_u64(room, PANEL_BYTES / bytes);
    return whole_rows(item, room);
}

static uint64_t task_elements(const struct scan_item *item)
{
    return whole_rows(item, TASK_BYTES / widest_element(item));
}

/* ---- parts of tensors ---- */

enum { MAX_COMPARED = 32 };

/* Whether parts share no element; false for more than MAX_COMPARED parts. */
static bool are_apart(const struct pair *parts, size_t num_parts)
{
    for (size_t i = 0; i < num_parts && num_parts <= MAX_COMPARED; i++)
        for (size_t k = 0; k < i; k++)
            if (pair_overlap(&parts[i], &parts[k])) return false;
    return num_parts <= MAX_COMPARED;
}

/* All elements from the first of any part to the last. */
static struct pair hull_of(const struct pair *parts, size_t num_parts)
{
    uint64_t low = UINT64_MAX, high = 0;
    for (size_t i = 0; i < num_parts; i++) {
        if (!pair_count(&parts[i])) continue;
        low = min_u64(low, parts[i].a_offset);
        high = max_u64(high, parts[i].a_offset + pair_a_span(&parts[i]));
    }
    return pair_whole(high ? low : 0, 0, high ? high - low : 0);
}

void scan_item_read_parts(struct scan_item *item, struct pair *parts, size_t num_parts)
{
    item->parts = parts;
    item->num_parts = num_parts;
    if (are_apart(parts, num_parts)) return;
    parts[0] = hull_of(parts, num_parts);
    item->num_parts = 1;
}

/* ---- memory ---- */

/* Buffers of each worker, and the largest useful size of one. */
struct need {
    unsigned buffers;
    uint64_t wanted_bytes;
    uint64_t tasks;
    bool mixed;
};

static unsigned num_catalogs(const struct scan *s)
{
    unsigned n = 0;
    for (unsigned side = 0; side < SCAN_TENSORS; side++)
        n += s->catalogs[side] != NULL;
    return n;
}

static struct need buffers_needed(const struct scan *s)
{
    struct need need = {1 + num_catalogs(s), PANEL_BYTES, 0, s->casts};
    for (size_t i = 0; i < s->num_items; i++) {
        const struct scan_item *item = &s->items[i];
        for (unsigned side = 0; side < SCAN_TENSORS; side++)
            if (item->tensors[side] && tensor_takes_cast(item->tensors[side])) need.mixed = true;
        uint64_t numel = item->tensors[0]->numel, bytes = numel * widest_element(item);
        if (bytes > need.wanted_bytes && is_wide(item)) need.wanted_bytes = bytes;
        need.tasks += numel / task_elements(item) + 1;
    }
    need.buffers += need.mixed;
    need.wanted_bytes = min_u64(need.wanted_bytes, WIDE_PANEL_BYTES);
    return need;
}

size_t scan_count_tasks(const struct scan *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->num_items; i++) {
        uint64_t step = task_elements(&s->items[i]);
        n += (s->items[i].tensors[0]->numel + step - 1) / step;
    }
    return n;
}

unsigned scan_threads(const struct scan *s)
{
    return s->threads ? s->threads : threads_available();
}

/* Bytes that a run allocates besides buffers. */
static uint64_t fixed_bytes(const struct scan *s, const struct need *need)
{
    uint64_t each = STACK_BYTES + (s->direct_io ? FILE_DIRECT_BYTES : 0);
    return scan_threads(s) * each + s->kept_bytes + 2 * need->tasks * sizeof(struct scan_task);
}

uint64_t scan_own_bytes(const struct scan *s)
{
    struct need need = buffers_needed(s);
    return fixed_bytes(s, &need) + scan_threads(s) * need.buffers * need.wanted_bytes;
}

/* Sets the largest buffer size with which the peak and `spare` bytes fit
 * max_memory; if none does, *peak_bytes is the least limit that works. */
static enum status choose_buffers(const struct scan *s, const struct need *need, uint64_t spare,
                                  uint64_t *buffer_bytes, uint64_t *peak_bytes, struct error *err)
{
    uint64_t workers = scan_threads(s);
    uint64_t fixed = host_memory_resident() + fixed_bytes(s, need) + spare;
    uint64_t least = fixed + workers * need->buffers * LEAST_BUFFER;
    *buffer_bytes = need->wanted_bytes;
    if (s->max_memory && least > s->max_memory) {
        const bool small = s->max_memory < 1 << 20;
        *peak_bytes = (((least + SPARE_BYTES) >> 20) + 1) << 20;
        return fail(err, ERR_MEMORY,
                    "--max-memory %" PRIu64 " %s is not enough for this plan: %" PRIu64
                    " threads need at least %" PRIu64 " MiB",
                    small ? s->max_memory : s->max_memory >> 20, small ? "bytes" : "MiB", workers,
                    *peak_bytes >> 20);
    }
    if (s->max_memory)
        *buffer_bytes = min_u64(*buffer_bytes, (s->max_memory - fixed) / (workers * need->buffers));
    *peak_bytes = fixed + workers * need->buffers * *buffer_bytes;
    return OK;
}

enum status scan_memory(const struct scan *s, uint64_t *peak_bytes, struct error *err)
{
    uint64_t buffer_bytes;
    size_t kept;
    struct need need = buffers_needed(s);
    TRY(scan_share_files(s, s->kept_files, &kept, err));
    return choose_buffers(s, &need, SPARE_BYTES, &buffer_bytes, peak_bytes, err);
}

/* ---- open files ---- */

/* Files that all threads read at once, or all files to read. */
static size_t files_to_read(const struct scan *s, size_t at_most)
{
    size_t n = 0;
    for (unsigned side = 0; side < SCAN_TENSORS; side++)
        if (s->catalogs[side]) n += min_u64(s->catalogs[side]->stored.num_files, at_most);
    return n;
}

enum status scan_share_files(const struct scan *s, size_t wanted, size_t *kept, struct error *err)
{
    const size_t threads = scan_threads(s), read = files_to_read(s, threads),
                 written = min_u64(wanted, threads), all = files_to_read(s, SIZE_MAX);
    uint64_t limit;
    const size_t left = open_files_left(&limit);
    if (left < SPARE_FILES + read + written)
        return fail(err, ERR_IO,
                    "%zu threads need %zu open files, %zu to read, %zu to write and %d others: "
                    "`ulimit -n` is %" PRIu64 " and leaves %zu; raise it, or use fewer --threads",
                    threads, read + written + SPARE_FILES, read, written, SPARE_FILES, limit, left);
    const size_t share = left - SPARE_FILES;
    const size_t unread = share > all ? share - all : 0; /* of no use to readers */
    *kept = min_u64(wanted, min_u64(max_u64(share / 2, unread), share - read));
    *kept = max_u64(*kept, written);
    return OK;
}

/* Files that the reader of one catalog keeps open. */
static size_t files_of_reader(const struct scan *s)
{
    uint64_t limit;
    const size_t left = open_files_left(&limit), used = SPARE_FILES + s->kept_files;
    const size_t share = left > used ? left - used : 0;
    return max_u64(share / num_catalogs(s), scan_threads(s));
}

static enum status set_up_workers(struct running *x, struct error *err)
{
    uint64_t peak;
    struct need need = buffers_needed(x->s);
    TRY(choose_buffers(x->s, &need, 0, &x->buffer_bytes, &peak, err));
    x->num_workers = scan_threads(x->s);
    x->workers = arena_array(&x->arena, x->num_workers, sizeof *x->workers);
    for (unsigned i = 0; i < x->num_workers; i++) {
        struct worker *w = &x->workers[i];
        char **buffers[] = {&w->panels[0], &w->temp, x->s->catalogs[1] ? &w->panels[1] : NULL,
                            x->s->catalogs[2] ? &w->panels[2] : NULL, need.mixed ? &w->cast : NULL};
        for (size_t k = 0; k < COUNT(buffers); k++)
            if (buffers[k] && !(*buffers[k] = malloc(x->buffer_bytes)))
                return fail(err, ERR_MEMORY, "no memory for buffers of %" PRIu64 " bytes",
                            x->buffer_bytes);
        for (unsigned side = 0; side < SCAN_TENSORS; side++)
            w->readers[side] = (struct panel_reader){.reader = x->files[side],
                                                     .buffer_bytes = x->buffer_bytes,
                                                     .temp = w->temp,
                                                     .cast = w->cast};
    }
    return OK;
}

/* ---- the run ---- */

static void add_tasks(struct running *x, size_t index)
{
    const struct scan_item *item = &x->s->items[index];
    uint64_t step = task_elements(item), numel = item->tensors[0]->numel;
    for (uint64_t low = 0; low < numel; low += step) {
        struct scan_task t = {x->num_tasks, index, low, min_u64(low + step, numel), 0};
        *ARENA_PUSH(&x->arena, x->tasks, x->num_tasks, x->tasks_capacity) = t;
    }
}

static bool has_parts(const struct scan_item *item, uint64_t low, uint64_t count)
{
    struct pair window = pair_whole(low, 0, count);
    for (size_t i = 0; i < item->num_parts; i++)
        if (pair_overlap(&window, &item->parts[i])) return true;
    return !item->parts;
}

static enum status read_panel(struct panel_reader *r, const struct scan_item *item, unsigned side,
                              const struct scan_panel *p, struct error *err)
{
    const struct tensor *t = item->tensors[side];
    void *panel = p->elements[side];
    if (!item->parts) return panel_read(r, t, p->low, p->count, panel, err);
    return panel_read_parts(r, t, p->low, p->count, item->parts, item->num_parts, panel, err);
}

static enum status run_panel(struct running *x, const struct scan_task *t, uint64_t low,
                             uint64_t count, struct error *err)
{
    struct worker *w = &x->workers[t->worker];
    const struct scan_item *item = &x->s->items[t->item];
    struct scan_panel panel = {.task = t,
                               .low = low,
                               .count = count,
                               .elements = {w->panels[0], w->panels[1], w->panels[2]},
                               .temp = w->temp,
                               .cast = w->cast};
    if (x->s->wants && !x->s->wants(x->s->context, t, low, count)) return OK;
    if (!has_parts(item, low, count)) return OK;
    for (unsigned side = 0; side < SCAN_TENSORS; side++) {
        struct panel_reader *r = &w->readers[side];
        if (!item->tensors[side]) continue;
        r->casts = (struct cast_counts){0};
        TRY(read_panel(r, item, side, &panel, err));
        cast_counts_join(&panel.casts, &r->casts);
    }
    return x->s->visit(x->s->context, &panel, err);
}

static enum status run_panels(struct running *x, const struct scan_task *t, struct error *err)
{
    const struct scan_item *item = &x->s->items[t->item];
    uint64_t panel = panel_elements(x, item);
    for (uint64_t low = t->low; low < t->high; low += panel) {
        TRY(work_check(err));
        enum status st = run_panel(x, t, low, min_u64(panel, t->high - low), err);
        if (st) return fail_in(err, "%s", item->tensors[0]->name);
    }
    return OK;
}

static enum status run_task(void *context, size_t index, unsigned worker, struct error *err)
{
    struct running *x = context;
    struct scan_task *t = &x->tasks[index];
    bool skip = false;
    t->worker = worker;
    if (x->s->begin) TRY(x->s->begin(x->s->context, t, &skip, err));
    if (!skip) TRY(run_panels(x, t, err));
    return x->s->end ? x->s->end(x->s->context, t, err) : OK;
}

static enum status run_all(struct running *x, struct error *err)
{
    TRY(set_up_workers(x, err)); /* before the tasks, whose memory is estimated */
    for (size_t i = 0; i < x->s->num_items; i++)
        add_tasks(x, i);
    TRY(threads_run(x->num_workers, x->num_tasks, run_task, x, err));
    for (unsigned side = 0; side < SCAN_TENSORS; side++)
        if (x->s->catalogs[side]) TRY(stored_unchanged(&x->s->catalogs[side]->stored, err));
    return OK;
}

static void add_up(const struct running *x, struct scan_result *result)
{
    for (unsigned i = 0; x->workers && i < x->num_workers; i++)
        for (unsigned side = 0; side < SCAN_TENSORS; side++)
            result->read_bytes += x->workers[i].readers[side].read_bytes;
}

static void tear_down(struct running *x)
{
    for (unsigned i = 0; x->workers && i < x->num_workers; i++) {
        free(x->workers[i].panels[0]);
        free(x->workers[i].panels[1]);
        free(x->workers[i].temp);
        free(x->workers[i].cast);
    }
    for (unsigned side = 0; side < SCAN_TENSORS; side++)
        stored_reader_free(x->files[side]);
    arena_release(&x->arena);
}

enum status scan_run(const struct scan *s, struct scan_result *result, struct error *err)
{
    struct running x = {.s = s};
    *result = (struct scan_result){0};
    arena_init(&x.arena);
    const size_t max_open = files_of_reader(s);
    for (unsigned side = 0; side < SCAN_TENSORS; side++) {
        if (!s->catalogs[side]) continue;
        x.files[side] = stored_reader_create(&s->catalogs[side]->stored, max_open);
        if (s->direct_io) stored_reader_set_direct(x.files[side]);
    }
    enum status st = run_all(&x, err);
    add_up(&x, result);
    tear_down(&x);
    return st;
}
