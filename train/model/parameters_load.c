/* parameters_load.c - loads parameters from files into memory.
 *
 * Host memory is filled in place. Memory of another device is filled window by
 * window, through two buffers in turn: while the device reads one, files are
 * read into the other. */
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "train/model/coded.h"

/* Bytes [from, to) of the region, and its parameters [first, end), of which the
 * first and the last may be partial. */
struct window {
    uint64_t from, to;
    size_t first, end;
};

static uint64_t end_of(const struct parameters *p, size_t i)
{
    return i + 1 < p->count ? p->items[i + 1].offset : p->bytes;
}

static struct window all_of(const struct parameters *p)
{
    return (struct window){.to = p->bytes, .end = p->count};
}

/* Advances w, {0} at first; false if no tensor is left. A window has as many
 * parameters as fit, or some of a larger one, and does not begin with a state.
 */
static bool next_window(const struct parameters *p, struct window *w)
{
    size_t i = w->first;
    while (i < p->count && (!p->items[i].num_parts || end_of(p, i) <= w->to))
        i++;
    if (i == p->count) return false;
    w->first = i;
    w->from = max_u64(w->to, p->items[i].offset);
    w->to = min_u64(end_of(p, i), w->from + p->load_bytes);
    w->end = i + 1;
    for (; w->end < p->count && end_of(p, w->end) - w->from <= p->load_bytes; w->end++)
        w->to = end_of(p, w->end);
    return true;
}

/* ---- targets ---- */

/* The targets of a window. */
struct targets {
    struct arena arena;
    struct load_target *items;
    size_t count, capacity;
};

static void add_target(struct targets *t, const struct load_target *target)
{
    struct load_target *next = ARENA_PUSH(&t->arena, t->items, t->count, t->capacity);
    *next = *target;
}

/* Part of a parameter in a window, from target.memory on. */
struct cutting {
    struct targets *targets;
    struct load_target target;
};

static enum status add_cut(void *context, const struct pair *part, struct error *err)
{
    struct cutting *x = context;
    x->target.part = *part;
    TRY(pair_turn(&x->target.part, x->target.tensor->name, err));
    add_target(x->targets, &x->target);
    return OK;
}

/* Adds elements [first, first + count) of a parameter, as far as this target
 * has them. */
static enum status add_part_of(struct targets *t, const struct load_target *target, uint64_t first,
                               uint64_t count, struct error *err)
{
    struct cutting x = {t, *target};
    struct pair pair = target->part;
    TRY(pair_turn(&pair, target->tensor->name, err));
    return pair_clip(&pair, first, count, target->tensor->name, add_cut, &x, err);
}

static enum status add_parameter_targets(struct targets *t, const struct parameters *p,
                                         const struct parameter *x, const struct window *w,
                                         char *memory, struct error *err)
{
    const enum dtype dtype = parameter_dtype(p, x);
    const uint64_t bytes = dtype_run_bytes(dtype, x->numel);
    const uint64_t from = max_u64(x->offset, w->from), to = min_u64(x->offset + bytes, w->to);
    const bool is_cut = from > x->offset || to < x->offset + bytes;
    if (from >= to) return OK;
    for (size_t k = 0; k < x->num_parts; k++) {
        const struct load_target target = {.tensor = x->parts[k].tensor,
                                           .part = x->parts[k].part,
                                           .dtype = dtype,
                                           .memory = memory ? memory + (from - w->from) : NULL};
        if (is_cut)
            TRY(add_part_of(t, &target, (from - x->offset) / dtype_bytes(dtype),
                            (to - from) / dtype_bytes(dtype), err));
        else
            add_target(t, &target);
    }
    return OK;
}

/* memory: of the window, or NULL before it is allocated. */
static enum status list_targets(struct targets *t, const struct parameters *p,
                                const struct window *w, char *memory, struct error *err)
{
    *t = (struct targets){.count = 0};
    arena_init(&t->arena);
    for (size_t i = w->first; i < w->end; i++)
        TRY(add_parameter_targets(t, p, &p->items[i], w, memory, err));
    return OK;
}

static enum status load_window(const struct parameters *p, const struct checkpoint *c,
                               const struct window *w, char *memory, const struct load_options *o,
                               struct error *err)
{
    struct load_result result;
    struct targets t;
    enum status st = list_targets(&t, p, w, memory, err);
    if (!st) st = load_run(&c->catalog, t.items, t.count, o, &result, err);
    arena_release(&t.arena);
    return st;
}

/* ---- through buffers ---- */

enum { BUFFERS = 2 };

struct loading {
    const struct parameters *p;
    const struct checkpoint *c;
    const struct device *device;
    char *region;
    struct load_options options;
    struct device_buffer buffers[BUFFERS];
    uint64_t buffer_bytes;
};

/* Needed bytes of a buffer; *buffers: number of used buffers. */
static uint64_t measure_windows(const struct parameters *p, unsigned *buffers)
{
    struct window w = {0};
    uint64_t bytes = 0;
    for (*buffers = 0; next_window(p, &w);) {
        bytes = max_u64(bytes, w.to - w.from);
        if (*buffers < BUFFERS) ++*buffers;
    }
    return bytes;
}

static bool is_filled(const struct parameter *x)
{
    uint64_t count = 0;
    for (size_t k = 0; k < x->num_parts; k++)
        count += pair_count(&x->parts[k].part);
    return count == x->numel;
}

/* Zeroes states and padding of a window, in its parameters and behind them. */
static void zero_rest(const struct parameters *p, const struct window *w, char *memory)
{
    for (size_t i = w->first; i < w->end; i++) {
        const struct parameter *x = &p->items[i];
        const uint64_t bytes = parameter_bytes(p, x);
        uint64_t from = x->offset + (is_filled(x) ? bytes : 0);
        const uint64_t to = min_u64(end_of(p, i), w->to);
        from = max_u64(from, w->from);
        if (from < to) memset(memory + (from - w->from), 0, to - from);
    }
}

/* Creates a buffer, or waits until it is free. */
static enum status take_buffer(struct loading *x, struct device_buffer *b, struct error *err)
{
    if (b->memory) return x->device->buffers->wait(b, err);
    return x->device->buffers->create(b, x->buffer_bytes, err);
}

static enum status load_by_turns(struct loading *x, struct error *err)
{
    struct window w = {0};
    for (unsigned i = 0; next_window(x->p, &w); i++) {
        struct device_buffer *b = &x->buffers[i % BUFFERS];
        TRY(take_buffer(x, b, err));
        zero_rest(x->p, &w, b->memory);
        TRY(load_window(x->p, x->c, &w, b->memory, &x->options, err));
        TRY(x->device->buffers->upload(x->region + w.from, b, w.to - w.from, err));
    }
    for (unsigned i = 0; i < BUFFERS; i++)
        if (x->buffers[i].memory) TRY(x->device->buffers->wait(&x->buffers[i], err));
    return OK;
}

static uint64_t tensor_bytes(const struct parameters *p)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < p->count; i++)
        for (size_t k = 0; k < p->items[i].num_parts; k++)
            bytes += pair_count(&p->items[i].parts[k].part) *
                     dtype_bytes(parameter_dtype(p, &p->items[i]));
    return bytes + coded_summarise(p).bytes;
}

static enum status load_through_buffers(struct loading *x, struct error *err)
{
    unsigned buffers;
    x->buffer_bytes = measure_windows(x->p, &buffers);
    enum status st = load_by_turns(x, err);
    for (unsigned i = 0; i < BUFFERS; i++)
        x->device->buffers->free(&x->buffers[i]);
    return st;
}

enum status parameters_load(struct parameters *p, const struct checkpoint *c,
                            const struct device *device, void *region, const struct load_options *o,
                            struct error *err)
{
    const struct window all = all_of(p);
    struct loading x = {.p = p, .c = c, .device = device, .region = region, .options = *o};
    x.options.shown = progress_start(o->progress, load_what(o), tensor_bytes(p));
    enum status st = device->is_host ? load_window(p, c, &all, region, &x.options, err)
                                     : load_through_buffers(&x, err);
    if (!st) st = coded_load(p, c, device, region, &x.options, err);
    progress_finish(x.options.shown, st == OK);
    return st;
}

enum status parameters_load_bytes(const struct parameters *p, const struct device *device,
                                  const struct load_options *o, uint64_t *bytes, struct error *err)
{
    const struct window all = all_of(p);
    struct targets t;
    unsigned buffers;
    uint64_t coded = 0;
    enum status st = list_targets(&t, p, &all, NULL, err);
    if (!st) st = load_own_bytes(t.items, t.count, o, bytes, err);
    const uint64_t buffer_bytes = measure_windows(p, &buffers);
    if (!device->is_host) *bytes += buffers * buffer_bytes;
    arena_release(&t.arena);
    if (!st) st = coded_load_bytes(p, device, o, &coded, err);
    *bytes = max_u64(*bytes, coded);
    return st;
}
