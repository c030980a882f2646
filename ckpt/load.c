#include "ckpt/load.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/panel.h"
#include "ckpt/scan.h"
#include "common/checked.h"
#include "common/memory.h"
#include "kernels/cpu/cast.h"

struct loading {
    struct load_target *targets; /* by tensor, those of one by dtype; parts are nested */
    size_t num_targets;
    struct scan_item *items; /* the tensors */
    size_t *first;           /* [num_items + 1] target of each item */
    size_t num_items;
    struct progress *progress;
    _Atomic uint64_t loaded_bytes;
};

/* ---- targets as a scan ---- */

static int by_tensor(const void *a, const void *b)
{
    const struct load_target *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    return x->dtype < y->dtype ? -1 : x->dtype > y->dtype;
}

/* Nests the part, as pair_join() wants it. */
static enum status check_target(struct load_target *target, struct error *err)
{
    const struct tensor *t = target->tensor;
    struct pair *part = &target->part;
    TRY(tensor_check_cast(t, target->dtype, err));
    if (!pair_nest(part)) return fail(err, ERR_OURS, "%s: loaded by no nested view", t->name);
    if (pair_count(part) &&
        (part->a_offset > t->numel || pair_a_span(part) > t->numel - part->a_offset))
        return fail(err, ERR_OURS, "%s: loaded from elements that it does not have", t->name);
    return OK;
}

/* The item of target i, which is a new one where its tensor is. */
static struct scan_item *item_of(struct loading *x, size_t i)
{
    const struct tensor *t = x->targets[i].tensor;
    if (!x->num_items || x->items[x->num_items - 1].tensors[0] != t) {
        x->first[x->num_items] = i;
        x->items[x->num_items++] = (struct scan_item){.tensors = {t, NULL}};
    }
    return &x->items[x->num_items - 1];
}

static enum status make_items(struct loading *x, struct scan *s, struct error *err)
{
    if (x->num_targets) qsort(x->targets, x->num_targets, sizeof *x->targets, by_tensor);
    for (size_t i = 0; i < x->num_targets; i++) {
        struct load_target *target = &x->targets[i];
        struct scan_item *item = item_of(x, i);
        TRY(check_target(target, err));
        item->element_bytes = max_u64(item->element_bytes, dtype_bytes(target->dtype));
        item->wide |= pair_is_transposed(&target->part);
        s->casts |= target->dtype != target->tensor->dtype;
    }
    x->first[x->num_items] = x->num_targets;
    s->items = x->items;
    s->num_items = x->num_items;
    return OK;
}

/* ---- panels ---- */

static bool wants_panel(void *context, const struct scan_task *t, uint64_t low, uint64_t count)
{
    const struct loading *x = context;
    struct pair window = pair_whole(low, 0, count);
    bool wanted = false;
    for (size_t i = x->first[t->item]; i < x->first[t->item + 1] && !wanted; i++)
        wanted = pair_overlap(&window, &x->targets[i].part);
    return wanted;
}

struct copying {
    const struct load_target *target;
    const char *panel; /* in the target's dtype */
    uint64_t bytes;    /* that were copied */
};

static enum status copy_joined(void *context, const struct pair *p, struct error *err)
{
    struct copying *c = context; /* p.a: the panel, p.b: memory */
    const size_t bytes = dtype_bytes(c->target->dtype);
    (void)err;
    copy_axes((char *)c->target->memory + p->b_offset * bytes, c->panel + p->a_offset * bytes,
              bytes, p->num_axes, p->axes);
    c->bytes += pair_count(p) * bytes;
    return OK;
}

static const char *panel_as(const struct scan_panel *p, enum dtype to, enum dtype from)
{
    if (to == from) return p->elements[0];
    (void)cast_elements(p->cast, to, p->elements[0], from, p->count);
    return p->cast;
}

static enum status load_panel(void *context, const struct scan_panel *p, struct error *err)
{
    struct loading *x = context;
    const struct load_target *target = &x->targets[x->first[p->task->item]],
                             *end = &x->targets[x->first[p->task->item + 1]];
    struct pair window = pair_whole(p->low, 0, p->count);
    struct copying c = {0};
    for (; target < end; target++) {
        if (!c.target || c.target->dtype != target->dtype)
            c.panel = panel_as(p, target->dtype, target->tensor->dtype);
        c.target = target;
        TRY(pair_join(&window, &target->part, copy_joined, &c, err));
    }
    atomic_fetch_add_explicit(&x->loaded_bytes, c.bytes, memory_order_relaxed);
    progress_add(x->progress, c.bytes);
    return OK;
}

/* ---- the whole ---- */

static uint64_t target_bytes(const struct loading *x)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < x->num_targets; i++)
        bytes += pair_count(&x->targets[i].part) * dtype_bytes(x->targets[i].dtype);
    return bytes;
}

static enum status run(struct loading *x, struct catalog *c, const struct load_options *o,
                       struct scan_result *read, struct error *err)
{
    struct scan s = {.catalogs = {c, NULL},
                     .threads = o->threads,
                     .max_memory = o->max_memory,
                     .wants = wants_panel,
                     .visit = load_panel,
                     .context = x};
    TRY(make_items(x, &s, err));
    for (size_t i = 0; i < x->num_items; i++)
        TRY(catalog_check_tensor(c, x->items[i].tensors[0], err));
    x->progress = progress_start(o->progress, "loading", target_bytes(x));
    enum status st = scan_run(&s, read, err);
    progress_finish(x->progress, st == OK);
    return st;
}

enum status load_run(struct catalog *c, const struct load_target *targets, size_t num_targets,
                     const struct load_options *o, struct load_result *result, struct error *err)
{
    struct scan_result read = {0};
    struct loading x = {.num_targets = num_targets};
    x.targets = must_calloc(num_targets + 1, sizeof *x.targets);
    x.items = must_calloc(num_targets + 1, sizeof *x.items);
    x.first = must_calloc(num_targets + 1, sizeof *x.first);
    if (num_targets) memcpy(x.targets, targets, num_targets * sizeof *targets);
    enum status st = run(&x, c, o, &read, err);
    *result = (struct load_result){.read_bytes = read.read_bytes, .loaded_bytes = x.loaded_bytes};
    free(x.targets);
    free(x.items);
    free(x.first);
    return st;
}
