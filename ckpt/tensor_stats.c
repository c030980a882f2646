#include "ckpt/tensor_stats.h"

#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

struct counting {
    const struct scan_item *items;
    struct moments *of_tasks; /* joined in the order of tasks: sums are rounded alike for any number
                                 of threads */
    size_t *item_of_task;
    struct progress *progress;
};

static enum status add_panel(void *context, const struct scan_panel *p, struct error *err)
{
    struct counting *x = context;
    enum dtype dtype = x->items[p->task->item].tensors[0]->dtype;
    (void)err;
    moments_add(&x->of_tasks[p->task->number], dtype, p->elements[0], p->count);
    progress_add(x->progress, dtype_run_bytes(dtype, p->count));
    return OK;
}

static enum status note_item(void *context, const struct scan_task *t, bool *skip,
                             struct error *err)
{
    struct counting *x = context;
    (void)skip, (void)err;
    x->item_of_task[t->number] = t->item;
    return OK;
}

/* Makes tensors with moments items of the scan, and sets their places in the
 * results. Returns their bytes. */
static uint64_t choose_items(const struct tensor *const *tensors, size_t count,
                             struct scan_item *items, size_t *place, size_t *num_items)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        if (!moments_exist(tensors[i]->dtype)) continue;
        place[*num_items] = i;
        items[(*num_items)++].tensors[0] = tensors[i];
        bytes += dtype_run_bytes(tensors[i]->dtype, tensors[i]->numel);
    }
    return bytes;
}

enum status tensor_stats(const struct catalog *c, const struct tensor *const *tensors, size_t count,
                         const struct stats_options *o, struct moments *out, struct error *err)
{
    struct scan_item *items = must_calloc(count + 1, sizeof *items);
    size_t *place = must_calloc(count + 1, sizeof *place); /* [items] index in out */
    struct counting x = {.items = items};
    struct scan s = {.catalogs = {c, NULL},
                     .items = items,
                     .threads = o->threads,
                     .max_memory = o->max_memory,
                     .direct_io = o->direct_io,
                     .begin = note_item,
                     .visit = add_panel,
                     .context = &x};
    struct scan_result result;
    uint64_t bytes = choose_items(tensors, count, items, place, &s.num_items);
    size_t tasks = scan_count_tasks(&s);
    x.of_tasks = must_calloc(tasks + 1, sizeof *x.of_tasks);
    x.item_of_task = must_calloc(tasks + 1, sizeof *x.item_of_task);
    x.progress = progress_start(o->progress, "reading", bytes);
    memset(out, 0, count * sizeof *out);
    enum status st = scan_run(&s, &result, err);
    progress_finish(x.progress, st == OK);
    for (size_t i = 0; i < tasks && !st; i++)
        moments_join(&out[place[x.item_of_task[i]]], &x.of_tasks[i]);
    free(x.of_tasks);
    free(x.item_of_task);
    free(place);
    free(items);
    return st;
}
