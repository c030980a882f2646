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
    struct load_target *targets; /* by tensor; parts are nested */
    size_t num_targets;
    struct scan_item *items; /* the tensors */
    size_t *first;           /* [num_items + 1] target of each item */
    struct pair *parts;      /* [num_targets] of the items */
    size_t num_items;
    struct progress *progress;
    _Atomic uint64_t loaded_bytes;
};

/* ---- targets as a scan ---- */

static int by_tensor(const void *a, const void *b)
{
    const struct load_target *x = a, *y = b;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
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

enum { MOST_COMPARED = 32 };

/* Many parts are taken for such that overlap. */
static bool are_apart(const struct pair *parts, size_t num_parts)
{
    for (size_t i = 0; i < num_parts && num_parts <= MOST_COMPARED; i++)
        for (size_t k = 0; k < i; k++)
            if (pair_overlap(&parts[i], &parts[k])) return false;
    return num_parts <= MOST_COMPARED;
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

/* Elements that several targets want are read once for all of them. */
static void set_parts(struct loading *x)
{
    for (size_t i = 0; i < x->num_items; i++) {
        struct pair *parts = &x->parts[x->first[i]];
        size_t n = x->first[i + 1] - x->first[i];
        for (size_t k = 0; k < n; k++)
            parts[k] = x->targets[x->first[i] + k].part;
        if (!are_apart(parts, n)) {
            parts[0] = hull_of(parts, n);
            n = 1;
        }
        x->items[i].parts = parts;
        x->items[i].num_parts = n;
    }
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
    set_parts(x);
    s->items = x->items;
    s->num_items = x->num_items;
    return OK;
}

/* ---- panels ---- */

struct copying {
    const struct load_target *target;
    const struct scan_panel *panel;
    uint64_t bytes; /* that were copied */
};

/* Cast where they are packed: many at once. */
static void cast_block(const struct copying *c, const struct pair *p, void *to, const void *from)
{
    const enum dtype stored = c->target->tensor->dtype, wanted = c->target->dtype;
    struct axis packing[MAX_AXES], unpacking[MAX_AXES];
    uint64_t count = 1;
    for (unsigned k = p->num_axes; k-- > 0; count *= p->axes[k].extent) {
        packing[k] = (struct axis){p->axes[k].extent, p->axes[k].a_stride, count};
        unpacking[k] = (struct axis){p->axes[k].extent, count, p->axes[k].b_stride};
    }
    copy_axes(c->panel->temp, from, dtype_bytes(stored), p->num_axes, packing);
    (void)cast_elements(c->panel->cast, wanted, c->panel->temp, stored, count);
    copy_axes(to, c->panel->cast, dtype_bytes(wanted), p->num_axes, unpacking);
}

static bool is_run(const struct pair *p)
{
    return p->num_axes == 0 ||
           (p->num_axes == 1 && p->axes[0].a_stride == 1 && p->axes[0].b_stride == 1);
}

static enum status copy_joined(void *context, const struct pair *p, struct error *err)
{
    struct copying *c = context; /* p.a: the panel, p.b: memory */
    const enum dtype stored = c->target->tensor->dtype, wanted = c->target->dtype;
    const void *from = (const char *)c->panel->elements[0] + p->a_offset * dtype_bytes(stored);
    void *to = (char *)c->target->memory + p->b_offset * dtype_bytes(wanted);
    (void)err;
    if (wanted == stored)
        copy_axes(to, from, dtype_bytes(wanted), p->num_axes, p->axes);
    else if (is_run(p))
        (void)cast_elements(to, wanted, from, stored, pair_count(p));
    else
        cast_block(c, p, to, from);
    c->bytes += pair_count(p) * dtype_bytes(wanted);
    return OK;
}

static enum status load_panel(void *context, const struct scan_panel *p, struct error *err)
{
    struct loading *x = context;
    const struct load_target *target = &x->targets[x->first[p->task->item]],
                             *end = &x->targets[x->first[p->task->item + 1]];
    struct pair window = pair_whole(p->low, 0, p->count);
    struct copying c = {.panel = p};
    for (; target < end; target++) {
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

static enum status run(struct loading *x, const struct catalog *c, const struct load_options *o,
                       struct scan_result *read, struct error *err)
{
    struct scan s = {.catalogs = {c, NULL},
                     .threads = o->threads,
                     .max_memory = o->max_memory,
                     .visit = load_panel,
                     .context = x};
    TRY(make_items(x, &s, err));
    for (size_t i = 0; i < x->num_items; i++)
        TRY(tensor_check(x->items[i].tensors[0], err));
    x->progress = progress_start(o->progress, o->what ? o->what : "loading", target_bytes(x));
    enum status st = scan_run(&s, read, err);
    progress_finish(x->progress, st == OK);
    return st;
}

static void loading_init(struct loading *x, const struct load_target *targets, size_t num_targets)
{
    *x = (struct loading){.num_targets = num_targets};
    x->targets = must_calloc(num_targets + 1, sizeof *x->targets);
    x->items = must_calloc(num_targets + 1, sizeof *x->items);
    x->first = must_calloc(num_targets + 1, sizeof *x->first);
    x->parts = must_calloc(num_targets + 1, sizeof *x->parts);
    if (num_targets) memcpy(x->targets, targets, num_targets * sizeof *targets);
}

static void loading_release(struct loading *x)
{
    free(x->targets);
    free(x->items);
    free(x->first);
    free(x->parts);
}

enum status load_own_bytes(const struct load_target *targets, size_t num_targets,
                           const struct load_options *o, uint64_t *bytes, struct error *err)
{
    struct loading x;
    struct scan s = {.threads = o->threads};
    loading_init(&x, targets, num_targets);
    enum status st = make_items(&x, &s, err);
    if (!st) *bytes = scan_own_bytes(&s);
    loading_release(&x);
    return st;
}

enum status load_run(const struct catalog *c, const struct load_target *targets, size_t num_targets,
                     const struct load_options *o, struct load_result *result, struct error *err)
{
    struct scan_result read = {0};
    struct loading x;
    loading_init(&x, targets, num_targets);
    enum status st = run(&x, c, o, &read, err);
    *result = (struct load_result){.read_bytes = read.read_bytes, .loaded_bytes = x.loaded_bytes};
    loading_release(&x);
    return st;
}
